"""The replay buffer on a Reverb server: the server keeps and draws, this process knows what counts.

It keeps the contract of ``buffers.replay`` with these differences. Draws are the server's: no generator makes them
repeatable. ``max_bytes`` is turned into numbers of items, every record taken for the longest. The windows of a leased
record may leave before its lease ends. A server that was started here and dies is started again from its last checkpoint;
the records stored since are lost, counted (``lost_items``) and told.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.batches import OutcomeBatch, StartBatch, WindowBatch
from buffers.gather import gather_records
from buffers.index import SPLITS, Split
from buffers.records import RecordBatch
from buffers.reverb_draws import Drawn, ReverbDraws
from buffers.reverb_items import record_of, store_of_records
from buffers.reverb_store import ReverbStore
from buffers.reverb_tables import (
    SERIAL,
    whole_columns,
    window_columns,
)
from buffers.samples import SampleState
from buffers.sampling import check_priorities
from buffers.start_states import UNIFORM_STARTS
from configs.errors import ReplayError
from configs.replay import PrioritySamplingConfig
from configs.starts import StartsConfig

POP_AT_ONCE = 16
"""Samples taken from the server's queue in one call."""


class ReverbBuffer(ReverbStore):
    """``B_real`` or ``B_img``. Thread-safe."""

    @cached_property
    def _draws(self) -> ReverbDraws:
        return ReverbDraws(
            self.spec, self._reverb, lambda: self._ledger, self._draw, self._require,
            by_priority=self._by_priority,
        )  # fmt: skip

    # The policy learner

    def _records(self, ids: Sequence[int]) -> RecordBatch | None:
        """What the server has lost is known only when it is asked."""
        self._unstage()
        if not self._remote(lambda: self._stage(ids)):
            return None
        records = [(self._ledger.items[key], self._staged[key]) for key in ids]
        return gather_records(*store_of_records(self.spec, records))

    def _unstage(self) -> None:
        """What ended or left is not needed here any more."""
        needed = (SampleState.BUFFERED, SampleState.LEASED)
        ended = [key for key in self._staged if self._lifecycle.state_of(key) not in needed]
        for key in ended:
            del self._staged[key]

    def _stage(self, ids: Sequence[int]) -> bool:
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
        mix: StartsConfig = UNIFORM_STARTS,
        split: Split = "train",
        generator: np.random.Generator | None = None,
    ) -> StartBatch:
        """See ``MemoryBuffer.starts``."""
        assert history >= 1
        with self._lock:
            rng = self._rng(generator)
            draw = self._draws.starts
            return self._remote(lambda: draw(batch, history, horizon, split, rng, mix))

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

    @property
    def _by_priority(self) -> bool:
        return isinstance(self._config.sampling, PrioritySamplingConfig)

    def prioritise(
        self, ids: NDArray[np.int64], t: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> int:
        """New priorities of windows that were drawn lately; see ``MemoryBuffer.prioritise``."""
        check_priorities(priorities, where=f"buffer {self.name}")
        if not self._by_priority:
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
                    self._mutate(f"{self.name}/decision/{split}", chosen)
                    self._largest_priority = max(self._largest_priority, *chosen.values())
            return sum(len(chosen) for chosen in changes.values())

    def _mutate(self, table: str, priorities: dict[int, float]) -> None:
        self._remote(lambda: self._home.link.mutate(table, priorities))

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
