"""Memory of a replay buffer: columns over a ring of rows, and sets of rows that are drawn from in constant time."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.columns import Arrays, Column, columns, holds_frames
from buffers.records import RecordSpec
from buffers.spill import SpilledColumn
from configs.errors import ReplayError

Rows = NDArray[np.int64]

FREE = -1
_BOOKKEEPING = {"item": np.int64, "start": np.int32, "length": np.int32}


def row_bytes(spec: RecordSpec) -> int:
    """Bytes of one row in a RowStore of ``spec``."""
    own = sum(np.dtype(dtype).itemsize for dtype in _BOOKKEEPING.values())
    return own + sum(column.row_bytes for column in columns(spec))


def frame_bytes(spec: RecordSpec) -> int:
    """Of them in frames."""
    return sum(column.row_bytes for column in columns(spec) if holds_frames(column.name))


@dataclass(frozen=True)
class Spill:
    """Which frames lie on disk."""

    folder: Path
    rows_in_memory: int


class RowStore:
    """Preallocated columns. A record lies in T + 1 rows in a row and never wraps around the end.

    Pages that were never written cost no memory (numpy allocates lazily).
    """

    def __init__(self, spec: RecordSpec, capacity: int, spill: Spill | None = None) -> None:
        self.capacity = capacity
        self.head = 0
        """Row after the newest record: where the next one is tried."""
        self.columns = columns(spec)
        self.arrays: dict[str, NDArray[Any] | SpilledColumn] = {
            column.name: _allocate(column, capacity, spill) for column in self.columns
        }
        self.item: Rows = np.full(capacity, FREE, np.int64)
        """Record that a row belongs to."""
        self.start: NDArray[np.int32] = np.empty(capacity, np.int32)
        """First row of that record."""
        self.length: NDArray[np.int32] = np.empty(capacity, np.int32)
        """Decisions of that record."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, touched or not, in memory and on disk."""
        return sum(a.nbytes for a in [*self.arrays.values(), self.item, self.start, self.length])

    @property
    def spilled_bytes(self) -> int:
        """Of them on disk."""
        spilled = [a for a in self.arrays.values() if isinstance(a, SpilledColumn)]
        return sum(a.nbytes - a.memory_bytes for a in spilled)

    def plan(self, rows: int, pinned: AbstractSet[int]) -> tuple[int, list[int]]:
        """Where a record of ``rows`` rows goes, and which records (the oldest) must leave first; changes nothing.

        ``pinned`` records stay and are stepped over. ReplayError when no room can be made.
        """
        start, laps = self.head, 0
        victims: dict[int, None] = {}
        while True:
            end = start + rows
            occupants = self._items(start, min(end, self.capacity))
            blocking = [item for item in occupants if item in pinned]
            victims |= dict.fromkeys(item for item in occupants if item not in pinned)
            if end > self.capacity:
                start, laps = 0, laps + 1
                if laps == 2:
                    break
            elif blocking:
                last = max(int(np.flatnonzero(self.item[start:end] == item)[-1]) for item in blocking)
                # The rest of the last blocking record may lie beyond ``end``.
                first_row = int(self.start[start + last])
                start = first_row + int(self.length[first_row]) + 1
            else:
                return start, list(victims)
        raise ReplayError(
            f"no room for {rows} rows: leased records fill the buffer",
            where="replay buffer",
            remedy="commit or release leases, or raise max_bytes",
        )

    def write(self, item: int, start: int, arrays: Arrays) -> None:
        """Copy a record's columns into rows ``start`` and on, which must be free."""
        length = len(arrays["tokens"])
        end = start + length + 1
        assert end <= self.capacity
        assert (self.item[start:end] == FREE).all()
        for column in self.columns:
            target = self.arrays[column.name]
            if column.observed:
                target[start:end] = arrays[column.name]
            else:
                target[start : end - 1] = arrays[column.name]
                target[end - 1] = 0
        self.claim(item, start, length)
        self.head = end

    def claim(self, item: int, start: int, length: int) -> None:
        """The rows at ``start`` belong to a record of ``length`` decisions."""
        end = start + length + 1
        self.item[start:end] = item
        self.start[start:end] = start
        self.length[start:end] = length

    def clear(self) -> None:
        """Forget every record."""
        self.item[:] = FREE
        self.head = 0

    def free(self, start: int, length: int) -> None:
        """Forget the record of ``length`` decisions at ``start``."""
        self.item[start : start + length + 1] = FREE

    def read(self, start: int, length: int) -> Arrays:
        """Copies of a record's columns."""
        return {
            c.name: self.arrays[c.name][start : start + length + int(c.observed)].copy() for c in self.columns
        }

    def _items(self, start: int, end: int) -> list[int]:
        found = np.unique(self.item[start:end])
        return [int(item) for item in found if item != FREE]


def _allocate(column: Column, capacity: int, spill: Spill | None) -> NDArray[Any] | SpilledColumn:
    if spill is None or not holds_frames(column.name):
        return np.empty((capacity, *column.shape), column.dtype)
    return SpilledColumn(
        capacity, column.shape, column.dtype, in_memory=spill.rows_in_memory, folder=spill.folder
    )


class RowSet:
    """A set of rows with uniform draws, insertion and removal in constant time per row."""

    BYTES_PER_ROW = 8

    def __init__(self, capacity: int) -> None:
        self._rows = np.empty(capacity, np.int32)
        self._position = np.empty(capacity, np.int32)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self._rows.nbytes + self._position.nbytes

    def add(self, rows: Rows) -> None:
        """Insert rows that are not in the set."""
        end = self._size + len(rows)
        self._rows[self._size : end] = rows
        self._position[rows] = np.arange(self._size, end)
        self._size = end

    def remove(self, rows: Rows) -> None:
        """Remove rows that are in the set; the last ones fill the holes."""
        size = self._size - len(rows)
        holes = self._position[rows]
        self._position[rows] = FREE
        tail = self._rows[size : self._size]
        moved = tail[self._position[tail] != FREE]
        holes = holes[holes < size]
        self._rows[holes] = moved
        self._position[moved] = holes
        self._size = size

    def draw(self, count: int, generator: np.random.Generator) -> Rows:
        """``count`` rows, uniform, with replacement. The set must not be empty."""
        assert self._size
        drawn: NDArray[np.int64] = self._rows[generator.integers(self._size, size=count)].astype(np.int64)
        return drawn

    def state(self) -> NDArray[Any]:
        """The rows in their order."""
        return self._rows[: self._size].copy()

    def load(self, rows: NDArray[Any]) -> None:
        """Become exactly the set that ``state`` described."""
        self._size = 0
        self.add(rows.astype(np.int64))
