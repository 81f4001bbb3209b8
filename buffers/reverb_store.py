"""Records on a Reverb server: storing, finding, counting, and what happens when the server dies.

``ReverbBuffer`` adds what is lent and drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from buffers.columns import join_record, split_record
from buffers.index import SPLITS, Split, is_held_out
from buffers.limiter import check_limiter
from buffers.records import Record, RecordSpec
from buffers.reverb_finder import Finder
from buffers.reverb_home import ReverbHome
from buffers.reverb_items import arrays_of, items_of
from buffers.reverb_ledger import Ledger
from buffers.reverb_process import ServerLost
from buffers.reverb_tables import (
    record_capacity,
    stored_row_bytes,
    table_specs,
)
from buffers.samples import SampleState
from buffers.sampling import FIRST_PRIORITY
from buffers.supply import Supply
from configs.errors import CheckpointError, DataError, ReplayError
from configs.replay import ReverbConfig
from configs.system import BufferConfig

log = logging.getLogger(__name__)
T = TypeVar("T")


class ReverbStore(Supply):
    """Thread-safe. ``modelled``: the models draw from it, so their tables are filled."""

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
