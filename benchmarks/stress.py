"""Pause and resume everything ten thousand times while versions appear, with random delays: nothing hangs, nothing is lost,
nothing older than the bound trains.

Collectors and a learner run over the real buffer, weight store and staleness rules: each a thread, then (fewer cycles)
each a Ray actor. At every pause the table of samples is audited, at some of them a checkpoint is restored.
``--quick``: fewer cycles. The whole takes about five minutes on two quiet cores. Prints a table and one JSON object as
its last line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from platform.hosts.actors import RoleActor
from platform.hosts.base import Health, Host
from platform.role import Role
from platform.staleness import Rules
from platform.weights import WeightStore
from typing import Any, TypeVar

import numpy as np

from buffers.memory import MemoryBuffer
from buffers.records import Record, RecordSpec
from buffers.shelf import bytes_per_row
from configs.system import BufferConfig, RayHostConfig

RESULTS = Path(__file__).parent / "results"
SPEC = RecordSpec({"camera": (2, 2)}, 1, chunk=1, replan=1, action_dim=1, bins=4, max_decisions=8)
TURN, TURNS_PER_PUBLISH, REUSE = 8, 2, 2
COLLECTORS, SLOTS = 3, 3
STALL_S = 60.0
T = TypeVar("T")

CASES = {
    "mask": Rules(budget=1.0, bound=1, on_violation="mask"),
    "cut, groups": Rules(budget=1.0, bound=1, on_violation="cut", group=2),
    "drop, on-policy share": Rules(budget=2.0, bound=2, on_violation="drop", on_policy_min_ratio=0.3),
    "wait": Rules(budget=1.0, bound=1, on_violation="wait"),
    "drain, in order": Rules(budget=0.0, bound=2, on_violation="mask", drain=True, ordered=True),
}


def make_buffer() -> MemoryBuffer:
    """Room for far more than the budget."""
    config = BufferConfig(max_bytes=4000 * bytes_per_row(SPEC), reuse_limit=REUSE, held_out=0.0)
    return MemoryBuffer(SPEC, config, seed=0, name="real")


class Worker:
    """What both roles share: random delays, and nothing to keep."""

    def __init__(
        self, name: str, buffer: Any, store: WeightStore, rules: Rules, seed: int, delay_s: float
    ) -> None:
        self.name = name
        self._buffer, self._store, self._rules, self._delay_s = buffer, store, rules, delay_s
        self._random = np.random.default_rng(seed)

    def _dawdle(self) -> None:
        """Mostly not at all, sometimes long."""
        time.sleep(self._delay_s * self._random.exponential() if self._random.random() < 0.2 else 0.0)

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing is held."""


