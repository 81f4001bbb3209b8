"""Where to take hold of an object from above with two fingers: across it where it is narrow, else by its rim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
OPENING = 0.07
"""Widest thing between the fingers, in metres; they open 8 cm."""
ANGLES = 12
"""Directions of the fingers that are weighed."""
DEPTH = 0.035
"""How far below the top of an object the fingertips go, at most."""
RIM_DEPTH = 0.025
WALL = 0.004
"""How far inside of its outermost points a rim is held."""
FLOOR = 0.014
"""Nearer to the object's bottom the fingers never go."""
HAND_ABOVE = 0.06
"""Above the fingertips by this much the hand begins, which is wider than the fingers."""
ALIKE = 0.02
"""Grasps whose points are nearer than that are one."""
TURN_COST, BLOCK_COST, SIDE_COST = 0.15, 3.0, 0.3


@dataclass(frozen=True)
class Grasp:
    """Relative to the world's axes."""

    point: Points
    """``[3]``: where the middle between the fingertips goes."""
    fingers: Points
    """``[3]``: horizontal unit vector from one finger to the other."""


def choose_grasp(
    points: Points,
    obstacles: Points,
    fingers_now: Points,
    prefer: Points | None = None,
    missed: Sequence[Points] = (),
) -> Grasp:
    """The cheapest grasp of an object with ``points`` ``[n, 3]``: free of ``obstacles`` ``[m, 3]``, with little turning.

    ``prefer`` is the horizontal direction on whose side a rim is rather held; ``missed`` are points ``[3]`` from the middle of
    the object at which a grasp has failed.
    """
    centre = (points.min(axis=0) + points.max(axis=0)) / 2
    top, bottom = points[:, 2].max(), points[:, 2].min()
    grasps: list[tuple[float, Grasp]] = []
    for angle in np.arange(ANGLES) * np.pi / ANGLES:
        fingers = np.array([np.cos(angle), np.sin(angle), 0.0])
        along = points @ fingers
        width = along.max() - along.min()
        turn = np.arccos(np.clip(abs(fingers @ fingers_now), 0, 1))
        cost = TURN_COST * turn + width
        if width <= OPENING:
            middle = centre + fingers * ((along.max() + along.min()) / 2 - centre @ fingers)
            height = max(bottom + FLOOR, top - DEPTH)
            grasps.append((cost, Grasp(np.array([middle[0], middle[1], height]), fingers)))
            continue
        for side in (-1, 1):
            reach = (along.max() if side > 0 else -along.min()) - side * (centre @ fingers) - WALL
            place = centre + side * reach * fingers
            height = max(bottom + FLOOR, top - RIM_DEPTH)
            away = 0.0 if prefer is None else SIDE_COST * (1 - side * float(fingers @ prefer)) / 2
            grasps.append((cost + away + 1.0, Grasp(np.array([place[0], place[1], height]), fingers)))
    blocked = [
        cost + BLOCK_COST * (_in_the_way(grasp, obstacles) + _missed_before(grasp.point - centre, missed))
        for cost, grasp in grasps
    ]
    return grasps[int(np.argmin(blocked))][1]


def _missed_before(offset: Points, missed: Sequence[Points]) -> int:
    """How often one that is nearly the same has failed."""
    return sum(float(np.linalg.norm(offset - each)) < ALIKE for each in missed)


def _in_the_way(grasp: Grasp, obstacles: Points) -> float:
    """Share, up to 1, of obstacle points that the open fingers or the hand would come down on."""
    if not len(obstacles):
        return 0.0
    offset = obstacles - grasp.point
    along = np.abs(offset @ grasp.fingers)
    across = np.abs(offset @ np.array([-grasp.fingers[1], grasp.fingers[0], 0.0]))
    fingers = (offset[:, 2] > -0.01) & (along < 0.055) & (along > 0.02) & (across < 0.015)
    hand = (offset[:, 2] > HAND_ABOVE) & (along < 0.11) & (across < 0.035)
    return min(1.0, 0.2 * float((fingers | hand).sum()))
