"""What the lifecycle table is made of: states, allowed moves, one row, and what it tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SampleState(StrEnum):
    """Where a sample is."""

    ADMITTED = "admitted"
    RUNNING = "running"
    BUFFERED = "buffered"
    LEASED = "leased"
    CONSUMED = "consumed"
    EXPIRED = "expired"
    FAILED = "failed"


S = SampleState

TRANSITIONS: dict[SampleState, frozenset[SampleState]] = {
    S.ADMITTED: frozenset({S.RUNNING, S.FAILED}),
    S.RUNNING: frozenset({S.ADMITTED, S.BUFFERED, S.FAILED}),
    S.BUFFERED: frozenset({S.LEASED, S.EXPIRED}),
    S.LEASED: frozenset({S.BUFFERED, S.CONSUMED}),
    S.CONSUMED: frozenset(),
    S.EXPIRED: frozenset(),
    S.FAILED: frozenset(),
}
UNFINISHED = frozenset({S.ADMITTED, S.RUNNING})
LOST = frozenset({S.EXPIRED, S.FAILED})


@dataclass(slots=True)
class Sample:
    """One row of the table."""

    id: int
    state: SampleState
    attempt: int = 0
    """Times it was started anew."""
    uses: int = 0
    """Commits so far."""
    decisions: int = 0
    """Its length, once it is buffered."""
    charge: float = 0.0
    """Decisions of the version's budget that it fills, once it is buffered."""


@dataclass(frozen=True)
class Admitted:
    """A sample that a collector may start now."""

    sample_id: int
    attempt: int
    """To be written into its record."""


@dataclass(frozen=True)
class Stock:
    """What a buffer holds for the policy learner, and what is on its way."""

    available: int
    """Decisions that may be leased."""
    leased: int
    """Decisions that the learner holds now."""
    running: int
    """Samples admitted or running."""
    mean_length: float
    """Decisions of recent samples; before the first, the longest possible."""
