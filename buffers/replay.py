"""What a replay buffer is, wherever it keeps its records: ``MemoryBuffer`` and ``ReverbBuffer`` keep this contract.

Four sides use it. Collectors admit, append, fail and reissue samples. The policy learner leases samples, trains, and
commits or releases. The models draw windows, starts and outcomes. The run saves, loads, counts and closes.

No call waits for ever: what had to wait too long raises ReplayTimeout.
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


class ReplayBuffer(Protocol):
    """Thread-safe. Oldest records leave when room is needed; samples that are leased stay until the lease ends."""

    spec: RecordSpec
    name: str

    # Collectors

    def admit(self, wanted: int, admission: Admission, owner: str = "") -> list[Admitted]:
        """At most ``wanted`` samples that the collector ``owner`` may start."""
        ...

    def room(self, admission: Admission) -> int:
        """Samples that admission would allow now."""
        ...

    def fail(self, sample_ids: Sequence[int]) -> None:
        """Samples end without a record."""
        ...

    def reissue(self, sample_ids: Sequence[int] | None = None) -> None:
        """Running samples (all by default) are admitted again, with attempt + 1."""
        ...

    def reissue_of(self, owner: str) -> int:
        """The same for the samples that run at the collector ``owner``; how many."""
        ...

    def append(self, record: Record, sample_id: int | None = None) -> int:
        """Store a copy, whole or not at all; its id."""
        ...

    def extend(self, records: Sequence[Record]) -> list[int]:
        """Store records that were never admitted; all are checked before the first is stored."""
        ...

    # The policy learner

    def lease(self, decisions: int, *, prefer_recent: bool = False, gate: Gate | None = None) -> Lease | None:
        """Samples with at least ``decisions`` decisions together, or None while there are too few."""
        ...

    def commit(self, lease_id: int) -> None:
        """The learner trained on the lease."""
        ...

    def release(self, lease_id: int) -> None:
        """It did not."""
        ...

    def advance(self, version: int) -> None:
        """A version was published."""
        ...

    def stock(self) -> Stock:
        """What can be leased, is leased, and is on its way."""
        ...

    def available_decisions(self) -> int:
        """Decisions that could be leased now."""
        ...

    def running_before(self, version: int) -> int:
        """Running samples that were started under an earlier version."""
        ...

    def oldest_version(self) -> int | None:
        """Oldest version of a decision that runs, waits or is lent."""
        ...

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
        """Windows around decisions that the buffer's sampling chooses."""
        ...

    def starts(
        self,
        batch: int,
        history: int,
        *,
        horizon: int,
        recent: int | None = None,
        first: int = 0,
        split: Split = "train",
        generator: np.random.Generator | None = None,
    ) -> StartBatch:
        """States to imagine from, ``first`` of them episode starts."""
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

    # The run

    def ids(self, split: Split | None = None) -> list[int]:
        """Stored records, oldest first."""
        ...

    def get(self, key: int) -> Record:
        """A copy of a stored record."""
        ...

    def episodes(self, split: Split | None = None, *, limit: int | None = None) -> list[Record]:
        """Copies of the ``limit`` newest records, oldest first."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts and bytes."""
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
