"""What the models draw from a Reverb server: windows, starts, outcomes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from buffers.batches import OutcomeBatch, StartBatch, WindowBatch
from buffers.gather import gather_outcomes, gather_starts, gather_windows
from buffers.index import Kind, Split
from buffers.records import Record, RecordSpec
from buffers.reverb_items import record_of, store_of_records, store_of_windows
from buffers.reverb_ledger import Ledger
from buffers.reverb_link import Sampled
from buffers.rows import Rows, RowStore
from buffers.shelf import Item
from buffers.start_states import INDEXED, Choice, choose_starts, newest_items, plan_starts
from configs.replay import ReverbConfig
from configs.starts import StartsConfig

Drawn = list[tuple[Item, Sampled]]
DRAWN_KEYS = 100_000
"""Windows drawn last whose priorities can still be changed: only a draw tells Reverb's key of an item."""


class ReverbDraws:
    """Draws of one buffer. ``draw`` gives items of a table that still count; ``fetch`` a whole record; ``by_priority``:
    whether windows are drawn by priorities, which are then told and may be changed.
    """

    def __init__(
        self,
        spec: RecordSpec,
        reach: ReverbConfig,
        ledger: Callable[[], Ledger],
        draw: Callable[[str, int], Drawn],
        fetch: Callable[[int], Record],
        *,
        by_priority: bool,
    ) -> None:
        self._spec, self._reach = spec, reach
        self._ledger, self._draw, self._fetch = ledger, draw, fetch
        self._by_priority = by_priority
        self._keys: OrderedDict[tuple[int, int], int] = OrderedDict()

    def windows(
        self,
        batch: int,
        history: int,
        steps: int,
        split: Split,
        generator: np.random.Generator,
        *,
        first: bool,
    ) -> WindowBatch:
        """See ``ReplayBuffer.windows``."""
        items = self._ledger().items
        if history > self._reach.history or steps > self._reach.steps:
            store, rows = self._from_episodes(batch, split, generator, first=first)
            return gather_windows(store, items, rows, history, steps)
        drawn = self._of_kind("first" if first else "decision", split, batch)
        store, rows = store_of_windows(self._spec, drawn)
        windows = gather_windows(store, items, rows, history, steps)
        if self._by_priority and not first:
            self._remember(windows.ids, windows.t, drawn)
            windows.probability = np.array([info.probability for _, (info, _) in drawn])
        return windows

    def starts(
        self,
        batch: int,
        history: int,
        horizon: int,
        split: Split,
        generator: np.random.Generator,
        mix: StartsConfig,
    ) -> StartBatch:
        """See ``ReplayBuffer.starts``."""
        ledger = self._ledger()
        newest = newest_items(ledger.items, split, mix)
        counts = plan_starts(mix, newest, batch, any_first=ledger.count("first", split) > 0)
        parts = []
        for kind, count in counts.items():
            if kind in INDEXED:
                parts.append(self._places(count, history, split, generator, first=INDEXED[kind] == "first"))
            else:
                parts.append(self._chosen(choose_starts(newest, kind, mix, count, generator)))
        items = self._ledger().items
        starts = _join([gather_starts(store, items, rows, history, horizon) for store, rows in parts])
        starts.kinds = counts
        return starts

    def outcomes(
        self, batch: int, split: Split, generator: np.random.Generator, *, balance: bool
    ) -> OutcomeBatch:
        """See ``ReplayBuffer.outcomes``."""
        ledger = self._ledger()
        successes = batch // 2
        if not balance:
            won, lost = ledger.count("success", split), ledger.count("failure", split)
            successes = int(generator.binomial(batch, won / (won + lost))) if won + lost else 0
        drawn = self._of_kind("success", split, successes) + self._of_kind(
            "failure", split, batch - successes
        )
        store, rows = store_of_windows(self._spec, drawn)
        return gather_outcomes(store, self._ledger().items, rows, successes)

    def key(self, record: int, t: int) -> int | None:
        """Reverb's key of the window at decision ``t``, if it was drawn lately."""
        return self._keys.get((record, t))

    def _remember(self, ids: Rows, t: Rows, drawn: Drawn) -> None:
        for record, decision, (_, (info, _)) in zip(ids.tolist(), t.tolist(), drawn, strict=True):
            self._keys[record, decision] = info.key
        while len(self._keys) > DRAWN_KEYS:
            self._keys.popitem(last=False)

    def _of_kind(self, kind: Kind, split: Split, count: int) -> Drawn:
        if not count:
            return []
        self._ledger().require(kind, split)
        return self._draw(f"{kind}/{split}", count)

    def _places(
        self, count: int, history: int, split: Split, generator: np.random.Generator, *, first: bool
    ) -> tuple[RowStore, Rows]:
        if history > self._reach.history:
            return self._from_episodes(count, split, generator, first=first)
        return store_of_windows(self._spec, self._of_kind("first" if first else "decision", split, count))

    def _from_episodes(
        self, count: int, split: Split, generator: np.random.Generator, *, first: bool
    ) -> tuple[RowStore, Rows]:
        """Decisions of whole records, which Reverb draws in proportion to their length."""
        self._ledger().require("first" if first else "decision", split)
        chosen: Drawn = []
        while len(chosen) < count:
            drawn = self._draw(f"episodes/{split}", count - len(chosen))
            if first:
                # Keeping one in as many as it has decisions makes every episode alike again.
                drawn = [d for d in drawn if d[0].facts.is_first and generator.random() * d[0].length < 1]
            chosen += drawn
        store, placed = store_of_records(
            self._spec, [(item, record_of(self._spec, item, sampled)) for item, sampled in chosen]
        )
        begin = np.array([item.start for item in placed], np.int64)
        length = np.array([item.length for item in placed], np.int64)
        return store, begin if first else begin + generator.integers(length)

    def _chosen(self, choice: Choice) -> tuple[RowStore, Rows]:
        records = {item.id: item for item in choice.items}
        store, placed = store_of_records(
            self._spec, [(item, self._fetch(item.id)) for item in records.values()]
        )
        begin = dict(zip(records, (item.start for item in placed), strict=True))
        rows: Rows = np.array([begin[item.id] for item in choice.items], np.int64) + choice.t
        return store, rows


def _join(batches: list[StartBatch]) -> StartBatch:
    if len(batches) == 1:
        return batches[0]
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("proprio", "seeds", "ids", "t", "remaining", "success_within", "demonstration")
    }
    return StartBatch(
        frames={
            camera: np.concatenate([batch.frames[camera] for batch in batches])
            for camera in batches[0].frames
        },
        instructions=[text for batch in batches for text in batch.instructions],
        tasks=[text for batch in batches for text in batch.tasks],
        **joined,
    )
