"""The replay buffer on a Reverb server: the server keeps and draws, this process knows what counts.

It keeps the contract of ``buffers.replay`` with these differences. Draws are the server's: no generator makes them
repeatable. ``max_bytes`` is turned into numbers of items, every record taken for the longest. The windows of a leased
record may leave before its lease ends. A server that was started here and dies is started again from its last checkpoint;
the records stored since are lost, counted (``lost_items``) and told.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from buffers.batches import Lease, OutcomeBatch, StartBatch, WindowBatch
from buffers.columns import join_record, split_record
from buffers.gather import gather_records
from buffers.index import SPLITS, Split, is_held_out
from buffers.lending import candidates, choose, expire_stale, make_room
from buffers.limiter import check_limiter
from buffers.records import Record, RecordSpec
from buffers.reverb_draws import Drawn, ReverbDraws
from buffers.reverb_finder import Finder
from buffers.reverb_home import ReverbHome
from buffers.reverb_items import arrays_of, items_of, record_of, store_of_records
from buffers.reverb_ledger import Ledger
from buffers.reverb_process import ServerLost
from buffers.reverb_tables import (
    SERIAL,
    record_capacity,
    stored_row_bytes,
    table_specs,
    whole_columns,
    window_columns,
)
from buffers.samples import Gate, SampleState, Traffic
from buffers.sampling import FIRST_PRIORITY, check_priorities
from buffers.supply import Supply
from configs.errors import CheckpointError, DataError, ReplayError
from configs.replay import PrioritySamplingConfig, ReverbConfig
from configs.system import BufferConfig

log = logging.getLogger(__name__)
T = TypeVar("T")

POP_AT_ONCE = 16
"""Samples taken from the server's queue in one call."""


