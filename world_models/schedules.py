"""How far imagination may run: horizon schedules, and the gate that lets in only horizons where the models agree.

A schedule is asked with what is known now and answers in decisions; one may also say when a single trajectory has come
far enough. ``SCHEDULES`` maps a config's class to its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from configs.horizon import DriftHorizonConfig, UncertainHorizonConfig
from configs.world_model import (
    FixedHorizonConfig,
    GateConfig,
    LinearHorizonConfig,
    ScheduleConfig,
    ValidatedHorizonConfig,
)


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


@dataclass(frozen=True)
class ScheduleInputs:
    """What a schedule may look at."""

    updates: int
    """Policy updates so far."""
    obs_val_loss: float | None
    """Newest loss of M_obs on held-out real episodes; None before the first measurement."""
    first_obs_val_loss: float | None = None
    """That loss before M_obs was trained at all, where pretraining wrote it down."""
    measured: Sequence[MeasuredHorizon] | None = None
    """Newest outcome agreement by horizon; None before the first measurement."""
    psnr_by_step: Sequence[float] | None = None
    """Newest PSNR in dB of frames imagined 1, 2, … decisions ahead; None before the first measurement."""


class HorizonSchedule(Protocol):
    """Answers with the horizon in decisions, at least 1."""

    @property
    def max_disagreement(self) -> float | None:
        """Disagreement of two draws of a frame that ends a trajectory; None where trajectories are not looked at."""
        ...

    def horizon(self, inputs: ScheduleInputs) -> int:
        """Horizon for a segment that starts now."""
        ...

    def state(self) -> dict[str, Any]:
        """What ``load`` continues from, as JSON types."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        ...


class Memoryless:
    """For schedules that remember nothing and look at no single trajectory."""

    max_disagreement: float | None = None

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to continue from."""


def _between(start: int, end: int, progress: float) -> int:
    """Linear in ``progress``, clipped to [0, 1], rounded down: a horizon is earned in full."""
    clipped = min(max(progress, 0.0), 1.0)
    return start + math.floor((end - start) * clipped + 1e-9)


class FixedHorizon(Memoryless):
    """The same horizon throughout."""

    def __init__(self, config: FixedHorizonConfig) -> None:
        self.config = config

    def horizon(self, inputs: ScheduleInputs) -> int:
        """The configured horizon."""
        return self.config.horizon


class LinearHorizon(Memoryless):
    """From start to end in policy updates."""

    def __init__(self, config: LinearHorizonConfig) -> None:
        self.config = config

    def horizon(self, inputs: ScheduleInputs) -> int:
        """``start + (end - start) * updates / config.updates``, rounded down."""
        config = self.config
        return _between(config.start, config.end, inputs.updates / config.updates)


class ValidatedHorizon:
    """Linear in how far the validation loss has come from its first value to ``target`` times that value.

    The best loss counts, so that chance does not move the horizon; when the newest loss lies more than ``tolerance``
    above the best, the newest counts, and the horizon shrinks.
    """

    max_disagreement: float | None = None

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


class DriftHorizon(Memoryless):
    """The largest h such that every measured horizon up to h stays within the bound; at least ``start``.

    What was not measured, or not as a finite number, is beyond the bound.
    """

    def __init__(self, config: DriftHorizonConfig) -> None:
        self.config = config

    def horizon(self, inputs: ScheduleInputs) -> int:
        """``start`` until something has been measured."""
        config = self.config
        return min(max(DRIFT[config.measure](config, inputs), config.start), config.end)


def _reach(within: Iterable[bool]) -> int:
    """How many in front are true."""
    count = 0
    for good in within:
        if not good:
            break
        count += 1
    return count


def _reach_of_error(config: DriftHorizonConfig, inputs: ScheduleInputs) -> int:
    least = -20 * math.log10(config.max_error)
    return _reach(math.isfinite(psnr) and psnr >= least for psnr in inputs.psnr_by_step or ())


def _reach_of_agreement(config: DriftHorizonConfig, inputs: ScheduleInputs) -> int:
    rows = sorted(inputs.measured or (), key=lambda row: row.horizon)
    # A comparison with NaN is false: what could not be measured does not agree.
    good = _reach(row.agreement >= config.min_agreement for row in rows)
    return rows[good - 1].horizon if good else 0


DRIFT: dict[str, Callable[[DriftHorizonConfig, ScheduleInputs], int]] = {
    "error": _reach_of_error,
    "agreement": _reach_of_agreement,
}
"""Horizon up to which the measure stays within the config's bound."""


class UncertainHorizon(Memoryless):
    """The longest horizon for all; each trajectory ends where two draws of its next frame disagree."""

    def __init__(self, config: UncertainHorizonConfig) -> None:
        self.config = config
        self.max_disagreement = config.max_disagreement

    def horizon(self, inputs: ScheduleInputs) -> int:
        """``end``: trajectories are cut one by one."""
        return self.config.end


SCHEDULES: dict[type, type] = {
    FixedHorizonConfig: FixedHorizon,
    LinearHorizonConfig: LinearHorizon,
    ValidatedHorizonConfig: ValidatedHorizon,
    DriftHorizonConfig: DriftHorizon,
    UncertainHorizonConfig: UncertainHorizon,
}


def make_schedule(config: ScheduleConfig) -> HorizonSchedule:
    """The schedule of a config."""
    schedule: HorizonSchedule = SCHEDULES[type(config)](config)
    return schedule


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
