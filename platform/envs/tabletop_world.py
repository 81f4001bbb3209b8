"""The tabletop's worlds as arrays, and their physics. No episode logic of Gymnasium, no pictures kept.

Shape letters: n worlds of a call, N worlds in all, B blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.env import TabletopConfig
from configs.errors import DataError

from . import tabletop_tasks as rules
from .tabletop_draw import PUSHER_RADIUS, arrange, paint
from .tabletop_tasks import Bools, Floats

Rows = NDArray[np.int64]

WORKSPACE = 0.04
"""The gripper's centre stays this far from the table's edge."""
OPENING_SPEED = np.float32(0.5)
"""Change of the opening in one env step: closed to open takes two, so one flipped command drops nothing."""
RELAXATIONS = 4
"""Passes over all contacts in one env step."""
_AXIS = np.array([1.0, 0.0], np.float32)
"""Direction in which two coinciding centres part."""


@dataclass
class Outcome:
    """Of one env step in n worlds; ``terminated`` is success and never true together with ``truncated``."""

    reward: Floats
    terminated: Bools
    truncated: Bools


class TabletopWorlds:
    """N worlds, stepped by rows. Success ends an episode with reward 1, the step limit truncates it."""

    ARRAYS = (
        "gripper",
        "opening",
        "blocks",
        "pad",
        "held",
        "task",
        "phrase",
        "colours",
        "steps",
        "key",
        "reached_for",
    )

    def __init__(self, config: TabletopConfig, count: int) -> None:
        self.config = config
        self.count = count
        self.gripper = np.zeros((count, 2), np.float32)
        self.opening = np.ones(count, np.float32)
        self.blocks = np.zeros((count, config.blocks, 2), np.float32)
        self.pad = np.full((count, 2), rules.ABSENT, np.float32)
        self.held = np.full(count, -1, np.int64)
        self.task = np.zeros(count, np.int64)
        self.phrase = np.zeros(count, np.int64)
        self.colours = np.zeros((count, config.blocks), np.int64)
        self.steps = np.zeros(count, np.int64)
        self.key = np.zeros(count, np.uint64)
        self.reached_for = np.zeros(count, np.int64)
        self._hold = np.array(
            [1 if rules.TASKS[name].pad else config.reach_hold for name in rules.TASK_NAMES]
        )
        self._pushes = np.array([rules.TASKS[name].pushes for name in rules.TASK_NAMES])

    def reset(self, rows: Rows, keys: NDArray[np.uint64], tasks: Rows | None = None) -> None:
        """Start an episode in each of ``rows``; a start depends on its key alone, and on its task where that is given."""
        starts = rules.draw_starts(self.config, keys, tasks)
        for name in ("gripper", "blocks", "pad", "task", "phrase", "colours"):
            getattr(self, name)[rows] = getattr(starts, name)
        self.opening[rows] = 1
        self.held[rows] = -1
        self.steps[rows] = 0
        self.reached_for[rows] = 0
        self.key[rows] = keys

    def step(self, rows: Rows, actions: Floats) -> Outcome:
        """One env step with ``actions`` ``[n, 3]`` (dx, dy, grip; clipped to [-1, 1])."""
        actions = np.clip(actions, -1, 1).astype(np.float32, copy=False)
        reach = self.gripper[rows] + np.float32(self.config.arm_speed) * actions[:, :2]
        gripper = np.clip(reach, np.float32(WORKSPACE), np.float32(1 - WORKSPACE))
        before = self.opening[rows]
        opening = np.clip(before + np.where(actions[:, 2] > 0, -OPENING_SPEED, OPENING_SPEED), 0, 1)
        blocks, held, task = self.blocks[rows], self.held[rows], self.task[rows]

        closes = (before > 0) & (opening == 0) & (held < 0) & ~self._pushes[task]
        held = self._grasp(gripper, blocks, np.where(opening == 1, -1, held), closes)
        carrying = np.flatnonzero(held >= 0)
        radius = np.float32(self.config.block_radius)
        blocks[carrying, held[carrying]] = np.clip(gripper[carrying], radius, 1 - radius)
        pushing = np.flatnonzero(self._pushes[task] & (opening == 0))
        if len(pushing):
            gripper[pushing], blocks[pushing] = self._push(gripper[pushing], blocks[pushing])

        self.gripper[rows], self.opening[rows], self.blocks[rows], self.held[rows] = (
            gripper,
            opening,
            blocks,
            held,
        )
        self.steps[rows] += 1
        reached = rules.succeeded(self.config, task, gripper, blocks[:, 0], self.pad[rows], held == 0)
        self.reached_for[rows] = np.where(reached, self.reached_for[rows] + 1, 0)
        success = self.reached_for[rows] >= self._hold[task]
        late = self.steps[rows] >= self.config.max_episode_steps
        return Outcome(success.astype(np.float32), success, late & ~success)

    def _grasp(self, gripper: Floats, blocks: Floats, held: Rows, closes: Bools) -> Rows:
        """Attach the nearest block within tolerance where the gripper has just closed."""
        away = rules.distance(blocks, gripper[:, None])
        nearest = away.argmin(axis=1)
        caught = closes & (away.min(axis=1) <= self.config.tolerance)
        return np.where(caught, nearest, held)

    def _push(self, gripper: Floats, blocks: Floats) -> tuple[Floats, Floats]:
        """Quasi-static disc contact: the pusher moves blocks, blocks move blocks, the edge stops them, and the pusher.

        Overlaps are projected out, at most two arm lengths a step, so that lowering onto a block does not fling it.
        """
        radius = np.float32(self.config.block_radius)
        contact = radius + np.float32(PUSHER_RADIUS)
        start, most = blocks, np.float32(2 * self.config.arm_speed)
        for _ in range(RELAXATIONS):
            blocks = self._separate(blocks, 2 * radius)
            blocks = blocks + _overlap(blocks, gripper[:, None], contact)
            blocks = np.clip(blocks, radius, 1 - radius)
        # Without the pusher once more: a row of blocks squeezed against the edge holds its ground and stops it.
        for _ in range(RELAXATIONS):
            blocks = np.clip(self._separate(blocks, 2 * radius), radius, 1 - radius)
        blocks = start + np.clip(blocks - start, -most, most)
        stopped = _overlap(gripper[:, None], blocks, contact).sum(axis=1)
        moved = np.clip(
            gripper + np.clip(stopped, -most, most), np.float32(WORKSPACE), np.float32(1 - WORKSPACE)
        )
        return moved, blocks

    def _separate(self, blocks: Floats, apart: np.float32) -> Floats:
        """Each of two overlapping blocks gives way by half."""
        shift = _overlap(blocks[:, :, None], blocks[:, None], apart)
        own = np.arange(blocks.shape[1])
        shift[:, own, own] = 0
        apart_now: Floats = blocks + np.float32(0.5) * shift.sum(axis=2)
        return apart_now

    def proprio(self, rows: Rows) -> Floats:
        """``[n, 3]`` x, y, opening, all in [0, 1]."""
        return np.concatenate([self.gripper[rows], self.opening[rows, None]], axis=1)

    def draw(self, rows: Rows) -> NDArray[np.uint8]:
        """``[n, H, W, 3]`` frames from above."""
        things = arrange(
            self.config,
            self.task[rows],
            self.gripper[rows],
            self.opening[rows],
            self.held[rows],
            self.blocks[rows],
            self.colours[rows],
            self.pad[rows],
        )
        return paint(things, self.config.camera_size)

    def instructions(self, rows: Rows) -> list[str]:
        """One per row."""
        words = zip(self.task[rows], self.phrase[rows], self.colours[rows, 0], strict=True)
        return [rules.instruction(int(task), int(phrase), int(colour)) for task, phrase, colour in words]

    def task_names(self, rows: Rows) -> list[str]:
        """One per row."""
        return [rules.TASK_NAMES[task] for task in self.task[rows]]

    def copy(self, rows: Rows) -> TabletopWorlds:
        """Worlds of their own that begin as ``rows`` are now."""
        twin = TabletopWorlds(self.config, len(rows))
        for name in self.ARRAYS:
            getattr(twin, name)[:] = getattr(self, name)[rows]
        return twin

    def state(self) -> dict[str, Any]:
        """Every array, copied."""
        return {name: getattr(self, name).copy() for name in self.ARRAYS}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state`` bit for bit; DataError names the first array that does not fit."""
        for name in self.ARRAYS:
            mine, given = getattr(self, name), np.asarray(state[name])
            if given.shape != mine.shape or given.dtype != mine.dtype:
                raise DataError(
                    f"tabletop state {name} is {given.dtype}{list(given.shape)}, expected {mine.dtype}{list(mine.shape)}",
                    where="env",
                    remedy="load it with the environment config and the number of slots that wrote it",
                )
            mine[:] = given


def _overlap(a: Floats, b: Floats, apart: np.float32) -> Floats:
    """Shift ``[..., 2]`` that takes ``a`` out of ``b`` where their centres are nearer than ``apart``."""
    away = a - b
    length = rules.distance(a, b)[..., None]
    direction = np.where(length > 1e-6, away / np.maximum(length, np.float32(1e-6)), _AXIS)
    shift: Floats = direction * np.maximum(apart - length, 0)
    return shift