class ReverbBuffer(Supply):
    """``B_real`` or ``B_img``. Thread-safe. ``modelled``: the models draw from it, so their tables are filled."""

    def __init__(
        self,
        spec: RecordSpec,
        config: BufferConfig,
        reverb: ReverbConfig,
        *,
        seed: int,
        name: str,
        folder: Path | None = None,
        modelled: bool = True,
        keep: int = 2,
    ) -> None:
        """ConfigError when Reverb is not installed, cannot do what ``config`` asks or has no room for one episode."""
        super().__init__(spec, config, name=name)
        self._reverb, self._modelled = reverb, modelled
        self._capacity = record_capacity(spec, config, name=name)
        self.row_bytes = stored_row_bytes(spec)
        if config.limiter is not None:
            check_limiter(
                config.limiter,
                longest=spec.max_decisions,
                capacity=self._capacity * spec.max_decisions,
                where=f"buffers.{name}.limiter",
            )
        self._home = ReverbHome(
            table_specs(spec, config, name=name, modelled=modelled),
            reverb,
            longest=spec.max_decisions + 1,
            folder=folder,
            keep=keep,
        )
        self._ledger = Ledger()
        self._draws = ReverbDraws(spec, reverb, lambda: self._ledger, self._draw, self._require)
        self._generator = np.random.default_rng(seed)
        self._staged: dict[int, Record] = {}
        """Samples taken from the server's queue that were not consumed yet."""
        self._finder = Finder(spec, f"{name}/records")
        self._safe = 0
        """Serial numbers given when the newest checkpoint was written."""
        self._largest_priority = FIRST_PRIORITY
        self._lost = 0

    # Storing

    def append(self, record: Record, sample_id: int | None = None) -> int:
        """Store a copy; see ``MemoryBuffer.append``. Answers when the server has it."""
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
            self._make_place()
            serial = self._remote(lambda: self._write(record, leased=not demonstration))
            if demonstration:
                key = self._lifecycle.reserve_id()
            else:
                key = self._lifecycle.store(sample_id, record.length, version=int(record.version[0]))
                self._traffic.completed += 1
                self._traffic.completed_decisions += record.length
            self._ledger.add(key, serial, record, self._split_of(record))
            self._inserted(record.length)
            if self._home.due():
                self._remote(lambda: self._checkpoint(lasting=False))
        return key

    def _split_of(self, record: Record) -> Split:
        return "held_out" if is_held_out(record.episode_id, self._config.held_out) else "train"

    def _write(self, record: Record, *, leased: bool) -> int:
        """Under a serial number of its own, so that what fails half-way never counts."""
        serial = self._ledger.next_serial()
        draft = Ledger()
        draft.add(0, serial, record, self._split_of(record))
        items = items_of(
            self.spec, self._reverb, self.name, draft.items[0], serial=serial, leased=leased,
            modelled=self._modelled, priority=self._largest_priority,
        )  # fmt: skip
        self._home.link.write(arrays_of(self.spec, record, serial), items)
        return serial

    def _make_place(self) -> None:
        """The oldest records that are not lent leave the ledger, as they leave the server's tables."""
        leased = self._lifecycle.leased_ids()
        free = [key for key in self._ledger.items if key not in leased]
        surplus = len(self._ledger.items) + 1 - self._capacity
        if surplus > len(free):
            raise ReplayError(
                "no room for a record: leased records fill the buffer",
                where="replay buffer",
                remedy="commit or release leases, or raise max_bytes",
            )
        for key in free[: max(0, surplus)]:
            self._forget(key)

    def _forget(self, key: int) -> None:
        """A record counts no longer; as a sample it expires."""
        if self._lifecycle.state_of(key) is SampleState.BUFFERED:
            self._lifecycle.expire([key])
        self._finder.forget(self._ledger.serial(key))
        self._ledger.remove(key)
        self._staged.pop(key, None)

    # The policy learner

    def lease(self, decisions: int, *, prefer_recent: bool = False, gate: Gate | None = None) -> Lease | None:
        """Lend samples; see ``MemoryBuffer.lease``."""
        assert decisions > 0
        with self._lock:
            gate = gate or Gate(oldest=0)
            while (ids := self._choose(decisions, gate, prefer_recent=prefer_recent)) is not None:
                # What the server has lost is known only when it is asked: then others are chosen.
                if self._remote(partial(self._stage, ids)):
                    return self._lend(ids, decisions)
            return None

    def _choose(self, decisions: int, gate: Gate, *, prefer_recent: bool) -> list[int] | None:
        self._traffic.dropped += expire_stale(self._ledger, self._lifecycle, gate)
        offered = candidates(self._ledger, self._lifecycle, gate, prefer_recent=prefer_recent)
        if sum(candidate.decisions for candidate in offered) < gate.store:
            return None
        ids = choose(offered, decisions, gate.on_policy)
        if ids is None:
            missing = math.ceil(gate.on_policy * decisions)
            self._traffic.dropped += make_room(self._ledger, self._lifecycle, offered, missing)
        return ids

    def _lend(self, ids: list[int], decisions: int) -> Lease:
        records = [(self._ledger.items[key], self._staged[key]) for key in ids]
        store, placed = store_of_records(self.spec, records)
        traffic, self._traffic = self._traffic, Traffic()
        return Lease(self._lifecycle.lease(ids, asked=decisions), ids, gather_records(store, placed), traffic)

    def _stage(self, ids: list[int]) -> bool:
        """Have these samples' records here. False when one was lost; it has expired then."""
        waiting = self._home.link.info()[f"{self.name}/samples"].current_size
        while any(key not in self._staged for key in ids if key in self._ledger.items) and waiting:
            count = min(waiting, POP_AT_ONCE)
            for sampled in self._home.link.sample(f"{self.name}/samples", count):
                self._take(sampled)
            waiting -= count
        for key in ids:
            if key not in self._ledger.items:
                return False
            if key not in self._staged:
                record = self._find(key)
                if record is None:
                    return False
                self._staged[key] = record
        return True

    def _take(self, sampled: Any) -> None:
        key = self._ledger.find(self._serial_of(sampled, whole=True))
        if key is not None and self._lifecycle.state_of(key) is SampleState.BUFFERED:
            self._staged[key] = record_of(self.spec, self._ledger.items[key], sampled)

    def commit(self, lease_id: int) -> None:
        """The learner trained on the lease: one use more. ReplayError when the lease is not open."""
        with self._lock:
            for key in self._lifecycle.commit(lease_id):
                self._staged.pop(key, None)

    def release(self, lease_id: int) -> None:
        """The learner did not train on the lease. ReplayError when it is not open."""
        with self._lock:
            self._lifecycle.release(lease_id)

    # The models

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
        """See ``MemoryBuffer.windows``; ``generator`` decides only where a window longer than the stored ones begins."""
        assert history >= 1
        with self._lock:
            if split == "train":
                self._await_sample(batch)
            rng = self._rng(generator)
            draw = self._draws.windows
            return self._remote(lambda: draw(batch, history, steps, split, rng, first=episode_start))

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
        """See ``MemoryBuffer.starts``."""
        assert history >= 1
        assert 0 <= first <= batch
        with self._lock:
            rng = self._rng(generator)
            draw = self._draws.starts
            return self._remote(lambda: draw(batch, history, horizon, split, rng, recent=recent, first=first))

    def outcomes(
        self,
        batch: int,
        *,
        split: Split = "train",
        balance: bool = True,
        generator: np.random.Generator | None = None,
    ) -> OutcomeBatch:
        """See ``MemoryBuffer.outcomes``."""
        with self._lock:
            rng = self._rng(generator)
            return self._remote(lambda: self._draws.outcomes(batch, split, rng, balance=balance))

    def prioritise(
        self, ids: NDArray[np.int64], t: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> int:
        """New priorities of windows that were drawn lately; see ``MemoryBuffer.prioritise``."""
        check_priorities(priorities, where=f"buffer {self.name}")
        if not isinstance(self._config.sampling, PrioritySamplingConfig):
            raise ReplayError(
                "this buffer does not draw by priority",
                where="replay buffer",
                remedy="set its sampling to priority (sampling.kind=priority)",
            )
        with self._lock:
            changes: dict[Split, dict[int, float]] = {split: {} for split in SPLITS}
            for key, decision, priority in zip(ids.tolist(), t.tolist(), priorities.tolist(), strict=True):
                item, known = self._ledger.items.get(key), self._draws.key(key, decision)
                if item is not None and known is not None:
                    changes[item.split][known] = priority
            for split, chosen in changes.items():
                if chosen:
                    self._home.link.mutate(f"{self.name}/decision/{split}", chosen)
                    self._largest_priority = max(self._largest_priority, *chosen.values())
            return sum(len(chosen) for chosen in changes.values())

    def _draw(self, table: str, count: int) -> Drawn:
        """Items that still count; others are deleted on the way."""
        name = f"{self.name}/{table}"
        found: Drawn = []
        while len(found) < count:
            gone = []
            for sampled in self._home.link.sample(name, count - len(found)):
                key = self._ledger.find(self._serial_of(sampled, whole=table.startswith("episodes")))
                if key is None:
                    gone.append(sampled[0].key)
                else:
                    found.append((self._ledger.items[key], sampled))
            if gone:
                self._home.link.mutate(name, {}, gone)
        return found

    def _serial_of(self, sampled: Any, *, whole: bool) -> int:
        names = whole_columns(self.spec) if whole else window_columns(self.spec)
        return int(sampled[1][names.index(SERIAL)][0])

    def _rng(self, generator: np.random.Generator | None) -> np.random.Generator:
        return self._generator if generator is None else generator

    # Whole records

    def ids(self, split: Split | None = None) -> list[int]:
        """Stored records, oldest first."""
        with self._lock:
            return [item.id for item in self._ledger.items.values() if split in (None, item.split)]

    def get(self, key: int) -> Record:
        """A copy of a stored record; ReplayError when it is not (or no longer) stored."""
        with self._lock:
            record = self._require(key)
            arrays, facts = split_record(record)
            return join_record({name: array.copy() for name, array in arrays.items()}, facts)

    def _require(self, key: int) -> Record:
        record = self._remote(lambda: self._find(key))
        if record is None:
            raise ReplayError(
                f"record {key} is not stored",
                where=f"buffer {self.name}",
                remedy="it may have been evicted",
            )
        return record

    def _find(self, key: int) -> Record | None:
        if key not in self._ledger.items:
            return None
        if key in self._staged:
            return self._staged[key]
        record = self._finder.find(key, self._ledger, self._home.link)
        if record is None:
            self._lose([key])
        return record

    def episodes(self, split: Split | None = None, *, limit: int | None = None) -> list[Record]:
        """Copies of the ``limit`` newest records (all by default), oldest first."""
        with self._lock:
            keys = self.ids(split)
            newest = keys if limit is None else keys[max(0, len(keys) - limit) :]
            # Newest first: in this order the server tells them without being asked twice.
            return [self.get(key) for key in reversed(newest)][::-1]

    # The run

    def stats(self) -> dict[str, Any]:
        """See ``MemoryBuffer.stats``; bytes are those before the server compresses them."""
        with self._lock:
            count = self._ledger.count
            decisions = {split: count("decision", split) for split in SPLITS}
            return {
                "items": len(self._ledger.items),
                "held_out_items": sum(item.split == "held_out" for item in self._ledger.items.values()),
                "bytes": self._ledger.rows * self.row_bytes,
                "capacity_bytes": self._capacity * (self.spec.max_decisions + 1) * self.row_bytes,
                "lost_items": self._lost,
                "decisions": sum(decisions.values()),
                "train_decisions": decisions["train"],
                "held_out_decisions": decisions["held_out"],
                "train_successes": count("success", "train"),
                "held_out_successes": count("success", "held_out"),
                "uses_per_sample": self._lifecycle.uses_per_sample(),
                "lifecycle": self._lifecycle.counts(),
            }

    def server_pid(self) -> int | None:
        """Process of the server, if it is this run's."""
        return self._home.pid

    def state(self) -> dict[str, Any]:
        """The ledger, and where the server wrote a checkpoint of the rest; open leases are written as buffered."""
        with self._lock:
            saved = self._remote(lambda: self._checkpoint(lasting=True))
            return {
                "backend": "reverb",
                "spec": self.spec.to_json(),
                "capacity": self._capacity,
                "server": saved,
                "ledger": self._ledger.state(),
                "largest_priority": self._largest_priority,
                "lost": self._lost,
                "generator": self._generator.bit_generator.state,
                **self._supply_state(),
            }

    def load(self, state: dict[str, Any]) -> None:
        """Become the buffer that ``state`` describes; call ``reissue`` unless running samples go on.

        DataError when it is of another RecordSpec, CheckpointError when it is of another capacity or backend, or torn.
        """
        where = f"buffers.{self.name}"
        if state.get("backend") != "reverb":
            raise CheckpointError(
                "the checkpoint is of the memory backend",
                where=where,
                remedy="resume with buffers.backend=memory",
            )
        remedy = "resume with the configuration of the checkpoint"
        RecordSpec.from_json(state["spec"]).require(self.spec, where=where, remedy=remedy)
        if state["capacity"] != self._capacity:
            raise CheckpointError(
                f"checkpoint has room for {state['capacity']} records, this buffer for {self._capacity}",
                where=where,
                remedy="resume with the max_bytes of the checkpoint",
            )
        with self._lock:
            self._home.load(state["server"])
            self._ledger.load(state["ledger"])
            self._finder = Finder(self.spec, f"{self.name}/records")
            self._staged.clear()
            self._safe = self._ledger.written
            self._largest_priority, self._lost = state["largest_priority"], state["lost"]
            self._load_supply(state)
            self._generator.bit_generator.state = state["generator"]

    def close(self) -> None:
        """End the server if it is this run's; the buffer cannot be used any more."""
        with self._lock:
            self._home.close()

    def _checkpoint(self, *, lasting: bool) -> dict[str, Any]:
        saved = self._home.checkpoint(lasting=lasting)
        self._safe = self._ledger.written
        return saved

    def _remote(self, work: Callable[[], T]) -> T:
        """Do it, once more where the server died on the way."""
        try:
            return work()
        except ServerLost as error:
            self._recover(error)
            return work()

    def _recover(self, error: ServerLost) -> None:
        log.warning("buffer %s: %s", self.name, error.what)
        self._home.restart()
        self._finder.forget_keys()
        lost = self._ledger.since(self._safe)
        self._lose(lost)
        log.warning(
            "buffer %s: started a new server from %s; lost %d records stored since, %d are there",
            self.name, "the last checkpoint" if self._safe else "nothing", len(lost), len(self._ledger.items),
        )  # fmt: skip

    def _lose(self, keys: list[int]) -> None:
        """Records that the server no longer has. Leased ones are here: they count until their lease ends."""
        leased = self._lifecycle.leased_ids()
        for key in keys:
            self._lost += 1
            if key not in leased:
                self._forget(key)
