"""The replay buffer in memory: a ring of rows, the lifecycle of its samples, and vectorised draws.

Rows, not records, are stored side by side, so a draw costs the same from a thousand records as from a million.
Arguments and results are plain dataclasses and arrays: the buffer works the same behind a remote proxy. There, leave
``generator`` at None: a remote copy of the caller's generator would not advance the caller's own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from buffers.batches import Lease, OutcomeBatch, StartBatch, WindowBatch
from buffers.gather import gather_outcomes, gather_records, gather_starts, gather_windows
from buffers.index import SPLITS, Kind, Split, is_held_out
from buffers.lending import candidates, choose, expire_stale, make_room
from buffers.lifecycle import Lifecycle
from buffers.records import Record, RecordSpec
from buffers.samples import Admission, Admitted, Gate, SampleState, Stock, Traffic
from buffers.shelf import Shelf, bytes_per_row
from configs.errors import ConfigError, DataError, ReplayError
from configs.system import BufferConfig

__all__ = ["Admitted", "Lease", "MemoryBuffer", "OutcomeBatch", "StartBatch", "Stock", "WindowBatch"]


class MemoryBuffer:
    """``B_real`` or ``B_img``. Thread-safe. Oldest records leave when room is needed, leased ones never.

    A record given without a ``sample_id`` is a sample that was never admitted. Demonstrations are no samples: the policy
    learner never gets them, the models do.
    """

    def __init__(self, spec: RecordSpec, config: BufferConfig, *, seed: int, name: str) -> None:
        """ConfigError when ``config.max_bytes`` has no room for one episode of ``spec.max_decisions``."""
        self.spec = spec
        self.name = name
        self._config = config
        self.row_bytes = bytes_per_row(spec)
        """What one row costs; a record of T decisions takes T + 1."""
        capacity = config.max_bytes // self.row_bytes
        longest = spec.max_decisions + 1
        if capacity < longest:
            raise ConfigError(
                f"max_bytes={config.max_bytes} has no room for one episode",
                where=f"buffers.{name}.max_bytes",
                remedy=f"give at least {longest * self.row_bytes}",
            )
        self._shelf = Shelf(spec, capacity)
        self._lifecycle = Lifecycle(config.reuse_limit, spec.max_decisions)
        self._generator = np.random.default_rng(seed)
        self._traffic = Traffic()
        self._lock = threading.RLock()

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
        split: Split = "held_out" if is_held_out(record.episode_id, self._config.held_out) else "train"
        with self._lock:
            if sample_id is not None:
                self._lifecycle.check_store(sample_id, record.attempt)
            start, victims = self._shelf.plan(record.length, self._lifecycle.leased_ids())
            for victim in victims:
                self._shelf.remove(victim)
                if self._lifecycle.state_of(victim) is SampleState.BUFFERED:
                    self._lifecycle.expire([victim])
            if demonstration:
                key = self._lifecycle.reserve_id()
            else:
                key = self._lifecycle.store(sample_id, record.length, version=int(record.version[0]))
                self._traffic.completed += 1
                self._traffic.completed_decisions += record.length
            self._shelf.put(key, start, record, split)
        return key

    def lease(self, decisions: int, *, prefer_recent: bool = False, gate: Gate | None = None) -> Lease | None:
        """Lend samples with at least ``decisions`` decisions together, or None when there are too few.

        The least used come first, and the first admitted among those, so that nothing starves; ``prefer_recent``
        takes the last admitted among those. ``gate`` says how old they may be (see ``Gate``).
        """
        assert decisions > 0
        with self._lock:
            gate = gate or Gate(oldest=0)
            self._traffic.dropped += expire_stale(self._shelf, self._lifecycle, gate)
            offered = candidates(self._shelf, self._lifecycle, gate, prefer_recent=prefer_recent)
            if sum(candidate.decisions for candidate in offered) < gate.store:
                return None
            ids = choose(offered, decisions, gate.on_policy)
            if ids is None:
                missing = math.ceil(gate.on_policy * decisions)
                self._traffic.dropped += make_room(self._shelf, self._lifecycle, offered, missing)
                return None
            batch = gather_records(self._shelf.rows, [self._shelf.items[key] for key in ids])
            traffic, self._traffic = self._traffic, Traffic()
            return Lease(self._lifecycle.lease(ids, asked=decisions), ids, batch, traffic)

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

    def available_decisions(self) -> int:
        """Decisions that could be leased now."""
        return self.stock().available

    def stock(self) -> Stock:
        """What the policy learner could get, holds, and may expect."""
        with self._lock:
            return self._lifecycle.stock()

    def windows(
        self,
        batch: int,
        history: int,
        steps: int,
        *,
        split: Split = "train",
        episode_start: bool = False,
        generator: np.random.Generator | None = None,
    ) -> WindowBatch:
        """``batch`` windows with uniform start decisions (``episode_start``: only decision 0 of episodes).

        ReplayError when the split is empty. Without ``generator`` the buffer's own is used.
        """
        assert history >= 1
        with self._lock:
            kind: Kind = "first" if episode_start else "decision"
            rows = self._shelf.index.draw(kind, split, batch, self._rng(generator))
            return gather_windows(self._shelf.rows, self._shelf.items, rows, history, steps)

    def starts(
        self,
        batch: int,
        history: int,
        *,
        horizon: int,
        recent: int | None = None,
        first: int = 0,
        split: Split = "train",
        generator: np.random.Generator | None = None,
    ) -> StartBatch:
        """``batch`` real states: the first ``first`` of them uniform over the starts of all episodes, the rest uniform
        over decisions (of the split's ``recent`` newest records only, if given).

        ReplayError when the split is empty.
        """
        assert history >= 1
        assert 0 <= first <= batch
        with self._lock:
            rng = self._rng(generator)
            begun = self._shelf.index.draw("first", split, first, rng)
            under_way = self._shelf.draw_recent(recent, split, batch - first, rng) if recent else None
            if under_way is None:
                under_way = self._shelf.index.draw("decision", split, batch - first, rng)
            rows = np.concatenate([begun, under_way])
            return gather_starts(self._shelf.rows, self._shelf.items, rows, history, horizon)

    def outcomes(
        self,
        batch: int,
        *,
        split: Split = "train",
        balance: bool = True,
        generator: np.random.Generator | None = None,
    ) -> OutcomeBatch:
        """``batch`` labelled frames: half of them successes with ``balance``, else uniform over frames.

        ReplayError when a kind that is asked for is absent (``stats`` counts them).
        """
        with self._lock:
            rows, successes = self._shelf.index.draw_outcomes(
                split, batch, self._rng(generator), balance=balance
            )
            return gather_outcomes(self._shelf.rows, self._shelf.items, rows, successes)

    def _rng(self, generator: np.random.Generator | None) -> np.random.Generator:
        return self._generator if generator is None else generator

    def ids(self, split: Split | None = None) -> list[int]:
        """Stored records, oldest first."""
        with self._lock:
            return [item.id for item in self._shelf.items.values() if split in (None, item.split)]

    def get(self, key: int) -> Record:
        """A copy of a stored record; ReplayError when it is not (or no longer) stored."""
        with self._lock:
            if key not in self._shelf.items:
                raise ReplayError(
                    f"record {key} is not stored",
                    where=f"buffer {self.name}",
                    remedy="it may have been evicted",
                )
            return self._shelf.read(key)

    def episodes(self, split: Split | None = None, *, limit: int | None = None) -> list[Record]:
        """Copies of the ``limit`` newest records (all by default), oldest first."""
        with self._lock:
            keys = self.ids(split)
            return [self.get(key) for key in (keys if limit is None else keys[max(0, len(keys) - limit) :])]

    def stats(self) -> dict[str, Any]:
        """Counts for metrics and for callers that must wait: items, bytes, decisions, rows by kind, lifecycle."""
        with self._lock:
            count = self._shelf.index.count
            decisions = {split: count("decision", split) for split in SPLITS}
            return {
                "items": len(self._shelf.items),
                "held_out_items": sum(item.split == "held_out" for item in self._shelf.items.values()),
                "bytes": self._shelf.used_rows * self.row_bytes,
                "capacity_bytes": self._shelf.rows.capacity * self.row_bytes,
                "decisions": sum(decisions.values()),
                "train_decisions": decisions["train"],
                "held_out_decisions": decisions["held_out"],
                "train_successes": count("success", "train"),
                "held_out_successes": count("success", "held_out"),
                "uses_per_sample": self._lifecycle.uses_per_sample(),
                "lifecycle": self._lifecycle.counts(),
            }

    def state(self) -> dict[str, Any]:
        """Arrays and JSON types from which ``load`` continues exactly; open leases are written as buffered."""
        with self._lock:
            return {
                "shelf": self._shelf.state(),
                "lifecycle": self._lifecycle.state(),
                "generator": self._generator.bit_generator.state,
                "traffic": asdict(self._traffic),
            }

    def load(self, state: dict[str, Any]) -> None:
        """Become the buffer that ``state`` describes; call ``reissue`` unless running samples go on.

        DataError when it is of another RecordSpec, CheckpointError when it is of another capacity.
        """
        with self._lock:
            self._shelf.load(state["shelf"], where=f"buffers.{self.name}")
            self._lifecycle.load(state["lifecycle"])
            self._generator.bit_generator.state = state["generator"]
            self._traffic = Traffic(**state["traffic"])

    def close(self) -> None:
        """Free the memory; the buffer cannot be used any more."""
        with self._lock:
            self._shelf = Shelf(self.spec, 0)
