"""Configs of horizon schedules that read measurements of the models, and of experiments that compare schedules."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from configs.errors import ConfigError
from configs.fields import Fraction, PositiveFloat, PositiveInt, component


@component
class DriftHorizonConfig:
    """The longest horizon at which the models, run open loop on held-out real episodes, have not drifted too far."""

    kind: Literal["drift"] = "drift"
    start: PositiveInt = 5
    """Shortest horizon, in decisions; also what holds before the first measurement."""
    end: PositiveInt = 50
    """Longest horizon, in decisions."""
    measure: Literal["error", "agreement"] = "error"
    """What drifts: the ``error`` of the imagined frame, or the ``agreement`` of the two worlds about success."""
    max_error: PositiveFloat = 0.05
    """``error``: largest root mean square error of an imagined frame, as a share of the pixels' range (0.05 is 26 dB,
    0.1 is 20 dB)."""
    min_agreement: Fraction = 0.9
    """``agreement``: smallest share of held-out windows whose outcome is the same in both worlds."""

    def __post_init__(self) -> None:
        check_order(self.start, self.end)


@component
class UncertainHorizonConfig:
    """Each trajectory as far as two draws of its next frame agree: the prediction that they disagree on ends it."""

    kind: Literal["uncertain"] = "uncertain"
    end: PositiveInt = 50
    """Longest horizon, in decisions."""
    max_disagreement: PositiveFloat = 0.02
    """Largest root mean square difference of the two draws in the 8x8 patch where they differ most, as a share of the
    pixels' range."""


def check_order(start: int, end: int) -> None:
    """Raise ConfigError where a schedule would have to run backwards."""
    if start > end:
        raise ConfigError(
            f"imagination.schedule.start={start} is above end={end}",
            where="imagination.schedule",
            remedy="raise end or lower start",
        )


@component
class ExperimentConfig:
    """Which runs an experiment consists of, beside what the command line sweeps, and how they are judged."""

    dir: str = "outputs/horizon"
    """Folder of the experiment; the same command again keeps finished runs, resumes cut ones and starts missing ones."""
    parallel: PositiveInt | None = None
    """Runs side by side; none takes one per core on the serial host, and one on Ray, which uses all cores itself."""
    decoding: Literal["greedy", "sampled"] = "greedy"
    """Which success of the evaluations judges."""
    target: Fraction = 0.8
    """Success whose real steps the table lists."""


@component
class HorizonConfig:
    """``python -m platform.horizon``: keys of its own, beside every key of ``platform.train``."""

    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
