"""What a replay buffer is, wherever it keeps its records: ``MemoryBuffer`` and ``ReverbBuffer`` keep this contract.

Four sides use it, each by a protocol of its own, so that a role works on an object or on an actor's proxy, and on what a test
or a dataset puts in its place. No call waits for ever: what had to wait too long raises ReplayTimeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from buffers.batches import Lease, OutcomeBatch, StartBatch, WindowBatch
from buffers.index import Split
from buffers.records import Record, RecordSpec
from buffers.samples import Admission, Admitted, Gate, Stock
from buffers.start_states import UNIFORM_STARTS
from configs.starts import StartsConfig


class Collecting(Protocol):
    """A collector's side."""

    def admit(self, wanted: int, admission: Admission, owner: str = "") -> list[Admitted]:
        """At most ``wanted`` samples that the collector ``owner`` may start, as far as admission allows."""
        ...

    def room(self, admission: Admission) -> int:
        """Samples that admission would allow now."""
        ...

    def append(self, record: Record, sample_id: int | None = None) -> int:
        """Store a copy of a finished sample, whole or not at all; its id."""
        ...

    def extend(self, records: Sequence[Record]) -> list[int]:
        """Store records that were never admitted (imagined segments); all are checked before the first is stored."""
        ...

    def reissue(self, sample_ids: Sequence[int] | None = None) -> None:
        """Running samples (all by default) are admitted again, with attempt + 1."""
        ...

    def reissue_of(self, owner: str) -> int:
        """The same for the samples that run at the collector ``owner``; how many."""
        ...


class Learning(Protocol):
    """A policy learner's side."""

    def lease(self, decisions: int, *, prefer_recent: bool = False, gate: Gate | None = None) -> Lease | None:
        """Samples with at least ``decisions`` decisions that pass the gate, or None while there are too few."""
        ...

    def commit(self, lease_id: int) -> None:
        """The learner trained on the lease."""
        ...

    def release(self, lease_id: int) -> None:
        """It did not."""
        ...

    def available_decisions(self) -> int:
        """Decisions that could be leased now."""
        ...

    def advance(self, version: int) -> None:
        """A version was published: collectors may start that version's samples. The same version again gives them another
        budget under it.
        """
        ...

    def oldest_version(self) -> int | None:
        """Oldest version of a decision that runs, waits or is lent; None when there is none."""
        ...


class Running(Protocol):
    """The inference service's side of ``B_real``."""

    def running_before(self, version: int) -> int:
        """Running samples that were started under an earlier version."""
        ...


class Modelling(Protocol):
    """The world models' side of ``B_real``. Draws raise ReplayError where there is nothing."""

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
        """Windows of consecutive decisions, where the buffer's sampling chooses; with ``episode_start`` from decision 0 on."""
        ...

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
        """States to imagine from, ordered by kind, as many of each as ``mix`` gives it, with what really followed."""
        ...

    def outcomes(
        self,
        batch: int,
        *,
        split: Split = "train",
        balance: bool = True,
        generator: np.random.Generator | None = None,
    ) -> OutcomeBatch:
        """Frames labelled by success."""
        ...

    def prioritise(
        self, ids: NDArray[np.int64], t: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> int:
        """New priorities of the windows at decisions ``t`` of records ``ids``, all ``[B]``; how many were still stored.

        DataError for a priority that is negative or not finite (then none changes), ReplayError where the buffer does
        not draw by priority.
        """
        ...

    def stats(self) -> dict[str, Any]:
        """Counts and bytes: what could be drawn now."""
        ...


class ReplayBuffer(Collecting, Learning, Running, Modelling, Protocol):
    """All of it, and what the run itself asks for. Thread-safe. Oldest records leave when room is needed; samples that are leased
    stay until the lease ends.
    """

    spec: RecordSpec
    name: str

    def fail(self, sample_ids: Sequence[int]) -> None:
        """Samples end without a record."""
        ...

    def stock(self) -> Stock:
        """What can be leased, is leased, and is on its way."""
        ...

    def ids(self, split: Split | None = None) -> list[int]:
        """Stored records, oldest first."""
        ...

    def get(self, key: int) -> Record:
        """A copy of a stored record."""
        ...

    def episodes(self, split: Split | None = None, *, limit: int | None = None) -> list[Record]:
        """Copies of the ``limit`` newest records, oldest first."""
        ...

    def state(self) -> dict[str, Any]:
        """Arrays and JSON types from which ``load`` continues."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Become the buffer that ``state`` describes."""
        ...

    def close(self) -> None:
        """Free what it holds and end what it started."""
        ...
