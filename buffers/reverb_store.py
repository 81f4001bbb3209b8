"""Records on a Reverb server: storing, finding, counting, and what happens when the server dies.

``ReverbBuffer`` adds what is lent and drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from buffers.columns import join_record, split_record
from buffers.index import Kind, Split
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
from configs.errors import CheckpointError, ReplayError
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
        self._capacity = record_capacity(spec, config, name=name)
        super().__init__(
            spec, config, seed=seed, name=name, most_decisions=self._capacity * spec.max_decisions
        )
        self._reverb, self._modelled = reverb, modelled
        self.row_bytes = stored_row_bytes(spec)
        self._home = ReverbHome(
            table_specs(spec, config, name=name, modelled=modelled),
            reverb,
            longest=spec.max_decisions + 1,
            folder=folder,
            keep=keep,
        )
        self._ledger = Ledger()
        self._staged: dict[int, Record] = {}
        """Samples taken from the server's queue that were not consumed yet."""
        self._finder = Finder(spec, f"{name}/records")
        self._safe = 0
        """Serial numbers given when the newest checkpoint was written."""
        self._largest_priority = FIRST_PRIORITY
        self._lost = 0
        self._deaths: list[str] = []
        """How each server ended that was replaced by another."""

    # Storing

    @property
    def _stored(self) -> Ledger:
        return self._ledger

    def _place(self, record: Record) -> int:
        """Its serial number, once the server has it."""
        self._make_place()
        return self._remote(lambda: self._write(record))

    def _keep(self, key: int, place: int, record: Record, split: Split) -> None:
        self._ledger.add(key, place, record, split)
        if self._home.due():
            self._remote(lambda: self._checkpoint(lasting=False))

    def _count(self, kind: Kind, split: Split) -> int:
        return self._ledger.count(kind, split)

    def _write(self, record: Record) -> int:
        """Under a serial number of its own, so that what fails half-way never counts."""
        serial = self._ledger.next_serial()
        draft = Ledger()
        draft.add(0, serial, record, self._split_of(record))
        items = items_of(
            self.spec, self._reverb, self.name, draft.items[0], serial=serial,
            leased=record.source != "demonstration", modelled=self._modelled, priority=self._largest_priority,
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
            return {
                **self._supply_stats(),
                "capacity_bytes": self._capacity * (self.spec.max_decisions + 1) * self.row_bytes,
                "lost_items": self._lost,
                "server_deaths": list(self._deaths),
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
            self._home.load(state["server"], {f"{self.name}/records": len(state["ledger"]["items"])})
            self._ledger.load(state["ledger"])
            self._finder = Finder(self.spec, f"{self.name}/records")
            self._staged.clear()
            self._safe = self._ledger.written
            self._largest_priority, self._lost = state["largest_priority"], state["lost"]
            self._load_supply(state)

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
        self._home.restart(error)
        self._deaths.append(error.what)
        self._finder.forget_keys()
        lost = self._ledger.since(self._safe)
        self._lose(lost)
        log.debug(
            "buffer %s: %s; lost %d records, %d are there", self.name, error.what, len(lost), len(self.ids())
        )

    def _lose(self, keys: list[int]) -> None:
        """Records that the server no longer has. Leased ones are here: they count until their lease ends."""
        leased = self._lifecycle.leased_ids()
        for key in keys:
            self._lost += 1
            if key not in leased:
                self._forget(key)
