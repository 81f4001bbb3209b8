"""The rollout role alone: its slots, its records, what it leaves in a checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from platform.balance import Balancer
from platform.context import make_context
from platform.envs import make_env
from platform.inference import Decisions
from platform.rollout import Rollout
from platform.slots import Occupancy
from platform.weights import WeightStore
from typing import Any

import numpy as np
import pytest

from buffers.memory import MemoryBuffer
from buffers.samples import Admission
from configs.errors import StallError
from configs.system import BufferConfig
from tests.gated_env import HELD_SEED, gate
from tests.run_helper import config

SETTINGS = config(
    "real", "env=gymnasium", "env.id=tests.gated_env:Gated-v0", "env.camera_size=8", "env.max_episode_steps=8",
    "policy.chunk=2", "policy.replan=2",
)  # fmt: skip


class StillPolicy:
    """Answers every request at once with the middle token, and remembers how many rows each had."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.keys: list[tuple[int, int, int]] = []
        self._answers: list[Decisions] = []

    def submit(self, observation: Any) -> int:
        n = len(observation.instructions)
        self.sizes.append(n)
        self.keys += [
            (int(sample), int(attempt), int(number)) for sample, attempt, number in observation.keys
        ]
        shape = (n, SETTINGS.policy.chunk, 2)
        middle = np.full(shape, SETTINGS.policy.bins // 2, np.int16)
        self._answers.append(
            Decisions(middle, np.zeros(shape, np.float32), np.zeros(n, np.float32), version=3)
        )
        return len(self._answers) - 1

    def poll(self, ticket: object, *, timeout_s: float) -> Decisions | None:
        assert isinstance(ticket, int)
        return self._answers[ticket]


class Held(Rollout):
    """Its first episode waits for the gate, all others go on."""

    def _episode_seed(self, group: int) -> int:
        return HELD_SEED if group == 0 else super()._episode_seed(group)


@pytest.fixture(autouse=True)
def _closed_gate() -> Iterator[None]:
    gate.clear()
    yield
    gate.set()


def make(
    kind: type[Rollout],
    slots: int,
    *,
    exact: bool,
    allotted: int | None = None,
    segment: int | None = None,
    group: int = 1,
    stall_s: float = 120.0,
) -> tuple[Rollout, MemoryBuffer, StillPolicy, WeightStore]:
    context = make_context(SETTINGS, seed=0, device="cpu")
    env = make_env(SETTINGS.env, slots, chunk=2, replan=2)
    buffer = MemoryBuffer(context.record_spec, BufferConfig(held_out=0.0), seed=0, name="real")
    policy, store = StillPolicy(), WeightStore()
    balancer = None
    if allotted is not None:
        balancer = Balancer(store, "rollout_0", ["rollout_0", "rollout_1"], envs=allotted, most=slots)
    rollout = kind(
        context, env, buffer, policy, store, index=0, admission=lambda _turns: Admission(1000, group=group),
        admission_alone=Admission(1000, group=group), gamma=1.0, max_steps=None, segment=segment,
        exact=exact, stall_s=stall_s, sampler=None, balancer=balancer,
    )  # fmt: skip
    return rollout, buffer, policy, store


def stored(buffer: MemoryBuffer) -> int:
    return int(buffer.stats()["items"])


def running_ids(buffer: MemoryBuffer) -> set[int]:
    return {s["id"] for s in buffer.state()["lifecycle"]["samples"] if s["state"] == "running"}


def test_a_held_slot_holds_up_no_other() -> None:
    rollout, buffer, policy, _ = make(Held, 3, exact=False)
    for _ in range(10_000):
        rollout.step()
        if stored(buffer) >= 6:
            break
    assert stored(buffer) >= 6, "the two free slots end one episode after the other"
    assert max(policy.sizes[3:]) <= 2, "the held slot never asks"
    gate.set()
    while stored(buffer) < 20:
        rollout.step()
    rollout.close()


def test_exact_asks_for_all_slots_at_once() -> None:
    rollout, buffer, policy, _ = make(Rollout, 3, exact=True)
    while stored(buffer) < 6:
        rollout.step()
    assert set(policy.sizes) == {3}
    assert rollout.real_steps == 8 * 6
    rollout.close()


def test_running_episodes_are_started_again_after_a_checkpoint() -> None:
    rollout, buffer, _, store = make(Held, 3, exact=False)
    for _ in range(10_000):
        rollout.step()
        if rollout.real_steps >= 20:
            break
    state = rollout.state()
    assert state["env"] is None
    running = running_ids(buffer)
    assert len(running) == 3
    assert 0 in running
    assert store.read()["real_steps/rollout_0"] == state["steps"]["taken"] == rollout.real_steps
    gate.set()
    rollout.close()

    again, _, _, _ = make(Rollout, 3, exact=False)
    again._buffer = buffer
    again.load(state)
    assert again.real_steps == state["steps"]["taken"]
    again.step()
    assert {start.sample.sample_id for start in again._starting.values()} | {
        episode.sample_id for episode in again._episodes.values()
    } == running
    attempts = [s.sample.attempt for s in again._starting.values()]
    attempts += [episode.attempt for episode in again._episodes.values()]
    assert attempts == [1, 1, 1]
    again.close()


def test_a_cut_episode_goes_on_in_another_sample() -> None:
    rollout, buffer, policy, _ = make(Rollout, 2, exact=True, segment=3)
    while stored(buffer) < 8:
        rollout.step()
    # Four decisions of two steps each are an episode: three, then one.
    lease = buffer.lease(16)
    assert lease is not None
    assert lease.batch.lengths.tolist() == [3, 3, 1, 1, 3, 3, 1, 1]
    assert rollout.metrics()["env/length"] == 8.0
    samples = {sample for sample, _, _ in policy.keys}
    assert len(policy.keys) == len(set(policy.keys)), "every decision has noise of its own"
    assert samples >= set(range(8))
    assert {decision for sample, _, decision in policy.keys if sample < 2} == {0, 1, 2}
    rollout.close()


def test_a_group_starts_alike() -> None:
    rollout, buffer, _, _ = make(Rollout, 4, exact=True, group=2)
    rollout.step()
    seeds = [rollout._episodes[slot].seed for slot in range(4)]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert stored(buffer) == 0
    rollout.close()


def test_occupancy_by_hand() -> None:
    occupancy = Occupancy()
    assert occupancy.take(1.0) is None
    occupancy.note(1.0, 2, 4)
    occupancy.note(3.0, 4, 4)
    # Two seconds with half of the slots, one with all of them: (2 * 2 + 4 * 1) / (4 * 3).
    assert occupancy.take(4.0) == pytest.approx(8 / 12)
    assert occupancy.take(5.0) == 1.0


def test_a_worker_uses_the_slots_that_it_was_allotted() -> None:
    rollout, buffer, _, store = make(Rollout, 4, exact=False, allotted=2)

    def most_under_way(more: int) -> int:
        """Episodes under way at once, at most, until the buffer has so many more."""
        done, most = stored(buffer), 0
        while stored(buffer) < done + more:
            rollout.step()
            most = max(most, len(rollout._episodes) + len(rollout._starting))
        return most

    assert most_under_way(4) == 2
    store.put({"rollout/slots/rollout_0": 4})
    assert most_under_way(12) == 4
    store.put({"rollout/slots/rollout_0": 1})
    most_under_way(6)
    assert len(rollout._episodes) + len(rollout._starting) <= 1
    assert 0 <= store.read()["rollout/busy/rollout_0"] <= 1
    rollout.close()


def test_a_slot_that_hangs_ends_the_run_though_the_others_go_on() -> None:
    rollout, buffer, _, _ = make(Held, 3, exact=False, stall_s=2.0)
    with pytest.raises(StallError, match=r"Gated-v0 has been inside slot 0 for . s \(rollout_0\)"):
        all(rollout.step() or True for _ in itertools.count())
    assert stored(buffer) > 0
    gate.set()
    rollout.close()
