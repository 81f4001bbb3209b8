"""What every replay buffer does alike: samples and their lifecycle, checks, the limiter and who waits for it, leases."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from buffers.batches import Lease
from buffers.index import SPLITS, Kind, Split, is_held_out
from buffers.lending import Holdings, candidates, choose, expire_outdated, expire_stale, make_room
from buffers.lifecycle import Lifecycle
from buffers.limiter import Limiter, check_limiter
from buffers.records import Record, RecordBatch, RecordSpec
from buffers.samples import Admission, Admitted, Gate, Stock, Traffic
from configs.errors import DataError, ReplayTimeout
from configs.system import BufferConfig


class Supply(ABC):
    """A replay buffer but for where its records lie. Thread-safe; a subclass takes ``_lock`` around whatever it does."""

    row_bytes: int
    """What one row costs; a record of T decisions takes T + 1."""

    def __init__(
        self, spec: RecordSpec, config: BufferConfig, *, seed: int, name: str, most_decisions: int
    ) -> None:
        """Room for ``most_decisions``. ConfigError when the limiter could only wait."""
        if config.limiter is not None:
            check_limiter(
                config.limiter,
                longest=spec.max_decisions,
                capacity=most_decisions,
                where=f"buffers.{name}.limiter",
            )
        self.spec = spec
        self.name = name
        self._config = config
        self._lifecycle = Lifecycle(config.reuse_limit, spec.max_decisions)
        self._limiter = None if config.limiter is None else Limiter(config.limiter)
        self._traffic = Traffic()
        self._generator = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        """Something was inserted or drawn: who waits for the limiter looks again."""

    def admit(self, wanted: int, admission: Admission, owner: str = "") -> list[Admitted]:
        """At most ``wanted`` samples that the collector ``owner`` may start: as many as admission allows (see
        ``Lifecycle.room``).
        """
        with self._lock:
            return self._lifecycle.admit(wanted, admission, owner)

    def room(self, admission: Admission) -> int:
        """Samples that admission would allow now; samples stored without being admitted fill places too."""
        with self._lock:
            return self._lifecycle.room(admission)

    def running_before(self, version: int) -> int:
        """Running samples that were started under an earlier version."""
        with self._lock:
            return self._lifecycle.running_before(version)

    def oldest_version(self) -> int | None:
        """Oldest version of a decision that runs, waits or is lent; None when there is none."""
        with self._lock:
            return self._lifecycle.oldest()

    def advance(self, version: int) -> None:
        """The policy learner published ``version``: a new budget begins (see ``Lifecycle.advance``)."""
        with self._lock:
            self._lifecycle.advance(version)

    def fail(self, sample_ids: Sequence[int]) -> None:
        """Admitted or running samples end without a record; their places are free again."""
        with self._lock:
            self._lifecycle.fail(sample_ids)

    def reissue(self, sample_ids: Sequence[int] | None = None) -> None:
        """Running samples (all by default) are admitted again, to collectors that come next, with attempt + 1."""
        with self._lock:
            self._lifecycle.reissue(sample_ids)

    def reissue_of(self, owner: str) -> int:
        """The same for the samples that run at the collector ``owner``, which died; how many."""
        with self._lock:
            return self._lifecycle.reissue_of(owner)

    @property
    @abstractmethod
    def _stored(self) -> Holdings:
        """What is known of the stored records."""

    @abstractmethod
    def _place(self, record: Record) -> int:
        """Make room, others leaving for it, and say where the record goes. ReplayError when there is none."""

    @abstractmethod
    def _keep(self, key: int, place: int, record: Record, split: Split) -> None:
        """The record is stored from now on."""

    @abstractmethod
    def _records(self, ids: Sequence[int]) -> RecordBatch | None:
        """Copies of stored samples, or None when one turns out to be lost: it has expired then."""

    @abstractmethod
    def _count(self, kind: Kind, split: Split) -> int:
        """Stored rows of a kind."""

    def append(self, record: Record, sample_id: int | None = None) -> int:
        """Store a copy; its id (``sample_id`` if given: that sample must be running, in the record's attempt).

        DataError when the record does not fit the spec, ReplayError when the sample or the room is not there; then
        nothing is stored.
        """
        record.check(self.spec, where=f"buffer {self.name}")
        return self._append(record, sample_id)

    def extend(self, records: Sequence[Record]) -> list[int]:
        """Store several records that were never admitted. All are checked before the first is stored."""
        for number, record in enumerate(records):
            record.check(self.spec, where=f"buffer {self.name}, record {number}")
        with self._lock:
            return [self._append(record, None) for record in records]

    def _append(self, record: Record, sample_id: int | None) -> int:
        demonstration = record.source == "demonstration"
        if demonstration and sample_id is not None:
            raise DataError(
                "a demonstration cannot be an admitted sample",
                where=f"buffer {self.name}",
                remedy="drop sample_id",
            )
        with self._lock:
            self._await_insert(record.length)
            if sample_id is not None:
                self._lifecycle.check_store(sample_id, record.attempt)
            place = self._place(record)
            if demonstration:
                key = self._lifecycle.reserve_id()
            else:
                key = self._lifecycle.store(sample_id, record.length, version=int(record.version[0]))
                self._traffic.completed += 1
                self._traffic.completed_decisions += record.length
            self._inserted(record.length)
            self._keep(key, place, record, self._split_of(record))
        return key

    def _split_of(self, record: Record) -> Split:
        return "held_out" if is_held_out(record.episode_id, self._config.held_out) else "train"

    def lease(self, decisions: int, *, prefer_recent: bool = False, gate: Gate | None = None) -> Lease | None:
        """Lend samples with at least ``decisions`` decisions together, or None when there are too few.

        The least used come first, and the first admitted among those, so that nothing starves; ``prefer_recent``
        takes the last admitted among those. ``gate`` says how old they may be (see ``Gate``).
        """
        assert decisions > 0
        with self._lock:
            gate = gate or Gate(oldest=0)
            while (ids := self._choose(decisions, gate, prefer_recent=prefer_recent)) is not None:
                if (batch := self._records(ids)) is not None:
                    traffic, self._traffic = self._traffic, Traffic()
                    return Lease(self._lifecycle.lease(ids, asked=decisions), ids, batch, traffic)
            return None

    def _choose(self, decisions: int, gate: Gate, *, prefer_recent: bool) -> list[int] | None:
        self._traffic.outdated += expire_outdated(self._stored, self._lifecycle, gate)
        self._traffic.dropped += expire_stale(self._stored, self._lifecycle, gate)
        offered = candidates(self._stored, self._lifecycle, gate, prefer_recent=prefer_recent)
        if sum(candidate.decisions for candidate in offered) < gate.store:
            return None
        ids = choose(offered, decisions, gate.on_policy)
        if ids is None:
            missing = math.ceil(gate.on_policy * decisions)
            self._traffic.dropped += make_room(self._stored, self._lifecycle, offered, missing)
        return ids

    def commit(self, lease_id: int) -> None:
        """The learner trained on the lease: one use more. ReplayError when the lease is not open.

        At ``reuse_limit`` a sample is consumed; its frames stay for the models until evicted.
        """
        with self._lock:
            self._lifecycle.commit(lease_id)

    def release(self, lease_id: int) -> None:
        """The learner did not train on the lease. ReplayError when it is not open."""
        with self._lock:
            self._lifecycle.release(lease_id)

    def ids(self, split: Split | None = None) -> list[int]:
        """Stored records, oldest first."""
        with self._lock:
            return [item.id for item in self._stored.items.values() if split in (None, item.split)]

    def _rng(self, generator: np.random.Generator | None) -> np.random.Generator:
        return self._generator if generator is None else generator

    def available_decisions(self) -> int:
        """Decisions that could be leased now."""
        return self.stock().available

    def stock(self) -> Stock:
        """What the policy learner could get, holds, and may expect."""
        with self._lock:
            return self._lifecycle.stock()

    def _await_insert(self, decisions: int) -> None:
        """Wait, holding the lock between looks only, until the limiter lets ``decisions`` in. ReplayTimeout."""
        limiter = self._limiter
        if limiter is not None:
            self._await(limiter, lambda: limiter.may_insert(decisions), "an insertion", "draw more windows")

    def _inserted(self, decisions: int) -> None:
        if self._limiter is not None:
            self._limiter.inserted += decisions
            self._moved.notify_all()

    def _await_sample(self, windows: int) -> None:
        """The same until it lets ``windows`` be drawn, which are counted then. ReplayError when it never could."""
        limiter = self._limiter
        if limiter is not None:
            limiter.require_possible(windows, where=f"buffer {self.name}")
            self._await(limiter, lambda: limiter.may_sample(windows), "a draw", "store more records")
            limiter.sampled += windows
            self._moved.notify_all()

    def _await(self, limiter: Limiter, ready: Callable[[], bool], what: str, remedy: str) -> None:
        limit = limiter.config.timeout_s
        began = time.monotonic()
        if not self._moved.wait_for(ready, limit):
            raise ReplayTimeout(
                f"{what} waited {time.monotonic() - began:.1f} s for the limiter: {limiter.describe()}",
                where=f"buffer {self.name}",
                remedy=f"{remedy}, or raise limiter.tolerance or limiter.timeout_s",
            )

    def _supply_stats(self) -> dict[str, Any]:
        """Items, decisions, rows by kind, lifecycle."""
        items = self._stored.items.values()
        decisions = {split: self._count("decision", split) for split in SPLITS}
        return {
            "items": len(items),
            "held_out_items": sum(item.split == "held_out" for item in items),
            "bytes": sum(item.length + 1 for item in items) * self.row_bytes,
            "decisions": sum(decisions.values()),
            "train_decisions": decisions["train"],
            "held_out_decisions": decisions["held_out"],
            "train_successes": self._count("success", "train"),
            "held_out_successes": self._count("success", "held_out"),
            "uses_per_sample": self._lifecycle.uses_per_sample(),
            "lifecycle": self._lifecycle.counts(),
        }

    def _supply_state(self) -> dict[str, Any]:
        """Open leases are written as buffered."""
        return {
            "generator": self._generator.bit_generator.state,
            "lifecycle": self._lifecycle.state(),
            "traffic": asdict(self._traffic),
            "limiter": None if self._limiter is None else self._limiter.state(),
        }

    def _load_supply(self, state: dict[str, Any]) -> None:
        self._generator.bit_generator.state = state["generator"]
        self._lifecycle.load(state["lifecycle"])
        self._traffic = Traffic(**state["traffic"])
        if self._limiter is not None and state["limiter"] is not None:
            self._limiter.load(state["limiter"])
