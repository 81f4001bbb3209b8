"""How far imagination may run: horizon schedules, and the gate that lets in only horizons where the models agree.

A schedule is asked with what is known now and answers in decisions. ``SCHEDULES`` maps a config's class to its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from configs.world_model import (
    FixedHorizonConfig,
    GateConfig,
    LinearHorizonConfig,
    ScheduleConfig,
    ValidatedHorizonConfig,
)


@dataclass(frozen=True)
class ScheduleInputs:
    """What a schedule may look at."""

    updates: int
    """Policy updates so far."""
    obs_val_loss: float | None
    """Newest loss of M_obs on held-out real episodes; None before the first measurement."""
    first_obs_val_loss: float | None = None
    """That loss before M_obs was trained at all, where pretraining wrote it down."""


class HorizonSchedule(Protocol):
    """Answers with the horizon in decisions, at least 1."""

    def horizon(self, inputs: ScheduleInputs) -> int:
        """Horizon for a segment that starts now."""
        ...

    def state(self) -> dict[str, Any]:
        """What ``load`` continues from, as JSON types."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        ...


def _between(start: int, end: int, progress: float) -> int:
    """Linear in ``progress``, clipped to [0, 1], rounded down: a horizon is earned in full."""
    clipped = min(max(progress, 0.0), 1.0)
    return start + math.floor((end - start) * clipped + 1e-9)


class FixedHorizon:
    """The same horizon throughout."""

    def __init__(self, config: FixedHorizonConfig) -> None:
        self.config = config

    def horizon(self, inputs: ScheduleInputs) -> int:
        """The configured horizon."""
        return self.config.horizon

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to continue from."""


class LinearHorizon:
    """From start to end in policy updates."""

    def __init__(self, config: LinearHorizonConfig) -> None:
        self.config = config

    def horizon(self, inputs: ScheduleInputs) -> int:
        """``start + (end - start) * updates / config.updates``, rounded down."""
        config = self.config
        return _between(config.start, config.end, inputs.updates / config.updates)

    def state(self) -> dict[str, Any]:
        """Nothing: the counter is the learner's."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to continue from."""


class ValidatedHorizon:
    """Linear in how far the validation loss has come from its first value to ``target`` times that value.

    The best loss counts, so that chance does not move the horizon; when the newest loss lies more than ``tolerance``
    above the best, the newest counts, and the horizon shrinks.
    """

    def __init__(self, config: ValidatedHorizonConfig) -> None:
        self.config = config
        self._first: float | None = None
        self._best: float | None = None

    def horizon(self, inputs: ScheduleInputs) -> int:
        """``start`` until a loss has been measured; a loss that is not finite counts as the worst."""
        config, loss = self.config, inputs.obs_val_loss
        if loss is None:
            return config.start
        if not math.isfinite(loss):
            return config.start
        if self._first is None or self._best is None:
            known = inputs.first_obs_val_loss
            self._first, self._best = (loss if known is None else known), loss
        self._best = min(self._best, loss)
        counts = loss if loss > self._best * (1 + config.tolerance) else self._best
        way = self._first * (1 - config.target)
        return _between(config.start, config.end, (self._first - counts) / way if way > 0 else 1.0)

    def state(self) -> dict[str, Any]:
        """First and best loss."""
        return {"first": self._first, "best": self._best}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._first, self._best = state["first"], state["best"]


SCHEDULES: dict[type, type] = {
    FixedHorizonConfig: FixedHorizon,
    LinearHorizonConfig: LinearHorizon,
    ValidatedHorizonConfig: ValidatedHorizon,
}


def make_schedule(config: ScheduleConfig) -> HorizonSchedule:
    """The schedule of a config."""
    schedule: HorizonSchedule = SCHEDULES[type(config)](config)
    return schedule


class MeasuredHorizon(Protocol):
    """One row of a quality report."""

    @property
    def horizon(self) -> int:
        """In decisions."""
        ...

    @property
    def agreement(self) -> float:
        """Share of held-out windows whose outcome is the same in both worlds."""
        ...

    @property
    def false_success(self) -> float:
        """Share of held-out windows that succeed in imagination only."""
        ...


def gated_horizon(horizon: int, measured: Sequence[MeasuredHorizon] | None, gate: GateConfig) -> int:
    """Largest h <= ``horizon`` such that every measured horizon up to h passes the gate; 0 when none does.

    Horizons beyond the last measured one are not believed, nor is anything before the first measurement (None).
    """
    if not gate.enabled:
        return horizon
    allowed = 0
    for row in sorted(measured or (), key=lambda row: row.horizon):
        if row.agreement < gate.min_agreement or row.false_success > gate.max_false_success:
            return min(horizon, max(allowed, row.horizon - 1) if allowed else 0)
        allowed = row.horizon
    return min(horizon, allowed)
