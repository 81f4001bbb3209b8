"""Batches gathered from rows; no Python loop touches an array.

Row arithmetic: a record's rows are ``start .. start + length``; decision t is row ``start + t``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from buffers.batches import OutcomeBatch, StartBatch, WindowBatch
from buffers.columns import BETWEEN_PREFIX, IMAGE_PREFIX, PROPRIO_BETWEEN, Facts, frames_of, is_between
from buffers.records import Images, RecordBatch
from buffers.rows import Rows, RowStore
from buffers.shelf import Item
from buffers.spill import SpilledColumn


def gather_windows(
    store: RowStore, items: Mapping[int, Item], rows: Rows, history: int, steps: int
) -> WindowBatch:
    """Windows whose first decisions are ``rows`` ``[B]``."""
    start, length = _borders(store, rows)
    offsets = np.arange(steps)
    observed = _clip(rows[:, None] + np.arange(1 - history, steps + 1), start, start + length)
    decided = _clip(rows[:, None] + offsets, start, start + length - 1)
    ids = store.item[rows]
    facts = _facts(items, ids)
    mask = rows[:, None] + offsets < (start + length)[:, None]
    return WindowBatch(
        frames=_frames(store, observed),
        proprio=_spans(store.arrays["proprio"], observed),
        tokens=_spans(store.arrays["tokens"], decided),
        valid=_spans(store.arrays["valid"], decided) & mask[..., None],
        mask=mask,
        success_within=_success_within(facts, start + length - rows, steps),
        instructions=[fact.instruction for fact in facts],
        ids=ids,
        t=rows - start,
        **_between(store, observed),
    )


def gather_starts(
    store: RowStore, items: Mapping[int, Item], rows: Rows, history: int, horizon: int
) -> StartBatch:
    """Start states at the decisions ``rows`` ``[B]``."""
    start, length = _borders(store, rows)
    observed = _clip(rows[:, None] + np.arange(1 - history, 1), start, start + length)
    ids = store.item[rows]
    facts = _facts(items, ids)
    remaining = start + length - rows
    return StartBatch(
        frames=_frames(store, observed),
        proprio=_spans(store.arrays["proprio"], observed),
        instructions=[fact.instruction for fact in facts],
        tasks=[fact.task for fact in facts],
        seeds=np.array([fact.seed for fact in facts], np.int64),
        ids=ids,
        t=rows - start,
        remaining=remaining,
        success_within=_success_within(facts, remaining, horizon),
        demonstration=np.array([fact.source == "demonstration" for fact in facts], np.bool_),
        **_between(store, observed),
    )


def gather_outcomes(store: RowStore, items: Mapping[int, Item], rows: Rows, successes: int) -> OutcomeBatch:
    """Observations ``rows`` ``[B]``, of which the first ``successes`` are successes."""
    return OutcomeBatch(
        frames=_frames(store, rows),
        proprio=store.arrays["proprio"][rows],
        instructions=[fact.instruction for fact in _facts(items, store.item[rows])],
        label=(np.arange(len(rows)) < successes).astype(np.float32),
    )


def gather_records(store: RowStore, items: Sequence[Item]) -> RecordBatch:
    """Records without what was cut off, padded with zeros to the longest."""
    start = np.array([item.start + item.cut for item in items], np.int64)
    lengths = np.array([item.length - item.cut for item in items], np.int64)
    facts = [item.facts for item in items]
    longest = int(lengths.max())
    columns: dict[str, NDArray[Any]] = {}
    for column in (column for column in store.columns if not is_between(column.name)):
        offsets = np.arange(longest + int(column.observed))
        inside = offsets < (lengths + int(column.observed))[:, None]
        padded = store.arrays[column.name][_clip(start[:, None] + offsets, start, start + lengths)]
        padded[~inside] = 0
        columns[column.name] = padded
    images = frames_of(columns, IMAGE_PREFIX)
    rest = {name: array for name, array in columns.items() if not name.startswith(IMAGE_PREFIX)}
    return RecordBatch(
        images=images,
        instructions=[fact.instruction for fact in facts],
        lengths=lengths,
        terminated=np.array([fact.terminated for fact in facts]),
        truncated=np.array([fact.truncated for fact in facts]),
        success=np.array([fact.success for fact in facts]),
        imagined=np.array([fact.source == "imagined" for fact in facts]),
        episode_ids=np.array([fact.episode_id for fact in facts], np.int64),
        **rest,
    )


def _borders(store: RowStore, rows: Rows) -> tuple[Rows, Rows]:
    return store.start[rows].astype(np.int64), store.length[rows].astype(np.int64)


def _clip(rows: Rows, first: Rows, last: Rows) -> Rows:
    return np.clip(rows, first[:, None], last[:, None])


def _spans(array: NDArray[Any] | SpilledColumn, rows: Rows) -> NDArray[Any]:
    """``array[rows]`` for rows ``[B]``, or ``[B, S]`` that never decrease and grow by one at most along S. Where they grow
    all along, as in most windows, they lie side by side and are copied as one: a large array is then looked up in memory once
    and not S times.
    """
    width = rows.shape[-1]
    if isinstance(array, SpilledColumn) or rows.ndim == 1 or not 0 < width <= len(array):
        return array[rows]
    straight = rows[:, -1] - rows[:, 0] == width - 1
    runs = as_strided(
        array,
        (len(array) - width + 1, width, *array.shape[1:]),
        (array.strides[0], *array.strides),
        writeable=False,
    )
    found: NDArray[Any] = runs[np.where(straight, rows[:, 0], 0)]
    bent = np.flatnonzero(~straight)
    if len(bent):
        found[bent] = array[rows[bent]]
    return found


def _frames(store: RowStore, rows: Rows) -> Images:
    return {name: _spans(array, rows) for name, array in frames_of(store.arrays, IMAGE_PREFIX).items()}


def _between(store: RowStore, rows: Rows) -> dict[str, Any]:
    """What lies before each of ``rows``, where it is kept."""
    if PROPRIO_BETWEEN not in store.arrays:
        return {}
    frames = frames_of(store.arrays, BETWEEN_PREFIX)
    return {
        "between": {name: _spans(array, rows) for name, array in frames.items()},
        "proprio_between": _spans(store.arrays[PROPRIO_BETWEEN], rows),
    }


def _facts(items: Mapping[int, Item], ids: Rows) -> list[Facts]:
    return [items[key].facts for key in ids.tolist()]


def _success_within(facts: list[Facts], remaining: Rows, horizon: int) -> NDArray[np.bool_]:
    """A successful record succeeds with its last decision."""
    success = np.array([fact.success for fact in facts], np.bool_)
    within: NDArray[np.bool_] = success[:, None] & (np.arange(horizon + 1) >= remaining[:, None])
    return within
