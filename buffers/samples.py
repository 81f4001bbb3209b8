"""What the lifecycle table is made of: states, allowed moves, one row, and what it tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


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
    version: int = 0
    """Oldest version that decides in it; while it runs, the one under which it was started."""
    group: int = 0
    """First sample of its group; samples of one group are leased and expire together."""
    owner: str = ""
    """The collector that it runs at; empty when it does not run."""


@dataclass(frozen=True)
class Admitted:
    """A sample that a collector may start now."""

    sample_id: int
    attempt: int
    """To be written into its record."""
    group: int
    """Samples of one group have the same task and start."""


@dataclass(frozen=True)
class Admission:
    """What collectors may start. Its numbers come from the staleness rules; the table only counts."""

    limit: int
    """Decisions that the samples of one version may fill."""
    group: int = 1
    """Samples that are admitted, leased and consumed together."""
    ordered: bool = False
    """Unfinished samples count as the longest: which samples a version has then does not depend on who finishes first."""
    drain: bool = False
    """Nothing starts while a sample runs that was started under an earlier version."""


PartlyStale = Literal["carry", "cut", "expire"]
"""What happens to a buffered sample some of whose decisions are too old."""


@dataclass(frozen=True)
class Gate:
    """What the learner may be lent. Its numbers come from the staleness rules; the buffer only picks."""

    oldest: int
    """Oldest version that may train; samples with older decisions only expire."""
    partly_stale: PartlyStale = "carry"
    """Samples with some older decisions are lent whole, without these, or never."""
    current: int = 0
    """The learner's version."""
    on_policy: float = 0.0
    """Least share of lent decisions that ``current`` must have made."""
    store: int = 0
    """Decisions that must lie ready before any are lent."""
    ordered: bool = False
    """Lend in the order of admission, nothing past a sample that still runs."""
    oldest_obs_model: int = 0
    oldest_reward_model: int = 0
    """Oldest versions of the world models whose samples may train; real samples are of none."""
    due: int | None = None
    """Where publishing waits for samples that would be too old: the newest version whose decisions hold it up. Such samples
    are lent first, and leave where none but ``current``'s may train."""


@dataclass
class Traffic:
    """What went in and out of a buffer between two leases."""

    dropped: int = 0
    """Decisions that left because they were too old."""
    outdated: int = 0
    """Imagined decisions that left because a world model was too old."""
    completed: int = 0
    """Samples that were stored."""
    completed_decisions: int = 0
    """Their decisions."""


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
