"""What roles see of the buffers: narrow protocols, so that a role works on an object or on an actor's proxy."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from buffers.batches import Lease, OutcomeBatch, StartBatch, WindowBatch
from buffers.index import Split
from buffers.records import Record
from buffers.samples import Admission, Admitted, Gate


class Collecting(Protocol):
    """A collector's side of a buffer."""

    def admit(self, wanted: int, admission: Admission, owner: str) -> list[Admitted]:
        """Start at most ``wanted`` samples at the collector ``owner``, as far as admission allows."""
        ...

    def append(self, record: Record, sample_id: int | None = None) -> int:
        """Store a finished sample."""
        ...

    def extend(self, records: list[Record]) -> list[int]:
        """Store samples that were not admitted one by one (imagined segments)."""
        ...

    def reissue(self, sample_ids: list[int]) -> None:
        """Give running samples back, to be started again with attempt + 1."""
        ...

    def reissue_of(self, owner: str) -> int:
        """The same for all that run at the collector ``owner``; how many."""
        ...

    def room(self, admission: Admission) -> int:
        """Samples that admission would allow now."""
        ...


class Learning(Protocol):
    """A policy learner's side."""

    def lease(self, decisions: int, *, gate: Gate | None = None) -> Lease | None:
        """Samples with at least that many decisions that pass the gate, or None while there are too few."""
        ...

    def commit(self, lease_id: int) -> None:
        """The leased samples were trained on."""
        ...

    def release(self, lease_id: int) -> None:
        """They were not."""
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

    def stats(self) -> dict[str, Any]:
        """Counts and bytes."""
        ...


class Running(Protocol):
    """The inference service's side of ``B_real``."""

    def running_before(self, version: int) -> int:
        """Running samples that were started under an earlier version."""
        ...


class Modelling(Protocol):
    """The world models' side of ``B_real``."""

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
        """Windows of consecutive decisions, with ``episode_start`` from the first one on."""
        ...

    def starts(
        self,
        batch: int,
        history: int,
        *,
        recent: int | None,
        first: int,
        horizon: int,
        split: Split = "train",
    ) -> StartBatch:
        """Start states, ``first`` of them episode starts, with what really followed."""
        ...

    def outcomes(
        self, batch: int, *, split: Split, balance: bool, generator: np.random.Generator | None = None
    ) -> OutcomeBatch:
        """Frames labelled by success."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts: what could be drawn now. The draws above raise ReplayError where there is nothing."""
        ...
