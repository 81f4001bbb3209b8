"""What is known of the records that a Reverb server holds. The server knows only items; this says which still count.

A record is written under a serial number that is never used again. What a draw brings under a number that is not in the
ledger (evicted, half-written, from before a restart) is thrown away and deleted there.
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.columns import split_record
from buffers.index import Kind, Split
from buffers.records import Record
from buffers.shelf import Item
from configs.errors import ReplayError

COUNTER_BITS = 32


class Ledger:
    """Records, oldest first."""

    def __init__(self) -> None:
        self.items: dict[int, Item] = {}
        """``start`` is always 0."""
        self._versions: dict[int, NDArray[np.int32]] = {}
        self._serials: dict[int, int] = {}
        self._by_serial: dict[int, int] = {}
        self._counts: Counter[tuple[Kind, Split]] = Counter()
        self._epoch = secrets.randbits(30)
        self.written = 0
        """Serial numbers given, over all restarts: the order of records."""

    def next_serial(self) -> int:
        """A new one; unique also against those of a run that was continued from an older checkpoint."""
        self.written += 1
        return (self._epoch << COUNTER_BITS) | self.written

    @staticmethod
    def order(serial: int) -> int:
        """Its place in the order of writing."""
        return serial & ((1 << COUNTER_BITS) - 1)

    def add(self, key: int, serial: int, record: Record, split: Split) -> None:
        """A record was written."""
        versions = record.version.copy()
        _, facts = split_record(record)
        self._put(
            Item(key, 0, record.length, int(versions[-1]), split, facts, oldest_version=int(versions[0])),
            serial,
            versions,
        )

    def _put(self, item: Item, serial: int, versions: NDArray[np.int32]) -> None:
        self.items[item.id] = item
        self._versions[item.id] = versions
        self._serials[item.id], self._by_serial[serial] = serial, item.id
        self._counts.update(_counts(item))

    def remove(self, key: int) -> None:
        """It counts no longer."""
        item = self.items.pop(key)
        del self._versions[key]
        del self._by_serial[self._serials.pop(key)]
        self._counts.subtract(_counts(item))

    def serial(self, key: int) -> int:
        """Of a record in the ledger."""
        return self._serials[key]

    def find(self, serial: int) -> int | None:
        """The record of a serial number, if it still counts."""
        return self._by_serial.get(serial)

    def count(self, kind: Kind, split: Split) -> int:
        """Rows of a kind."""
        return self._counts[kind, split]

    def require(self, kind: Kind, split: Split) -> None:
        """ReplayError when there is no row of that kind."""
        if not self.count(kind, split):
            raise ReplayError(
                f"there is no {kind} row in the {split} split",
                where="replay buffer",
                remedy="add such episodes first (held_out sets the held-out share)",
            )

    def since(self, written: int) -> list[int]:
        """Records that were written after ``written`` serial numbers had been given."""
        return [key for key, serial in self._serials.items() if self.order(serial) > written]

    def made_since(self, item: Item, version: int) -> int:
        """Decisions of ``item``, those that were cut off left out, that ``version`` or a later one made."""
        versions = self._versions[item.id][item.cut :]
        return len(versions) - int(np.searchsorted(versions, version))

    def cut(self, item: Item, oldest: int) -> int:
        """Cut off the decisions that versions before ``oldest`` made; how many."""
        stale = item.length - item.cut - self.made_since(item, oldest)
        item.cut += stale
        item.oldest_version = int(self._versions[item.id][item.cut])
        return stale

    def state(self) -> dict[str, Any]:
        """JSON types and arrays."""
        return {
            "written": self.written,
            "items": [item.to_json() for item in self.items.values()],
            "serials": [self._serials[key] for key in self.items],
            "versions": np.concatenate([np.empty(0, np.int32), *self._versions.values()]),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Become the ledger that ``state`` describes, with serial numbers of a new epoch."""
        epoch = self._epoch
        self.__init__()  # type: ignore[misc]
        self._epoch = epoch
        begin = 0
        for data, serial in zip(state["items"], state["serials"], strict=True):
            item = Item.from_json(data)
            self._put(item, serial, state["versions"][begin : begin + item.length].copy())
            begin += item.length
        self.written = state["written"]


def _counts(item: Item) -> dict[tuple[Kind, Split], int]:
    split, success = item.split, int(item.facts.success)
    return {
        ("decision", split): item.length,
        ("first", split): int(item.facts.is_first),
        ("success", split): success,
        ("failure", split): item.length + 1 - success,
    }
