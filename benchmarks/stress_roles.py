"""The roles of ``benchmarks/stress.py``: collectors and a learner over the real buffer, weight store and staleness rules."""

from __future__ import annotations

import time
from collections import Counter
from platform.staleness import Rules
from platform.weights import WeightStore
from typing import Any

import numpy as np

from buffers.memory import MemoryBuffer
from buffers.records import Record, RecordSpec
from buffers.shelf import bytes_per_row
from configs.system import BufferConfig

SPEC = RecordSpec({"camera": (2, 2)}, 1, chunk=1, replan=1, action_dim=1, bins=4, max_decisions=8)
TURN, TURNS_PER_PUBLISH, REUSE = 8, 2, 2
SLOTS = 3


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
    """Episodes of random length; some fail, some are given back, and sometimes all of its own are: it died."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._admission = self._rules.admission(TURN * TURNS_PER_PUBLISH)
        self._running: dict[int, list[int]] = {}
        self._attempt: dict[int, int] = {}
        self._version = -1
        self._finished = 0

    def step(self) -> bool:
        """One decision of each episode."""
        if self._random.random() < 0.002:
            self._buffer.reissue_of(self.name)
            self._running.clear()
        for sample in self._buffer.admit(SLOTS - len(self._running), self._admission, self.name):
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
        self._version = self._unpublished = self._turns = self._waits = 0
        self._uses: Counter[int] = Counter()
        self._lags: Counter[int] = Counter()

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
        self._lags.update(lag[trained].tolist())
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
            **{f"lag/{lag}": float(count) for lag, count in self._lags.items()},
            "commits": float(sum(self._uses.values())),
            "waits": float(self._waits),
        }
