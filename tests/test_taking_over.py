"""What a rollout worker that dies leaves to its successor: its samples, its count of real steps, one version per episode."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from platform.assembly import Services, recover
from platform.context import make_context
from platform.envs import make_env
from platform.inference import Decisions
from platform.rollout import Rollout
from platform.step_count import StepCount
from platform.weights import WeightStore
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffers.memory import MemoryBuffer
from buffers.samples import Admission
from configs.errors import ReplayError
from configs.system import BufferConfig
from tests.counted_env import FILE, counted
from tests.run_helper import config
from tests.test_rollout import running_ids

SETTINGS = config(
    "real", "env=gymnasium", "env.id=tests.counted_env:Counted-v0", "env.camera_size=32", "env.max_episode_steps=8",
    "policy.chunk=2", "policy.replan=2",
)  # fmt: skip
SLOTS, REPLAN = 3, 2


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=30),
    st.integers(0, 12),
)
def test_a_count_is_never_below_the_truth_whoever_dies_when(
    rounds: list[tuple[int, int, bool]], ahead: int
) -> None:
    """``rounds``: steps that may be taken, how many were, whether the worker died before it could count them."""
    count, truth, most_reserved = StepCount(ahead), 0, 0
    told = count.inherited()
    for most, taken, dies in rounds:
        rose = count.reserve(most)
        told = count.inherited() if rose else told
        most_reserved = max(most_reserved, count.taken + most + ahead)
        truth += min(taken, most)
        assert truth <= told["taken"] <= most_reserved
        if dies:
            count = StepCount(ahead)
            count.load(told)
            assert truth <= count.taken
        else:
            count.taken += min(taken, most)
        assert truth <= count.taken <= count.reserved


class Policy:
    """Answers at once, by ``version``."""

    def __init__(self) -> None:
        self.version = 0
        self.open = True

    def submit(self, observation: Any) -> int:
        return len(observation.instructions)

    def poll(self, ticket: object, *, timeout_s: float) -> Decisions | None:
        if not self.open:
            return None
        assert isinstance(ticket, int)
        shape = (ticket, SETTINGS.policy.chunk, 2)
        middle = np.full(shape, SETTINGS.policy.bins // 2, np.int16)
        zeros = np.zeros(shape, np.float32)
        return Decisions(middle, zeros, np.zeros(ticket, np.float32), self.version)


class World:
    """A buffer and a store that outlive the workers."""

    def __init__(self, *, drain: bool = False) -> None:
        self.context = make_context(SETTINGS, seed=0, device="cpu")
        self.buffer = MemoryBuffer(self.context.record_spec, BufferConfig(held_out=0.0), seed=0, name="real")
        self.store, self.policy = WeightStore(), Policy()
        self.buffer.advance(0)
        self._admission = Admission(1000, drain=drain)

    def worker(self) -> Rollout:
        env = make_env(SETTINGS.env, SLOTS, chunk=2, replan=2)
        client: Any = self.policy
        return Rollout(
            self.context, env, self.buffer, client, self.store, index=0, admission=lambda _turns: self._admission,
            admission_alone=self._admission, gamma=1.0, max_steps=None, segment=None, exact=True, stall_s=120.0,
            sampler=None, balancer=None,
        )  # fmt: skip

    def successor(self) -> Rollout:
        state = recover(Services(self.store, self.buffer, self.buffer), "rollout_0")
        worker = self.worker()
        if state is not None:
            worker.load(state)
        return worker


@pytest.fixture(autouse=True)
def _steps_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE, str(tmp_path / "steps"))


def test_a_successor_starts_the_samples_again_and_counts_every_step() -> None:
    world = World()
    dead = world.worker()
    while len(dead._episodes) < SLOTS or not all(b.tokens for b in dead._episodes.values()):
        dead.step()
    running, late = running_ids(world.buffer), dead._episodes
    assert len(running) == SLOTS
    before = counted()
    assert dead.real_steps == before

    heir = world.successor()
    assert before <= heir.real_steps <= before + 2 * SLOTS * REPLAN
    extra = heir.real_steps - before
    for builder in late.values():
        with pytest.raises(ReplayError):
            world.buffer.append(builder.cut(), sample_id=builder.sample_id)
    heir.step()
    assert running_ids(world.buffer) == running
    assert {b.attempt for b in heir._episodes.values()} == {1}
    while world.buffer.stats()["items"] < 6:
        heir.step()
    assert heir.real_steps == counted() + extra
    heir.state()
    assert world.store.read()["real_steps/rollout_0"] == counted() + extra
    counts = world.buffer.stats()["lifecycle"]
    assert sum(counts.values()) == world.buffer.state()["lifecycle"]["next_id"]
    heir.close()
    dead.close()


def test_a_worker_that_dies_before_its_first_step_leaves_nothing_to_load() -> None:
    world = World()
    world.policy.open = False
    dead = world.worker()
    for _ in range(3):
        dead.step()
    heir = world.successor()
    assert heir.real_steps == counted() == 0
    assert running_ids(world.buffer) == set()
    world.policy.open = True
    while world.buffer.stats()["items"] < 3:
        heir.step()
    assert heir.real_steps == counted()
    heir.close()
    dead.close()


def test_an_episode_that_must_end_under_its_version_is_given_back_when_only_newer_weights_are_left() -> None:
    world = World(drain=True)
    worker = world.worker()
    while len(worker._episodes) < SLOTS or not all(b.version for b in worker._episodes.values()):
        worker.step()
    running = running_ids(world.buffer)
    world.policy.version = 1
    world.buffer.advance(1)
    while world.buffer.stats()["items"] < SLOTS + 1:
        worker.step()
    records = world.buffer.episodes()
    assert all(len(set(record.version.tolist())) == 1 for record in records)
    again = {record.seed: record.attempt for record in records}
    assert sorted(again.values())[-SLOTS:] == [1] * SLOTS
    assert len(running) == SLOTS
    assert worker.real_steps == counted()
    worker.close()


def test_a_checkpoint_made_without_a_spare_role_resumes_on_the_serial_host(tmp_path: Path) -> None:
    from platform.checkpoint import read_checkpoint
    from platform.report import summary
    from platform.runner import Runner

    settings = partial(config, "real", "host=serial", "rollout.envs=4")
    folder = tmp_path / "run"
    folder.mkdir()
    made = settings("run.stop.updates=2")
    Runner(made, folder, None).run(lambda outcome: summary(made, outcome))
    step, states = read_checkpoint(folder / "checkpoints")
    kept = states["store"]["kept"]["rollout_0"]["steps"]["taken"]
    for name in ("inference_0", "rollout_0", "evaluator"):
        del states[name]
    more = settings("run.stop.updates=4")
    result = Runner(more, folder, (step, states)).run(lambda outcome: summary(more, outcome))
    assert result["updates"]["policy"] > 0
    assert sum(result["real_steps"].values()) > kept
    _, states = read_checkpoint(folder / "checkpoints")
    samples = states["b_real"]["lifecycle"]["samples"]
    assert {s["owner"] for s in samples if s["state"] == "running"} <= {"rollout_0"}
    assert any(s["attempt"] == 1 for s in samples) or states["b_real"]["lifecycle"]["ended"]["consumed"] > 0
