"""Stored records: where each lies in the rows, what is known of it, and which of its rows can be drawn."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.columns import Facts, join_record, split_record
from buffers.index import SPLITS, RowIndex, Split
from buffers.records import Record, RecordSpec
from buffers.rows import Rows, RowStore, Spill, frame_bytes, row_bytes
from buffers.sampling import ROW_BYTES, make_sampling
from buffers.start_states import INDEXED, choose_starts, newest_items, plan_starts
from configs.errors import CheckpointError, ConfigError
from configs.replay import SamplingConfig, UniformSamplingConfig
from configs.starts import StartsConfig
from configs.system import BufferConfig

ITEM_BYTES = 1024
"""Upper estimate of the Python objects of one record (facts, lifecycle row, dictionary slots)."""


UNIFORM = UniformSamplingConfig()


def bytes_per_row(spec: RecordSpec, sampling: SamplingConfig = UNIFORM) -> int:
    """All that one row costs. A record has two rows or more, so half of its Python objects is charged to each."""
    return row_bytes(spec) + RowIndex.BYTES_PER_ROW + ROW_BYTES[type(sampling)] + ITEM_BYTES // 2


def plan_spill(
    spec: RecordSpec, config: BufferConfig, capacity: int, *, folder: Path, name: str
) -> Spill | None:
    """Which of ``capacity`` rows have their frames on disk, so that the rest fits into ``config.memory_bytes``; None when
    all fit. ConfigError when not even what is no frame does.
    """
    if config.memory_bytes is None:
        return None
    frames = frame_bytes(spec)
    always = capacity * (bytes_per_row(spec, config.sampling) - frames)
    if always > config.memory_bytes:
        raise ConfigError(
            f"memory_bytes={config.memory_bytes} is less than the {always} bytes that never leave memory",
            where=f"buffers.{name}.memory_bytes",
            remedy=f"give at least {always}, or lower buffers.{name}.max_bytes",
        )
    in_memory = (config.memory_bytes - always) // frames
    return Spill(folder, in_memory) if in_memory < capacity else None


@dataclass(slots=True)
class Item:
    """A stored record."""

    id: int
    start: int
    """First row."""
    length: int
    """Decisions."""
    newest_version: int
    """Policy version of the last decision."""
    split: Split
    facts: Facts
    oldest_version: int
    """Policy version of the first decision that was not cut off."""
    cut: int = 0
    """First decisions that the policy learner no longer gets; the models still do."""

    def to_json(self) -> dict[str, Any]:
        """As JSON types; ``from_json`` is the inverse."""
        return {
            "id": self.id,
            "start": self.start,
            "length": self.length,
            "newest_version": self.newest_version,
            "split": self.split,
            "facts": self.facts.to_json(),
            "oldest_version": self.oldest_version,
            "cut": self.cut,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Item:
        """Read what ``to_json`` wrote."""
        return Item(**(data | {"facts": Facts(**data["facts"])}))


class Shelf:
    """Records in a RowStore, oldest first."""

    def __init__(
        self,
        spec: RecordSpec,
        capacity: int,
        sampling: SamplingConfig = UNIFORM,
        spill: Spill | None = None,
    ) -> None:
        self._spec = spec
        self.rows = RowStore(spec, capacity, spill)
        self.index = RowIndex(capacity)
        self.sampling = make_sampling(sampling, self.index, self.rows)
        self._sampling_kind = sampling.kind
        self.items: dict[int, Item] = {}
        """In the order of storing."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, touched or not."""
        return self.rows.nbytes + self.index.nbytes

    @property
    def used_rows(self) -> int:
        """Rows that hold records."""
        return sum(item.length + 1 for item in self.items.values())

    def plan(self, decisions: int, pinned: AbstractSet[int]) -> tuple[int, list[int]]:
        """Where a record goes and which must leave first: see ``RowStore.plan``."""
        return self.rows.plan(decisions + 1, pinned)

    def put(self, key: int, start: int, record: Record, split: Split) -> None:
        """Copy ``record`` into free rows at ``start``."""
        arrays, facts = split_record(record)
        self.rows.write(key, start, arrays)
        versions = record.version
        self.items[key] = Item(
            key, start, record.length, int(versions[-1]), split, facts, oldest_version=int(versions[0])
        )
        self.index.add(split, start, record.length, success=facts.success, is_first=facts.is_first)
        self.sampling.add(split, np.arange(start, start + record.length))

    def remove(self, key: int) -> None:
        """Forget a record."""
        item = self.items.pop(key)
        facts = item.facts
        self.index.remove(item.split, item.start, item.length, success=facts.success, is_first=facts.is_first)
        self.sampling.remove(item.split, np.arange(item.start, item.start + item.length))
        self.rows.free(item.start, item.length)

    def made_since(self, item: Item, version: int) -> int:
        """Decisions of ``item`` that ``version`` or a later one made, those that were cut off left out."""
        if item.newest_version < version:
            return 0
        # Versions never decrease within a record.
        versions = self.rows.arrays["version"][item.start + item.cut : item.start + item.length]
        return len(versions) - int(np.searchsorted(versions, version))

    def cut(self, item: Item, oldest: int) -> int:
        """Cut off the decisions that versions before ``oldest`` made; how many."""
        stale = item.length - item.cut - self.made_since(item, oldest)
        item.cut += stale
        item.oldest_version = int(self.rows.arrays["version"][item.start + item.cut])
        return stale

    def read(self, key: int) -> Record:
        """A copy of a stored record."""
        item = self.items[key]
        return join_record(self.rows.read(item.start, item.length), item.facts)

    def draw_starts(
        self, batch: int, mix: StartsConfig, split: Split, generator: np.random.Generator
    ) -> tuple[Rows, dict[str, int]]:
        """``batch`` decisions to imagine from, ordered by kind, and how many are of each."""
        newest = newest_items(self.items, split, mix)
        counts = plan_starts(mix, newest, batch, any_first=self.index.count("first", split) > 0)
        rows = []
        for kind, count in counts.items():
            if kind in INDEXED:
                rows.append(self.index.draw(INDEXED[kind], split, count, generator))
                continue
            choice = choose_starts(newest, kind, mix, count, generator)
            rows.append(np.array([item.start for item in choice.items], np.int64) + choice.t)
        return np.concatenate(rows), counts

    def prioritise(self, ids: Rows, t: Rows, priorities: NDArray[np.float64]) -> int:
        """See ``MemoryBuffer.prioritise``."""
        found: dict[Split, dict[int, float]] = {split: {} for split in SPLITS}
        for key, decision, priority in zip(ids.tolist(), t.tolist(), priorities.tolist(), strict=True):
            item = self.items.get(key)
            if item is not None and 0 <= decision < item.length:
                found[item.split][item.start + decision] = priority
        for split, chosen in found.items():
            rows = np.fromiter(chosen.keys(), np.int64, len(chosen))
            self.sampling.prioritise(split, rows, np.fromiter(chosen.values(), np.float64, len(chosen)))
        return sum(len(chosen) for chosen in found.values())

    def state(self) -> dict[str, Any]:
        """Arrays and JSON types from which ``load`` continues exactly, row for row."""
        used = self._used()
        return {
            "spec": self._spec.to_json(),
            "capacity": self.rows.capacity,
            "head": self.rows.head,
            "items": [item.to_json() for item in self.items.values()],
            "columns": {name: array[used] for name, array in self.rows.arrays.items()},
            "index": self.index.state(),
            "sampling": {"kind": self._sampling_kind, **self.sampling.state()},
        }

    def load(self, state: dict[str, Any], *, where: str) -> None:
        """Become the shelf that ``state`` describes.

        DataError when it is of another RecordSpec, CheckpointError when it is of another capacity; then nothing
        changes.
        """
        RecordSpec.from_json(state["spec"]).require(
            self._spec, where=where, remedy="resume with the configuration of the checkpoint"
        )
        if state["capacity"] != self.rows.capacity:
            raise CheckpointError(
                f"checkpoint has room for {state['capacity']} rows, this buffer for {self.rows.capacity}",
                where=where,
                remedy="resume with the max_bytes of the checkpoint",
            )
        if state["sampling"]["kind"] != self._sampling_kind:
            raise CheckpointError(
                f"checkpoint draws by {state['sampling']['kind']}, this buffer by {self._sampling_kind}",
                where=where,
                remedy="resume with the sampling of the checkpoint",
            )
        items = [Item.from_json(data) for data in state["items"]]
        self.items = {item.id: item for item in items}
        self.rows.clear()
        for item in items:
            self.rows.claim(item.id, item.start, item.length)
        used = self._used()
        for name, array in self.rows.arrays.items():
            array[used] = state["columns"][name]
        self.rows.head = state["head"]
        self.index.load(state["index"])
        self.sampling.load(state["sampling"])

    def _used(self) -> Rows:
        spans = [np.arange(item.start, item.start + item.length + 1) for item in self.items.values()]
        return np.concatenate(spans) if spans else np.empty(0, np.int64)
