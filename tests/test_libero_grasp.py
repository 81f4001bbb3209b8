"""Where a demonstrator takes hold: by the rim where an object is wide, and elsewhere after a miss."""

from platform.envs.libero_grasp import ALIKE, choose_grasp

import numpy as np
import pytest

NOTHING = np.zeros((0, 3))


def bowl(radius: float = 0.06, height: float = 0.05) -> np.ndarray:
    """Points of a rim and of a floor, around (0.1, 0.2), standing on z = 0.9."""
    angle = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    ring = np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], axis=1)
    rim, floor = radius * ring + [0, 0, height], 0.5 * radius * ring
    points: np.ndarray = np.concatenate([rim, floor])
    return points + np.array([0.1, 0.2, 0.9])


def test_a_bowl_is_held_by_its_rim() -> None:
    grasp = choose_grasp(bowl(), NOTHING, np.array([0.0, 1.0, 0.0]))
    middle = np.array([0.1, 0.2])
    assert np.linalg.norm(grasp.point[:2] - middle) == pytest.approx(0.056, abs=0.001)
    # Across the wall: the fingers' line goes through the middle.
    outwards = (grasp.point[:2] - middle) / np.linalg.norm(grasp.point[:2] - middle)
    assert abs(outwards @ grasp.fingers[:2]) == pytest.approx(1.0, abs=1e-3)


def test_what_was_missed_is_not_tried_again_until_everything_was() -> None:
    points, missed = bowl(), []
    centre = np.array([0.1, 0.2, 0.925])
    for _ in range(6):
        offset = choose_grasp(points, NOTHING, np.array([0.0, 1.0, 0.0]), missed=missed).point - centre
        assert all(np.linalg.norm(offset - each) >= ALIKE for each in missed)
        missed.append(offset)