class Collector(Worker):
    """Episodes of random length; some fail, some are given back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._admission = self._rules.admission(TURN * TURNS_PER_PUBLISH)
        self._running: dict[int, list[int]] = {}
        self._attempt: dict[int, int] = {}
        self._version = -1
        self._finished = 0

    def step(self) -> bool:
        """One decision of each episode."""
        for sample in self._buffer.admit(SLOTS - len(self._running), self._admission):
            self._running[sample.sample_id], self._attempt[sample.sample_id] = [], sample.attempt
        self._refresh()
        for key, made_by in list(self._running.items()):
            self._dawdle()
            made_by.append(self._version)
            chance = self._random.random()
            if chance < 0.01:
                del self._running[key]
                self._buffer.fail([key])
            elif chance < 0.02:
                del self._running[key]
                self._buffer.reissue([key])
            elif chance < 0.3 or len(made_by) == SPEC.max_decisions:
                self._buffer.append(self._record(key, self._running.pop(key)), key)
                self._finished += 1
        return bool(self._running)

    def _refresh(self) -> None:
        drained = not self._rules.drain or self._buffer.running_before(self._version + 1) == 0
        published = self._store.fetch("policy", self._version) if self._version < 0 or drained else None
        if published is not None:
            whole = published.arrays["weights"]
            assert (whole == published.version).all(), "half of a version"
            self._version = published.version

    def _record(self, key: int, made_by: list[int]) -> Record:
        length = len(made_by)
        return Record(
            images={"camera": np.zeros((length + 1, 2, 2, 3), np.uint8)},
            proprio=np.zeros((length + 1, 1), np.float32),
            instruction="",
            tokens=np.zeros((length, 1, 1), np.int16),
            log_probs=np.zeros((length, 1, 1), np.float32),
            valid=np.ones((length, 1), np.bool_),
            rewards=np.zeros(length, np.float32),
            values=np.zeros(length, np.float32),
            version=np.array(made_by, np.int32),
            terminated=True,
            truncated=False,
            success=False,
            task="",
            seed=key,
            attempt=self._attempt[key],
            episode_id=key,
        )

    def metrics(self) -> dict[str, float]:
        """Episodes so far."""
        return {f"finished/{self.name}": float(self._finished)}


class Learner(Worker):
    """Leases, trains or gives back, publishes; checks what it gets."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._version = self._unpublished = self._turns = self._largest_lag = self._waits = 0
        self._uses: Counter[int] = Counter()
        self._trained = 0

    def step(self) -> bool:
        """One turn, if there is one."""
        lease = self._buffer.lease(TURN, gate=self._rules.gate(self._version, TURN, real=True))
        if lease is None:
            return self._publish()
        self._dawdle()
        if self._random.random() < 0.1:
            self._buffer.release(lease.lease_id)
            return True
        lag = (self._version - lease.batch.version)[lease.batch.decisions]
        assert (lag >= 0).all(), "a decision of a version that was never published"
        trained = lag <= self._rules.bound
        assert trained.all() or self._rules.on_violation == "mask", "older than the bound"
        self._largest_lag = max(self._largest_lag, int(lag[trained].max()))
        self._trained += int(trained.sum())
        self._uses.update(lease.ids)
        assert max(self._uses[key] for key in lease.ids) <= REUSE, "trained too often"
        self._buffer.commit(lease.lease_id)
        self._turns += 1
        self._unpublished += 1
        if not self._publish() and self._unpublished % TURNS_PER_PUBLISH == 0:
            self._buffer.advance(self._version)
        return True

    def _publish(self) -> bool:
        if self._unpublished < TURNS_PER_PUBLISH:
            return False
        waits = self._rules.on_violation == "wait"
        if not self._rules.may_publish(self._version, self._buffer.oldest_version() if waits else None):
            self._waits += 1
            return False
        self._version += 1
        self._unpublished = 0
        self._store.publish("policy", self._version, {"weights": np.full(1000, self._version)})
        self._buffer.advance(self._version)
        return True

    def metrics(self) -> dict[str, float]:
        """Counts since the start."""
        return {
            "publishes": float(self._version),
            "turns": float(self._turns),
            "trained": float(self._trained),
            "largest_lag": float(self._largest_lag),
            "commits": float(sum(self._uses.values())),
            "waits": float(self._waits),
        }


class ThreadHost:
    """The Ray host's actors as threads of this process: real concurrency at a thousandth of the cost of a call."""

    exact = False

    def __init__(self) -> None:
        self._actors: dict[str, RoleActor] = {}

    def place_service(self, name: str, build: Callable[[], T]) -> T:
        """Here."""
        return build()

    def place_role(self, name: str, build: Callable[[], Role], *, serves: bool = False) -> Any:
        """A thread."""
        self._actors[name] = RoleActor(name, build, 1)

    def start(self) -> None:
        """Built already."""

    def resume(self) -> None:
        """Let every loop work."""
        for actor in self._actors.values():
            actor.resume()

    def pump(self) -> None:
        """Raise what a role raised."""
        for actor in self._actors.values():
            failure = actor.health()[1]
            if failure is not None:
                raise AssertionError(failure[1])

    def pause(self, timeout_s: float) -> list[str]:
        """Hold every loop."""
        for actor in self._actors.values():
            actor.pause()
        return []

    def states(self, skip: list[str]) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def load(self, states: dict[str, Any]) -> None:
        """Nothing to keep."""

    def metrics(self) -> dict[str, dict[str, float]]:
        """Of every role."""
        return {name: actor.metrics() for name, actor in self._actors.items()}

    def health(self) -> list[Health]:
        """Of every role."""
        return [actor.health()[0] for actor in self._actors.values()]

    def close(self) -> None:
        """A loop that is held goes on being held: its thread is a daemon."""
        self.pause(0.0)


@dataclass
class Result:
    """Of one case on one host."""

    case: str
    host: str
    cycles: int
    publishes: int
    turns: int
    samples: int
    trained_decisions: int
    largest_lag: int
    bound: int
    publish_waits: int
    restores: int
    seconds: float


