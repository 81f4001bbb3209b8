"""Env steps become decisions: nothing is lost, invented or put elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffers.exchange.survey import noop_steps
from buffers.exchange.trajectory import Trajectory
from buffers.records import RecordSpec
from configs.errors import DataError


def trajectory(steps: int, **changes: object) -> Trajectory:
    """Observation ``i`` has proprio ``i`` and colour ``i``; action ``i`` is ``i / 100`` and earns ``i``."""
    index = np.arange(steps + 1)
    frames = np.broadcast_to(index[:, None, None, None] % 256, (steps + 1, 4, 4, 3)).astype(np.uint8)
    fields: dict[str, object] = {
        "images": {"top": frames},
        "proprio": index[:, None].astype(np.float32),
        "actions": np.tile(index[:-1, None] / 100, (1, 2)).astype(np.float32),
        "rewards": index[:-1].astype(np.float32),
        "instruction": "reach", "task": "reach", "success": True, "terminated": True, "where": "episode 0",
    }  # fmt: skip
    return Trajectory(**{**fields, **changes})  # type: ignore[arg-type]


def spec(chunk: int, replan: int, longest: int = 99) -> RecordSpec:
    return RecordSpec(
        {"top": (4, 4)},
        proprio_dim=1,
        chunk=chunk,
        replan=replan,
        action_dim=2,
        bins=200,
        max_decisions=longest,
    )


def encode(actions: np.ndarray) -> np.ndarray:
    return np.round(actions * 100).astype(np.int16)


@given(steps=st.integers(1, 60), chunk=st.integers(1, 8), data=st.data())
def test_executed_actions_rewards_and_observations_are_those_of_the_env_steps(steps, chunk, data):
    replan = data.draw(st.integers(1, chunk))
    record = trajectory(steps).to_record(spec(chunk, replan), encode, gamma=1.0, episode_id=7)
    assert record.tokens[record.valid][:, 0].tolist() == list(range(steps))
    seen = [*range(0, steps, replan), steps]
    assert record.proprio[:, 0].tolist() == seen
    assert record.images["top"][:, 0, 0, 0].tolist() == seen
    assert record.rewards.sum() == sum(range(steps))
    assert not record.valid[:, replan:].any()
    assert record.episode_id == 7
    for decision, first in enumerate(seen[:-1]):
        ahead = np.minimum(first + np.arange(chunk), steps - 1)
        assert record.tokens[decision, :, 1].tolist() == ahead.tolist()


def test_rewards_inside_a_decision_are_discounted_per_env_step():
    record = trajectory(5).to_record(spec(4, 4), encode, gamma=0.5, episode_id=0)
    assert record.rewards.tolist() == [0 + 1 / 2 + 2 / 4 + 3 / 8, 4]


@pytest.mark.parametrize(
    ("made", "wanted", "message"),
    [
        (trajectory(3, success=None), spec(2, 2), "does not record success.*success=all"),
        (trajectory(3), spec(2, 2, longest=1), "raise env.max_episode_steps"),
        (trajectory(3, proprio=np.zeros((4, 5), np.float32)), spec(2, 2), "proprio_dim is 5, expected 1"),
        (trajectory(3, actions=np.zeros((3, 7), np.float32)), spec(2, 2), "action_dim is 7, expected 2"),
        (trajectory(3, images={"side": np.zeros((4, 4, 4, 3), np.uint8)}), spec(2, 2), "cameras is side 4x4, expected top"),
        (trajectory(3, images={"top": np.zeros((4, 8, 8, 3), np.uint8)}), spec(2, 2), "top 8x8, expected top 4x4"),
        (trajectory(3, rewards=np.array([0, np.nan, 0], np.float32)), spec(2, 2), "rewards has NaN"),
        (trajectory(0), spec(2, 2), "no action"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(made, wanted, message):
    with pytest.raises(DataError, match=message) as caught:
        made.to_record(wanted, encode, gamma=0.9, episode_id=0)
    assert caught.value.remedy
    assert "episode 0" in str(caught.value)


def test_noops_neither_move_nor_turn_the_gripper():
    actions = np.array([[0, 0, -1], [0.004, -0.004, -1], [0.02, 0, -1], [0, 0, 1], [0, 0, 0.5]], np.float32)
    low, high = np.full(3, -1, np.float32), np.full(3, 1, np.float32)
    assert noop_steps(actions, low, high, 0.01).tolist() == [True, True, False, False, True]
    assert noop_steps(actions[:, 2:], low[2:], high[2:], 0.6).tolist() == [False, False, False, False, True]
