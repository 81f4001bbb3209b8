"""Slots that do not wait for each other: threads and processes behind the contract of the environments."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections.abc import Iterator
from platform.envs import make_env
from platform.envs.base import DecisionEnv
from typing import Any, Literal

import numpy as np
import pytest

from configs.env import GymnasiumConfig, TabletopConfig
from configs.errors import EnvError, RoleFailure
from tests.gated_env import HELD_SEED, gate

SLOTS = np.arange(3)
Overlap = Literal["none", "threads", "processes"]


def make(overlap: Overlap, mode: str = "count", slots: int = 3, **fields: Any) -> DecisionEnv:
    config = GymnasiumConfig(
        id="tests.gated_env:Gated-v0", camera_size=8, overlap=overlap, kwargs={"mode": mode}, **fields
    )
    return make_env(config, slots, chunk=3, replan=2)


@pytest.fixture(autouse=True)
def _closed_gate() -> Iterator[None]:
    before = set(threading.enumerate())
    gate.clear()
    yield
    gate.set()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("env slot")]
    assert not [
        child for child in multiprocessing.active_children() if child.name == "tests.gated_env:Gated-v0"
    ]


@pytest.mark.parametrize("overlap", ["threads", "processes"])
def test_lanes_give_what_one_after_the_other_gives(overlap: Overlap) -> None:
    plain, lanes = make("none"), make(overlap)
    assert plain.spec == lanes.spec
    seeds = np.array([4, 2, 9])
    first, second = plain.reset(SLOTS, seeds), lanes.reset(SLOTS, seeds)
    np.testing.assert_array_equal(first.proprio, second.proprio)
    assert plain.tasks(SLOTS) == lanes.tasks(SLOTS)
    actions = np.random.default_rng(0).uniform(0, 1, (2, 3, 3, 2)).astype(np.float32)
    for chunk in actions:
        one, two = plain.step(SLOTS, chunk), lanes.step(SLOTS, chunk)
        np.testing.assert_array_equal(one.observation.images["camera"], two.observation.images["camera"])
        for name in ("rewards", "valid", "terminated", "truncated", "success"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    lanes.close()


def test_answers_follow_the_slots_in_any_order() -> None:
    env = make("threads")
    slots = np.array([2, 0, 1])
    env.reset(slots, np.array([5, 6, 8]))
    actions = np.zeros((3, 3, 2), np.float32)
    actions[:, 0, 1] = [0.2, 0.5, 0.75]
    np.testing.assert_allclose(env.step(slots, actions).rewards[:, 0], [0.2, 0.5, 0.75])
    env.close()


def test_a_slot_that_waits_holds_up_nobody() -> None:
    env = make("threads", slots=2)
    slots = np.arange(2)
    env.reset(slots, np.array([HELD_SEED, 1]))
    env.begin(slots, np.zeros((2, 3, 2), np.float32))
    for count in (2, 4, 6):
        (landed,) = env.ready(60)
        assert landed.slots.tolist() == [1]
        assert landed.result is not None
        assert landed.observation.proprio[0, 1] == count
        env.begin(landed.slots, np.zeros((1, 3, 2), np.float32))
    env.ready(60)
    assert env.ready(0.0) == []
    gate.set()
    (landed,) = env.ready(60)
    assert landed.slots.tolist() == [0]
    env.close()


def test_without_a_timeout_everything_lands_in_the_order_of_the_slots() -> None:
    env = make("threads")
    env.reset(SLOTS[:2], np.array([1, 2]))
    env.begin_reset(SLOTS[2:], np.array([3]))
    env.begin(np.array([1, 0]), np.zeros((2, 3, 2), np.float32))
    started, stepped = env.ready(None)
    assert started.result is None
    assert started.slots.tolist() == [2]
    assert stepped.slots.tolist() == [0, 1]
    assert env.ready(None) == []
    env.close()


@pytest.mark.parametrize(("overlap", "where"), [("threads", "in slot 1"), ("processes", "failed")])
def test_an_error_names_the_environment_and_ends_the_run(overlap: Overlap, where: str) -> None:
    env = make(overlap, mode="raise")
    env.reset(SLOTS, SLOTS)
    actions = np.zeros((3, 3, 2), np.float32)
    actions[1] = 1.0
    env.begin(SLOTS, actions)
    with pytest.raises(RoleFailure, match=rf"Gated-v0 .*{where}.*RuntimeError: the simulator fell over"):
        env.ready(None)
    env.close()


def test_a_process_that_dies_is_told_with_its_exit_code() -> None:
    env = make("processes", mode="exit", slots=1)
    env.reset(SLOTS[:1], SLOTS[:1])
    with pytest.raises(RoleFailure, match="Gated-v0 died with exit code 7"):
        env.step(SLOTS[:1], np.ones((1, 3, 2), np.float32))
    env.close()


def test_a_lane_that_cannot_be_built_leaves_none_behind() -> None:
    from platform.envs.lanes import OverlappedEnv

    builds = itertools.count()

    def build() -> DecisionEnv:
        if next(builds) == 1:
            raise OSError("no display")
        return make("none", slots=1)

    spec = make("none", slots=1).spec
    with pytest.raises(RoleFailure, match="OSError: no display"):
        OverlappedEnv(build, spec, 3, chunk=3)


def test_what_cannot_say_its_state_says_so() -> None:
    env = make("threads", slots=1)
    assert env.state() is None
    with pytest.raises(EnvError, match="cannot restore"):
        env.load({})
    env.close()


def test_an_environment_that_computes_lands_at_once() -> None:
    env, twin = (make_env(TabletopConfig(), 3, chunk=4, replan=4) for _ in range(2))
    assert not env.overlaps
    env.begin_reset(SLOTS, SLOTS)
    (started,) = env.ready(0.0)
    np.testing.assert_array_equal(started.observation.images["top"], twin.reset(SLOTS, SLOTS).images["top"])
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 4, 3)).astype(np.float32)
    env.begin(SLOTS, actions)
    (stepped,) = env.ready(0.0)
    assert stepped.result is not None
    np.testing.assert_array_equal(stepped.observation.proprio, twin.step(SLOTS, actions).observation.proprio)
    assert env.ready(None) == []