def run_case(case: str, host: Host, name: str, cycles: int, delay_s: float, seed: int = 0) -> Result:
    """``cycles`` pauses, and at least half as many publishes. AssertionError for anything lost, stuck or too old."""
    rules, began = CASES[case], time.monotonic()
    buffer, store = host.place_service("buffer", make_buffer), host.place_service("store", WeightStore)
    store.publish("policy", 0, {"weights": np.zeros(1000)})
    buffer.advance(0)
    for index in range(COLLECTORS):
        build = partial(Collector, f"collector_{index}", buffer, store, rules, seed + index, delay_s)
        host.place_role(f"collector_{index}", build)
    host.place_role("learner", partial(Learner, "learner", buffer, store, rules, seed + 99, delay_s))
    host.start()
    random, done, restores = np.random.default_rng(seed), 0, 0
    learner: dict[str, float] = {"publishes": 0.0}
    moved = (time.monotonic(), -1.0)
    while done < cycles or learner["publishes"] < cycles / 2:
        host.resume()
        time.sleep(4 * delay_s * random.random())
        host.pump()
        late = host.pause(STALL_S)
        assert not late, f"{late} did not stop"
        done += 1
        learner = host.metrics()["learner"]
        audit(buffer, learner)
        if done % 50 == 0:
            restore(buffer)
            restores += 1
        if learner["turns"] != moved[1]:
            moved = (time.monotonic(), learner["turns"])
        assert time.monotonic() - moved[0] < STALL_S, f"stuck: {buffer.stats()['lifecycle']}"
    counts = buffer.stats()["lifecycle"]
    return Result(
        case, name, done, int(learner["publishes"]), int(learner["turns"]), sum(counts.values()),
        int(learner["trained"]), int(learner["largest_lag"]), rules.bound, int(learner["waits"]), restores,
        time.monotonic() - began,
    )  # fmt: skip


def audit(buffer: MemoryBuffer, learner: dict[str, float]) -> None:
    """While all stand still: every sample is somewhere, every use was counted, every buffered record is there."""
    stats, state = buffer.stats(), buffer.state()
    table = state["lifecycle"]
    assert sum(stats["lifecycle"].values()) == table["next_id"], "a sample is lost"
    assert stats["lifecycle"]["leased"] == 0, "the learner stands between two turns"
    assert table["ended_uses"] + sum(s["uses"] for s in table["samples"]) == learner["commits"], (
        "a use is lost"
    )
    stored = {item["id"] for item in state["shelf"]["items"]}
    waiting = {sample["id"] for sample in table["samples"] if sample["state"] == "buffered"}
    assert waiting <= stored, "a record is lost"


def restore(buffer: MemoryBuffer) -> None:
    """A checkpoint read back is the buffer that was written."""
    state = buffer.state()
    twin = make_buffer()
    twin.load(state)
    assert twin.state()["lifecycle"] == state["lifecycle"]
    assert twin.stats() == buffer.stats()
    buffer.load(state)


def table(results: list[Result]) -> str:
    """For people."""
    lines = [
        f"{'rules':<24}{'host':<9}{'pauses':>8}{'versions':>9}{'samples':>9}{'max lag':>9}{'bound':>7}{'s':>7}"
    ]
    for r in results:
        lines.append(
            f"{r.case:<24}{r.host:<9}{r.cycles:>8}{r.publishes:>9}{r.samples:>9}{r.largest_lag:>9}{r.bound:>7}"
            f"{r.seconds:>7.0f}"
        )
    return "\n".join(lines)


def ray_host() -> Host:
    """A cluster of its own."""
    from platform.hosts.ray_host import RayHost

    return RayHost(RayHostConfig(object_store_bytes=80_000_000))


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cycles, at most a minute")
    quick = parser.parse_args().quick
    cycles, on_ray = (100, 10) if quick else (2000, 60)
    results = [run_case(case, ThreadHost(), "threads", cycles, 5e-4) for case in CASES]
    host = ray_host()
    try:
        results.append(run_case("mask", host, "ray", on_ray, 5e-3))
    finally:
        host.close()
    print(table(results))
    summary = {
        "cycles": sum(r.cycles for r in results),
        "publishes": sum(r.publishes for r in results),
        "lost_samples": 0,
        "hangs": 0,
        "lag_over_bound": max(r.largest_lag - r.bound for r in results),
        "quick": quick,
        "rows": [asdict(r) for r in results],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "stress.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
