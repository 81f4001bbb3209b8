"""The scripted expert of the tabletop: a controller per env step, and chunks of it that tokens can carry.

It sees the worlds' true state. Shape letters: n worlds, K actions of a chunk, D = 3 action dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .tabletop_draw import PUSHER_RADIUS
from .tabletop_tasks import TASK_NAMES, Floats, distance
from .tabletop_world import Rows, TabletopWorlds

CLOSE = np.float32(1)
OPEN = np.float32(-1)
STANDOFF = 0.02
"""Free space between pusher and block when the pusher comes down behind it."""
ON_TARGET = 0.35
"""Share of the tolerance within which the expert closes, or lets go."""


def expert_actions(worlds: TabletopWorlds, rows: Rows) -> Floats:
    """``[n, 3]`` next action in each of ``rows``, each by its own task."""
    actions = np.zeros((len(rows), 3), np.float32)
    for index, name in enumerate(TASK_NAMES):
        mine = np.flatnonzero(worlds.task[rows] == index)
        if len(mine):
            actions[mine] = _CONTROLLERS[name](worlds, rows[mine])
    return actions


def expert_chunks(
    worlds: TabletopWorlds, rows: Rows, chunk: int, behave: Callable[[int, Floats], Floats] | None = None
) -> Floats:
    """``[n, K, 3]``: the controller in closed loop on a copy of the worlds, which are deterministic.

    ``behave(step, actions [n, 3])`` may disturb or quantise each action before the copy executes it: executing the
    answer in ``rows`` then does exactly what the copy did.
    """
    twin = worlds.copy(rows)
    everywhere = np.arange(len(rows))
    actions = np.zeros((len(rows), chunk, 3), np.float32)
    for step in range(chunk):
        wanted = expert_actions(twin, everywhere)
        actions[:, step] = wanted if behave is None else behave(step, wanted)
        twin.step(everywhere, actions[:, step])
    return actions


def _towards(worlds: TabletopWorlds, rows: Rows, goal: Floats) -> Floats:
    """``[n, 2]`` proportional move, saturated."""
    step = (goal - worlds.gripper[rows]) / np.float32(worlds.config.arm_speed)
    saturated: Floats = np.clip(step, -1, 1).astype(np.float32)
    return saturated


def _with_grip(move: Floats, close: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Floats:
    grip = np.where(close, CLOSE, OPEN)
    return np.concatenate([move, grip[:, None]], axis=1)


def _reach(worlds: TabletopWorlds, rows: Rows) -> Floats:
    return _with_grip(_towards(worlds, rows, worlds.blocks[rows, 0]), np.zeros(len(rows), np.bool_))


def _pick_place(worlds: TabletopWorlds, rows: Rows) -> Floats:
    """Over the block with an open gripper, close, carry, open over the pad. A closed empty gripper opens first."""
    near = ON_TARGET * worlds.config.tolerance
    block, pad = worlds.blocks[rows, 0], worlds.pad[rows]
    carrying = worlds.held[rows] == 0
    goal = np.where(carrying[:, None], pad, block)
    there = distance(worlds.gripper[rows], goal) <= near
    closes = there & (worlds.opening[rows] > 0) & (worlds.held[rows] < 0)
    return _with_grip(_towards(worlds, rows, goal), (carrying & ~there) | closes)


def _push(worlds: TabletopWorlds, rows: Rows) -> Floats:
    """Raised to a point behind the block on the line to the pad; lower; push along the line; again when it slips off."""
    gripper, block, pad = worlds.gripper[rows], worlds.blocks[rows, 0], worlds.pad[rows]
    contact = worlds.config.block_radius + PUSHER_RADIUS
    line = (pad - block) / np.maximum(distance(pad, block), np.float32(1e-6))[:, None]
    behind = block - line * np.float32(contact + STANDOFF)
    offset = gripper - block
    along = offset[:, 0] * line[:, 0] + offset[:, 1] * line[:, 1]
    aside = np.abs(offset[:, 0] * line[:, 1] - offset[:, 1] * line[:, 0])
    at_rear = (along < -0.75 * contact) & (along > -(contact + 3 * STANDOFF))
    lowered = worlds.opening[rows] == 0
    pushing = lowered & at_rear & (aside < 0.5 * contact)
    lowers = ~lowered & at_rear & (aside < 0.25 * contact)
    goal = np.where(pushing[:, None], block - line * np.float32(contact - worlds.config.arm_speed), behind)
    return _with_grip(_towards(worlds, rows, goal), pushing | lowers)


_CONTROLLERS: dict[str, Callable[[TabletopWorlds, Rows], Floats]] = {
    "reach": _reach,
    "push": _push,
    "pick_place": _pick_place,
}
