"""Configs of the observation model, the reward model, imagination and its horizon."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from configs.errors import ConfigError
from configs.fields import (
    FiniteFloat,
    Fraction,
    NaturalFloat,
    NaturalInt,
    PositiveFloat,
    PositiveInt,
    component,
)
from configs.horizon import DriftHorizonConfig, UncertainHorizonConfig, check_order


@component
class ObsModelConfig:
    """M_obs: diffusion model of the next decision's frame and proprio, after DIAMOND (arXiv:2405.12399) and EDM."""

    fold: Annotated[int, Field(ge=1, le=4)] = 2
    """Pixels folded into channels along each axis before the U-Net."""
    channels: Annotated[list[PositiveInt], Field(min_length=1)] = field(default_factory=lambda: [32, 48])
    """U-Net channels per level."""
    layers_per_block: PositiveInt = 1
    """Residual layers per U-Net block."""
    precision: Literal["bfloat16", "float32"] = "bfloat16"
    """Arithmetic of the U-Net (weights stay float32); bfloat16 wants a GPU, or a CPU with AVX512-BF16 or AMX."""
    history: PositiveInt = 1
    """Frames that condition the prediction, L."""
    target: Literal["residual", "frame"] = "residual"
    """What is diffused: the change from the last frame, or the frame itself."""
    sigma_data: PositiveFloat = 0.25
    """Deviation of the target that the preconditioner assumes (0.5 suits whole frames)."""
    noise_mean: FiniteFloat = 1.0
    """Mean of ln sigma in training (DIAMOND: -0.4; one-step sampling starts at high noise, so that is what to learn)."""
    noise_std: PositiveFloat = 1.2
    """Deviation of ln sigma in training."""
    sigma_min: PositiveFloat = 2e-3
    """Smallest noise level."""
    sigma_max: PositiveFloat = 20.0
    """Largest training noise level."""
    offset_noise: NaturalFloat = 0.0
    """Deviation of the noise shared by all pixels of a channel (DIAMOND: 0.3); 0 turns it off."""
    sampling_steps: PositiveInt = 1
    """Denoising steps of a predicted frame."""
    sampling_sigma_max: PositiveFloat = 5.0
    """Noise level that sampling starts from."""
    unit_start: bool = True
    """Start sampling from N(0, I), as DIAMOND does, instead of N(0, sigma_max^2 I)."""
    conditioning_noise: NaturalFloat = 0.02
    """Deviation of noise added to the conditioning frames in training."""
    rollout_steps: PositiveInt = 5
    """Longest chain of own predictions that a training window is conditioned on (multi-step training)."""
    rollout_start: NaturalInt = 600
    """Updates of one-step training before the chains begin."""
    batch: PositiveInt = 48
    """Windows per update."""
    learning_rate: NaturalFloat = 1.5e-3
    """AdamW in pretraining."""
    online_learning_rate: NaturalFloat = 5e-5
    """AdamW beside the policy: no more than where pretraining ended, or its last, finest steps are undone."""
    max_grad_norm: PositiveFloat = 1.0
    """Global norm to which gradients are clipped."""
    ema_decay: Fraction = 0.995
    """Decay of the averaged weights that imagine."""
    every: PositiveInt = 4
    """Policy updates between two turns of this learner."""
    burst: PositiveInt = 1
    """Updates per turn."""

    def __post_init__(self) -> None:
        if self.sigma_min >= self.sigma_max:
            raise ConfigError(
                f"obs_model.sigma_min={self.sigma_min} is not below sigma_max={self.sigma_max}",
                where="world_model.obs_model",
                remedy="lower sigma_min or raise sigma_max",
            )


@component
class RewardModelConfig:
    """M_reward: probability that the frame shows success, given the instruction."""

    fold: Annotated[int, Field(ge=1, le=8)] = 2
    """Pixels folded into channels along each axis before the first stage; all stages keep that resolution."""
    channels: Annotated[list[PositiveInt], Field(min_length=1)] = field(default_factory=lambda: [32, 32, 64])
    """Channels of the convolutional stages."""
    precision: Literal["bfloat16", "float32"] = "bfloat16"
    """Arithmetic of the convolutions, as for M_obs."""
    noise: NaturalFloat = 1.0
    """Deviation of noise added to the frames in training, in grey levels: imagined frames are never as clean."""
    width: PositiveInt = 64
    """Width of the instruction embedding and the head."""
    focal_gamma: NaturalFloat = 0.0
    """Focal-loss exponent (arXiv:1708.02002); 0 is plain binary cross-entropy."""
    imagined_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of a training batch that M_obs imagined from real starts under the recorded actions, labelled by what really
    happened: a judge of clean frames alone misses most imagined successes."""
    imagined_steps: PositiveInt = 5
    """Decisions that those frames are imagined ahead."""
    imagined_windows: PositiveInt = 16
    """Windows imagined anew per update."""
    imagined_pool: PositiveInt = 8192
    """Imagined frames kept to draw from, newest first in, oldest first out."""
    balance: bool = True
    """Draw successes and failures in equal shares."""
    shift: NaturalInt = 2
    """Largest random shift of a training frame along either axis, in pixels: few success frames must tell places, not
    scenes."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Success probability above which an imagined episode terminates; balanced draws make probabilities run high."""
    batch: PositiveInt = 128
    """Frames per update."""
    learning_rate: NaturalFloat = 1e-3
    """AdamW in pretraining."""
    online_learning_rate: NaturalFloat = 5e-5
    """AdamW beside the policy: no more than where pretraining ended."""
    max_grad_norm: PositiveFloat = 1.0
    """Global norm to which gradients are clipped."""
    ema_decay: Fraction = 0.99
    """Decay of the averaged weights that judge."""
    every: PositiveInt = 4
    """Policy updates between two turns of this learner."""
    burst: PositiveInt = 1
    """Updates per turn."""


@component
class WorldModelConfig:
    """Both models."""

    path: str | None = None
    """Folder written by ``platform.pretrain``, with ``obs_model/`` and ``reward_model/``."""
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
    starts: Literal["uniform", "recent"] = "recent"
    """How start states are drawn from ``B_real``."""
    recent: PositiveInt = 512
    """Episodes that count as recent."""
    first_fraction: Fraction = 0.5
    """Share of the worlds that begin where an episode of any age begins: those states do not depend on who acted, and no
    policy has to find its way back from a demonstrator's detours there."""
    reward: Literal["success", "change"] = "success"
    """``success``: 1 when the success probability passes M_reward's threshold, which is the real environments' own rule.
    ``change``: the change of that probability, ``p(o_{t+1}) - p(o_t)`` (AcceRL): denser, but a real and an imagined
    decision from one state then have different values, and one critic cannot learn both."""
    schedule: ScheduleConfig = field(default_factory=ValidatedHorizonConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
