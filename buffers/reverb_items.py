"""Between records and the items of a Reverb server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from buffers.columns import Arrays, columns, join_record, split_record
from buffers.records import Record, RecordSpec
from buffers.reverb_ledger import Ledger
from buffers.reverb_link import NewItem, Sampled
from buffers.reverb_tables import AT, ROW, SERIAL, whole_columns, window_columns
from buffers.rows import Rows, RowStore
from buffers.shelf import Item
from configs.replay import ReverbConfig


def arrays_of(spec: RecordSpec, record: Record, serial: int) -> Arrays:
    """The rows of ``record``, all columns ``[T+1, ...]``: those over decisions end with zeros."""
    arrays, _ = split_record(record)
    rows = record.length + 1
    padded = {
        column.name: arrays[column.name]
        if column.observed
        else np.concatenate([arrays[column.name], np.zeros((1, *column.shape), column.dtype)])
        for column in columns(spec)
    }
    return {**padded, SERIAL: np.full(rows, serial, np.int64), ROW: np.arange(rows, dtype=np.int32)}


def items_of(
    spec: RecordSpec,
    reach: ReverbConfig,
    name: str,
    item: Item,
    *,
    serial: int,
    leased: bool,
    modelled: bool,
    priority: float,
) -> list[NewItem]:
    """Items of a record of ``item.length`` decisions; ``leased``: the policy learner may get it."""
    length, facts = item.length, item.facts
    whole, window = whole_columns(spec), window_columns(spec)
    made = [NewItem(f"{name}/records", float(Ledger.order(serial)), 0, length + 1, 0, whole)]
    if leased:
        made.append(NewItem(f"{name}/samples", 1.0, 0, length + 1, 0, whole))
    if not modelled:
        return made

    def around(kind: str, t: int, weight: float) -> NewItem:
        begin, end = max(0, t - reach.history + 1), min(length, t + reach.steps) + 1
        return NewItem(f"{name}/{kind}/{item.split}", weight, begin, end, t, window)

    def frame(kind: str, row: int) -> NewItem:
        return NewItem(f"{name}/{kind}/{item.split}", 1.0, row, row + 1, row, window)

    made.append(NewItem(f"{name}/episodes/{item.split}", float(length), 0, length + 1, 0, whole))
    made += [around("decision", t, priority) for t in range(length)]
    made += [around("first", 0, 1.0)] if facts.is_first else []
    made += [frame("success", length)] if facts.success else []
    made += [frame("failure", row) for row in range(length + int(not facts.success))]
    return made


def record_of(spec: RecordSpec, item: Item, sampled: Sampled) -> Record:
    """The record in an item that holds a whole one."""
    data = dict(zip(whole_columns(spec), sampled[1], strict=True))
    arrays = {c.name: data[c.name][: item.length + int(c.observed)] for c in columns(spec)}
    return join_record(arrays, item.facts)


def store_of_windows(spec: RecordSpec, drawn: Sequence[tuple[Item, Sampled]]) -> tuple[RowStore, Rows]:
    """The rows of window items side by side, as ``buffers.gather`` reads them, and the row that each is about.

    A window that does not hold its whole record has a first or last row outside of what is there: gathers that stay
    within the reach of the window never get to these.
    """
    names = window_columns(spec)
    datas = [dict(zip(names, sampled[1], strict=True)) for _, sampled in drawn]
    store = RowStore(spec, sum(len(data[ROW]) for data in datas))
    for name in names:
        if name not in (SERIAL, ROW, AT):
            store.arrays[name][:] = np.concatenate([data[name] for data in datas])
    counts = [len(data[ROW]) for data in datas]
    offsets = np.cumsum([0, *counts[:-1]])
    firsts = offsets - np.array([data[ROW][0] for data in datas])
    store.item[:] = np.repeat([item.id for item, _ in drawn], counts)
    store.start[:] = np.repeat(firsts, counts)
    store.length[:] = np.repeat([item.length for item, _ in drawn], counts)
    rows: Rows = firsts + np.array([data[AT][0] for data in datas], np.int64)
    return store, rows


def store_of_records(spec: RecordSpec, records: Sequence[tuple[Item, Record]]) -> tuple[RowStore, list[Item]]:
    """Whole records side by side, and items that say where each begins."""
    store = RowStore(spec, sum(record.length + 1 for _, record in records))
    placed = []
    for item, record in records:
        placed.append(replace(item, start=store.head))
        store.write(item.id, store.head, split_record(record)[0])
    return store, placed
