"""The replay buffer in memory: a ring of rows, the lifecycle of its samples, and vectorised draws.

Rows, not records, are stored side by side, so a draw costs the same from a thousand records as from a million.
Arguments and results are plain dataclasses and arrays: the buffer works the same behind a remote proxy. There, leave
``generator`` at None: a remote copy of the caller's generator would not advance the caller's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.batches import OutcomeBatch, StartBatch, WindowBatch
from buffers.gather import gather_outcomes, gather_records, gather_starts, gather_windows
from buffers.index import Kind, Split
from buffers.records import Record, RecordBatch, RecordSpec
from buffers.samples import SampleState
from buffers.sampling import check_priorities
from buffers.shelf import Shelf, bytes_per_row, plan_spill
from buffers.spill import spill_folder
from buffers.start_states import UNIFORM_STARTS
from buffers.supply import Supply
from configs.errors import CheckpointError, ConfigError, ReplayError
from configs.starts import StartsConfig
from configs.system import BufferConfig


class MemoryBuffer(Supply):
    """``B_real`` or ``B_img``. Thread-safe. Oldest records leave when room is needed, leased ones never.

    A record given without a ``sample_id`` is a sample that was never admitted. Demonstrations are no samples: the policy
    learner never gets them, the models do.
    """

    def __init__(
        self, spec: RecordSpec, config: BufferConfig, *, seed: int, name: str, spill_dir: str | None = None
    ) -> None:
        """ConfigError when ``config.max_bytes`` has no room for one episode of ``spec.max_decisions``, when
        ``config.memory_bytes`` has none for what never leaves memory, or when the limiter could only wait. ResourceError
        when frames cannot spill into ``spill_dir``.
        """
        self.row_bytes = bytes_per_row(spec, config.sampling)
        capacity, longest = config.max_bytes // self.row_bytes, spec.max_decisions + 1
        if capacity < longest:
            raise ConfigError(
                f"max_bytes={config.max_bytes} has no room for one episode",
                where=f"buffers.{name}.max_bytes",
                remedy=f"give at least {longest * self.row_bytes}",
            )
        super().__init__(
            spec, config, seed=seed, name=name, most_decisions=capacity * spec.max_decisions // longest
        )
        spill = plan_spill(spec, config, capacity, folder=spill_folder(spill_dir), name=name)
        self._shelf = Shelf(spec, capacity, config.sampling, spill)

    @property
    def _stored(self) -> Shelf:
        return self._shelf

    def _place(self, record: Record) -> int:
        start, victims = self._shelf.plan(record.length, self._lifecycle.leased_ids())
        for victim in victims:
            self._shelf.remove(victim)
            if self._lifecycle.state_of(victim) is SampleState.BUFFERED:
                self._lifecycle.expire([victim])
        return start

    def _keep(self, key: int, place: int, record: Record, split: Split) -> None:
        self._shelf.put(key, place, record, split)

    def _records(self, ids: Sequence[int]) -> RecordBatch:
        return gather_records(self._shelf.rows, [self._shelf.items[key] for key in ids])

    def _count(self, kind: Kind, split: Split) -> int:
        return self._shelf.index.count(kind, split)

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
        """``batch`` windows, their start decisions drawn by the buffer's sampling (``episode_start``: uniform over decision
        0 of episodes).

        Those of the train split wait for the limiter. ReplayError when the split is empty. Without ``generator`` the
        buffer's own is used.
        """
        assert history >= 1
        with self._lock:
            if split == "train":
                self._await_sample(batch)
            rng, probability = self._rng(generator), None
            if episode_start:
                rows = self._shelf.index.draw("first", split, batch, rng)
            else:
                rows, probability = self._shelf.sampling.draw(split, batch, rng)
            windows = gather_windows(self._shelf.rows, self._shelf.items, rows, history, steps)
            windows.probability = probability
            return windows

    def prioritise(
        self, ids: NDArray[np.int64], t: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> int:
        """New priorities of the windows at decisions ``t`` of records ``ids``, all ``[B]``; how many were still stored.

        Of a window that is named twice the last priority counts. DataError for a priority that is negative or not finite
        (then none changes), ReplayError where the buffer does not draw by priority.
        """
        check_priorities(priorities, where=f"buffer {self.name}")
        with self._lock:
            return self._shelf.prioritise(ids, t, priorities)

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
        """``batch`` real states, ordered by kind, as many of each as ``mix`` gives it.

        ReplayError when the split is empty.
        """
        assert history >= 1
        with self._lock:
            rows, counts = self._shelf.draw_starts(batch, mix, split, self._rng(generator))
            starts = gather_starts(self._shelf.rows, self._shelf.items, rows, history, horizon)
            starts.kinds = counts
            return starts

    def outcomes(
        self,
        batch: int,
        *,
        split: Split = "train",
        balance: bool = True,
        generator: np.random.Generator | None = None,
    ) -> OutcomeBatch:
        """``batch`` labelled frames: half of them successes with ``balance``, else uniform over frames.

        ReplayError when a kind that is asked for is absent (``stats`` counts them).
        """
        with self._lock:
            rows, successes = self._shelf.index.draw_outcomes(
                split, batch, self._rng(generator), balance=balance
            )
            return gather_outcomes(self._shelf.rows, self._shelf.items, rows, successes)

    def get(self, key: int) -> Record:
        """A copy of a stored record; ReplayError when it is not (or no longer) stored."""
        with self._lock:
            if key not in self._shelf.items:
                raise ReplayError(
                    f"record {key} is not stored",
                    where=f"buffer {self.name}",
                    remedy="it may have been evicted",
                )
            return self._shelf.read(key)

    def episodes(self, split: Split | None = None, *, limit: int | None = None) -> list[Record]:
        """Copies of the ``limit`` newest records (all by default), oldest first."""
        with self._lock:
            keys = self.ids(split)
            return [self.get(key) for key in (keys if limit is None else keys[max(0, len(keys) - limit) :])]

    def stats(self) -> dict[str, Any]:
        """Counts for metrics and for callers that must wait: items, bytes, decisions, rows by kind, lifecycle."""
        with self._lock:
            return {
                **self._supply_stats(),
                "capacity_bytes": self._shelf.rows.capacity * self.row_bytes,
                "lost_items": 0,
                "server_deaths": [],
            }

    def state(self) -> dict[str, Any]:
        """Arrays and JSON types from which ``load`` continues exactly; open leases are written as buffered."""
        with self._lock:
            return {"shelf": self._shelf.state(), **self._supply_state()}

    def load(self, state: dict[str, Any]) -> None:
        """Become the buffer that ``state`` describes; call ``reissue`` unless running samples go on.

        DataError when it is of another RecordSpec, CheckpointError when it is of another capacity or backend.
        """
        if "shelf" not in state:
            raise CheckpointError(
                "the checkpoint is of another backend",
                where=f"buffers.{self.name}",
                remedy=f"resume with buffers.backend={state.get('backend')}",
            )
        with self._lock:
            self._shelf.load(state["shelf"], where=f"buffers.{self.name}")
            self._load_supply(state)

    def close(self) -> None:
        """Free the memory; the buffer cannot be used any more."""
        with self._lock:
            self._shelf = Shelf(self.spec, 0)
