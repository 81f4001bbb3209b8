"""Configs of the world models together, imagination and its horizon."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from configs.errors import ConfigError
from configs.fields import (
    Fraction,
    PositiveFloat,
    PositiveInt,
    component,
)
from configs.horizon import DriftHorizonConfig, UncertainHorizonConfig, check_order
from configs.obs_model import ObsModelConfig as ObsModelConfig
from configs.reward_model import RewardModelConfig as RewardModelConfig
from configs.starts import StartsConfig


@component
class WorldModelConfig:
    """Both models."""

    path: str | None = None
    """Folder written by ``platform.pretrain``, with ``obs_model/`` and ``reward_model/``: the models that a run, or a further
    pretraining, starts from."""
    frozen: bool = False
    """Neither model is trained and no real environment is stepped: imagination starts from ``data`` alone."""
    obs_model: ObsModelConfig = field(default_factory=ObsModelConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)


@component
class FixedHorizonConfig:
    """The same horizon throughout."""

    kind: Literal["fixed"] = "fixed"
    horizon: PositiveInt = 5
    """Decisions per imagined segment."""


@component
class LinearHorizonConfig:
    """From ``start`` to ``end`` in policy updates."""

    kind: Literal["linear"] = "linear"
    start: PositiveInt = 5
    """First horizon, in decisions."""
    end: PositiveInt = 50
    """Last horizon, in decisions."""
    updates: PositiveInt = 1000
    """Policy updates from start to end."""

    def __post_init__(self) -> None:
        check_order(self.start, self.end)


@component
class ValidatedHorizonConfig:
    """From ``start`` to ``end`` as the validation loss of M_obs falls from its first value to ``target``."""

    kind: Literal["validated"] = "validated"
    start: PositiveInt = 5
    """First horizon, in decisions."""
    end: PositiveInt = 50
    """Last horizon, in decisions."""
    target: PositiveFloat = 0.5
    """Validation loss, as a fraction of its first value, at which the horizon is ``end``."""
    tolerance: PositiveFloat = 0.1
    """Relative rise above the best loss beyond which the horizon shrinks again."""

    def __post_init__(self) -> None:
        check_order(self.start, self.end)
        if self.target >= 1:
            raise ConfigError(
                f"imagination.schedule.target={self.target} is not below 1",
                where="imagination.schedule",
                remedy="give the fraction of the first loss that counts as good, for example 0.5",
            )


ScheduleConfig = Annotated[
    FixedHorizonConfig
    | LinearHorizonConfig
    | ValidatedHorizonConfig
    | DriftHorizonConfig
    | UncertainHorizonConfig,
    Field(discriminator="kind"),
]


@component
class GateConfig:
    """Which horizons are believed: outcome agreement of the models on held-out real episodes, by horizon."""

    enabled: bool = True
    """Off: the schedule alone decides."""
    min_agreement: Fraction = 0.85
    """A horizon is used only where agreement, there and at every shorter one, is at least this."""
    max_false_success: Fraction = 0.05
    """A horizon is used only where the share of imagined successes that were real failures is at most this."""


@component
class GuardConfig:
    """Notices when imagined success runs away from real success, and acts."""

    enabled: bool = True
    """Off: the gap is only reported."""
    max_gap: Fraction = 0.15
    """Imagined minus real success, from the same starts within the same horizon, smoothed over segments."""
    patience: PositiveInt = 3
    """Batches in a row beyond the gap before the guard acts."""


@component
class ImaginationConfig:
    """The imagination role."""

    worlds: PositiveInt = 128
    """Imagined worlds stepped together."""
    starts: StartsConfig = field(default_factory=StartsConfig)
    reward: Literal["success", "change"] = "success"
    """``success``: 1 when the success probability passes M_reward's threshold, which is the real environments' own rule.
    ``change``: the change of that probability, ``p(o_{t+1}) - p(o_t)`` (AcceRL): denser, but a real and an imagined
    decision from one state then have different values, and one critic cannot learn both."""
    schedule: ScheduleConfig = field(default_factory=ValidatedHorizonConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
