"""The replay buffer in memory: a ring of rows, the lifecycle of its samples, and vectorised draws.

Rows, not records, are stored side by side, so a draw costs the same from a thousand records as from a million.
Arguments and results are plain dataclasses and arrays: the buffer works the same behind a remote proxy. There, leave
``generator`` at None: a remote copy of the caller's generator would not advance the caller's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.batches import Lease, OutcomeBatch, StartBatch, WindowBatch
from buffers.gather import gather_outcomes, gather_records, gather_starts, gather_windows
from buffers.index import SPLITS, Split, is_held_out
from buffers.lending import candidates, choose, expire_stale, make_room
from buffers.limiter import check_limiter
from buffers.records import Record, RecordSpec
from buffers.samples import Admitted, Gate, SampleState, Stock, Traffic
from buffers.sampling import check_priorities
from buffers.shelf import Shelf, bytes_per_row, plan_spill
from buffers.spill import spill_folder
from buffers.supply import Supply
from configs.errors import ConfigError, DataError, ReplayError
from configs.system import BufferConfig

__all__ = ["Admitted", "Lease", "MemoryBuffer", "OutcomeBatch", "StartBatch", "Stock", "WindowBatch"]


class MemoryBuffer(Supply):
    """``B_real`` or ``B_img``. Thread-safe. Oldest records leave when room is needed, leased ones never.

    A record given without a ``sample_id`` is a sample that was never admitted. Demonstrations are no samples: the policy
    learner never gets them, the models do.
    """

    def __init__(
        self, spec: RecordSpec, config: BufferConfig, *, seed: int, name: str, spill_dir: str | None = None
    ) -> None:
        """ConfigError when ``config.max_bytes`` has no room for one episode of ``spec.max_decisions``, when
        ``config.memory_bytes`` has none for what never leaves memory, or when the limiter could only wait. ResourceError
        when frames cannot spill into ``spill_dir``.
        """
        super().__init__(spec, config, name=name)
        self.row_bytes = bytes_per_row(spec, config.sampling)
        """What one row costs; a record of T decisions takes T + 1."""
        capacity = config.max_bytes // self.row_bytes
        longest = spec.max_decisions + 1
        if capacity < longest:
            raise ConfigError(
                f"max_bytes={config.max_bytes} has no room for one episode",
                where=f"buffers.{name}.max_bytes",
                remedy=f"give at least {longest * self.row_bytes}",
            )
        if config.limiter is not None:
            check_limiter(
                config.limiter,
                longest=spec.max_decisions,
                capacity=capacity * spec.max_decisions // longest,
                where=f"buffers.{name}.limiter",
            )
        spill = plan_spill(spec, config, capacity, folder=spill_folder(spill_dir), name=name)
        self._shelf = Shelf(spec, capacity, config.sampling, spill)
        self._generator = np.random.default_rng(seed)

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
            self._await_insert(record.length)
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
            self._inserted(record.length)
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
        """``batch`` windows, their start decisions drawn by the buffer's sampling (``episode_start``: uniform over decision
        0 of episodes).

        Those of the train split wait for the limiter. ReplayError when the split is empty. Without ``generator`` the
        buffer's own is used.
        """
        assert history >= 1
        with self._lock:
            if split == "train":
                self._await_sample(batch)
            rng, probability = self._rng(generator), None
            if episode_start:
                rows = self._shelf.index.draw("first", split, batch, rng)
            else:
                rows, probability = self._shelf.sampling.draw(split, batch, rng)
            windows = gather_windows(self._shelf.rows, self._shelf.items, rows, history, steps)
            windows.probability = probability
            return windows

    def prioritise(
        self, ids: NDArray[np.int64], t: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> int:
        """New priorities of the windows at decisions ``t`` of records ``ids``, all ``[B]``; how many were still stored.

        Of a window that is named twice the last priority counts. DataError for a priority that is negative or not finite
        (then none changes), ReplayError where the buffer does not draw by priority.
        """
        check_priorities(priorities, where=f"buffer {self.name}")
        with self._lock:
            return self._shelf.prioritise(ids, t, priorities)

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
                "lost_items": 0,
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
                "generator": self._generator.bit_generator.state,
                **self._supply_state(),
            }

    def load(self, state: dict[str, Any]) -> None:
        """Become the buffer that ``state`` describes; call ``reissue`` unless running samples go on.

        DataError when it is of another RecordSpec, CheckpointError when it is of another capacity.
        """
        with self._lock:
            self._shelf.load(state["shelf"], where=f"buffers.{self.name}")
            self._load_supply(state)
            self._generator.bit_generator.state = state["generator"]

    def close(self) -> None:
        """Free the memory; the buffer cannot be used any more."""
        with self._lock:
            self._shelf = Shelf(self.spec, 0)
