"""How far collectors may run ahead and how old a decision may be when it trains: every rule, as pure functions. No I/O, no
clock, no counting: buffers and learner do what these numbers say.

With ``N`` the decisions that make one version, ``s`` the budget and β the bound:

- **Admission.** Per version at most ``floor((1 + s) N)`` decisions are started, less those carried over.
- **Gate.** No decision trains whose lag, the learner's version minus its own, exceeds β. ``on_violation`` says what becomes
  of a sample that has such decisions. Versions in a record never decrease, so these are its first ones:
  ``mask`` lends the sample whole and leaves them out of the losses; they count as trained. ``cut`` takes them off before;
  they count for nothing. ``drop`` lets the whole sample expire. With ``wait`` there are none: the next version appears
  only when no sample that runs, waits or is lent would then lag too far; those that hold it up are trained first.
  A sample all of whose decisions lag too far expires in any case.
- **Models.** An imagined sample expires whole once its observation or its reward model is more than ``model_bound`` versions
  older than the newest one.
- **On-policy share and store.** A turn waits until enough decisions lie in store, and until enough of its real ones were
  made by the learner's own version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from buffers.batches import Lease
from buffers.records import RecordBatch
from buffers.samples import Admission, Gate, PartlyStale
from configs.system import OnViolation, StalenessConfig, SyncConfig

PARTLY_STALE: dict[OnViolation, PartlyStale] = {
    "mask": "carry",
    "cut": "cut",
    "drop": "expire",
    "wait": "carry",
}
"""What the buffers do with a sample that is stale in part. With ``wait`` only a segment can be that was imagined while
the version rose."""


@dataclass(frozen=True)
class ModelVersions:
    """Of the world models."""

    obs_model: int = 0
    reward_model: int = 0


NO_MODELS = ModelVersions()


@dataclass(frozen=True)
class Rules:
    """The rules of one run."""

    budget: float = 1.0
    """s"""
    bound: int = 16
    """β"""
    on_violation: OnViolation = "mask"
    on_policy_min_ratio: float = 0.0
    store: float = 1.0
    """Decisions in store before a turn, as a multiple of the turn's."""
    ordered: bool = False
    drain: bool = False
    group: int = 1
    model_bound: int | None = None

    @staticmethod
    def of(staleness: StalenessConfig, sync: SyncConfig, *, turn: int, group: int) -> Rules:
        """From the config; ``turn`` decisions are one turn of the policy learner."""
        return Rules(
            budget=staleness.budget,
            bound=staleness.bound,
            on_violation=staleness.on_violation,
            on_policy_min_ratio=staleness.on_policy_min_ratio,
            store=max(1.0, sync.store_size / turn),
            ordered=sync.ordered,
            drain=not sync.partial,
            group=group,
            model_bound=staleness.model_bound,
        )

    def admission(self, needed: int) -> Admission:
        """What may be started where ``needed`` decisions make one version (N)."""
        limit = admission_limit(needed, self.budget)
        return Admission(limit, group=self.group, ordered=self.ordered, drain=self.drain)

    def ahead(self, needed: int) -> Admission:
        """The same for imagination: its segments neither run while a version appears nor come in groups."""
        return Admission(admission_limit(needed, self.budget))

    def gate(self, version: int, decisions: int, *, real: bool, models: ModelVersions = NO_MODELS) -> Gate:
        """What the learner at ``version`` may be lent for ``decisions`` decisions of a turn; ``models``: the newest ones."""
        bound = math.inf if real or self.model_bound is None else self.model_bound
        return Gate(
            oldest=version - self.bound,
            partly_stale=PARTLY_STALE[self.on_violation],
            current=version,
            on_policy=self.on_policy_min_ratio if real else 0.0,
            due=version - self.bound if self.on_violation == "wait" else None,
            store=math.ceil(self.store * decisions),
            ordered=self.ordered and real,
            oldest_obs_model=int(max(0, models.obs_model - bound)),
            oldest_reward_model=int(max(0, models.reward_model - bound)),
        )

    def may_publish(self, version: int, oldest: int | None) -> bool:
        """Whether the learner at ``version`` may publish the next one while ``oldest`` made a decision that may still be
        trained on (None: there is none).
        """
        return self.on_violation != "wait" or oldest is None or version + 1 - oldest <= self.bound


def admission_limit(needed: int, budget: float) -> int:
    """``floor((1 + budget) needed)``: decisions that may be started per version."""
    # The small term keeps (1 + 0.15) * 100 from becoming 114.
    return math.floor((1 + budget) * needed + 1e-9)


@dataclass(frozen=True)
class Lag:
    """Lags of the decisions of one batch that train, in versions."""

    mean: float
    p95: float
    over_bound: int
    """Decisions beyond the bound, which are masked and in none of the other numbers."""


def lag_mask(
    version: NDArray[np.int32], present: NDArray[np.bool_], current: int, bound: int
) -> NDArray[np.bool_]:
    """Decisions ``[..]`` that may train: present and at most ``bound`` versions old. A negative lag is a broken
    invariant.
    """
    lag = current - version
    assert not (lag[present] < 0).any(), "a decision was made by a version that was never published"
    mask: NDArray[np.bool_] = present & (lag <= bound)
    return mask


def lag_statistics(version: NDArray[np.int32], present: NDArray[np.bool_], current: int, bound: int) -> Lag:
    """Distribution of the lag over the present decisions that ``bound`` lets train."""
    trains = lag_mask(version, present, current, bound)
    lag = (current - version)[trains]
    over_bound = int(present.sum() - trains.sum())
    if lag.size == 0:
        return Lag(0.0, 0.0, over_bound)
    return Lag(float(lag.mean()), float(np.percentile(lag, 95)), over_bound)


@dataclass(frozen=True)
class Spans:
    """How the samples of one turn lie over versions."""

    partial_ratio: float
    """Share of samples whose decisions more than one version made."""
    max_partial_span: int
    """Versions between first and last decision, at most."""
    stale: int
    """Samples with a decision that lags at least one version."""

    def metrics(self) -> dict[str, float]:
        """By metric name."""
        return {
            "staleness/partial_ratio": self.partial_ratio,
            "staleness/max_partial_span": float(self.max_partial_span),
            "staleness/stale_trajectory_processed": float(self.stale),
        }


def spans(batches: list[RecordBatch], current: int) -> Spans:
    """Over the samples of ``batches``; ``current`` is the learner's version."""
    first = np.concatenate([batch.version[:, 0] for batch in batches])
    ends = [np.take_along_axis(batch.version, batch.lengths[:, None] - 1, axis=1)[:, 0] for batch in batches]
    span = np.concatenate(ends) - first
    return Spans(float((span > 0).mean()), int(span.max()), int((first < current).sum()))


def lengths(leases: Mapping[str, Lease]) -> dict[str, float]:
    """Decisions of the samples that a turn trains, and of those that were completed since the turn before, by source: a
    bias towards short ones shows. A source that completed none is left out.
    """
    found: dict[str, float] = {}
    for name, lease in leases.items():
        found[f"staleness/trained_length/{name}"] = float(lease.batch.lengths.mean())
        if lease.traffic.completed:
            found[f"staleness/completed_length/{name}"] = (
                lease.traffic.completed_decisions / lease.traffic.completed
            )
    return found
