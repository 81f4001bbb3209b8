"""Config of the observation model."""

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

Optimizer = Literal["adamw", "soap"]


@component
class ObsModelConfig:
    """M_obs: diffusion model of the next decision's frame and proprio, after DIAMOND (arXiv:2405.12399) and EDM."""

    step: Literal["decision", "env_step"] = "decision"
    """What one step of the model is: a whole decision, or each of its executed actions, as in DIAMOND. The latter wants the
    frames between decisions (``frames_between`` of ``platform.demos``), which a run then keeps itself."""
    fold: Annotated[int, Field(ge=1, le=4)] = 2
    """Pixels folded into channels along each axis before the U-Net."""
    channels: Annotated[list[PositiveInt], Field(min_length=1)] = field(default_factory=lambda: [32, 48])
    """U-Net channels per level."""
    layers_per_block: PositiveInt = 1
    """Residual layers per U-Net block."""
    attention: list[NaturalInt] = field(default_factory=list)
    """Levels of the U-Net, 0 the finest, whose cells attend to one another; with the last one its middle does too."""
    attention_head: PositiveInt = 8
    """Channels of an attention head."""
    precision: Literal["auto", "bfloat16", "float32", "fp8"] = "auto"
    """Arithmetic of the U-Net (weights stay float32). ``auto``: bfloat16 on a GPU or CPU that computes in it (AVX512-BF16 or
    AMX), float32 elsewhere, where bfloat16 takes many times as long. fp8 wants a GPU of compute capability 8.9 and
    torchao, and speeds up linear layers only (attention): convolutions stay bfloat16."""
    checkpointing: bool = False
    """Compute the U-Net's activations again in the backward pass instead of keeping them: less memory, a third more time."""
    compiled: bool = False
    """Run the U-Net through torch.compile: the first passes take minutes, so for long runs only."""
    history: PositiveInt = 1
    """Frames that condition the prediction, L: of the last L steps of the model."""
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
    sampler: Literal["euler", "heun", "consistency"] = "euler"
    """How a frame is denoised. ``heun`` corrects each step but the last with a second look. ``consistency``: training makes
    one step do what many did; pretraining distils the model at ``world_model.path``, and online training keeps it so."""
    sampling_steps: Annotated[int, Field(ge=1, le=10)] = 1
    """Denoising steps of a predicted frame."""
    consistency_levels: Annotated[int, Field(ge=2, le=64)] = 10
    """Noise levels between which consistency training steps, and steps of the model that it distils."""
    sampling_sigma_max: PositiveFloat = 5.0
    """Noise level that sampling starts from."""
    unit_start: bool = True
    """Start Euler and Heun sampling from N(0, I), as DIAMOND does, instead of N(0, sigma_max^2 I)."""
    conditioning_noise: NaturalFloat = 0.02
    """Deviation of noise added to the conditioning frames in training."""
    rollout_steps: PositiveInt = 5
    """Longest chain of own predictions, in steps of the model, that a training window is conditioned on (multi-step
    training)."""
    rollout_start: NaturalInt = 600
    """Updates of one-step training before the chains begin."""
    batch: PositiveInt = 48
    """Windows per update."""
    optimizer: Optimizer = "adamw"
    """``soap`` preconditions each weight by Kronecker factors (the extra ``kronecker``)."""
    learning_rate: NaturalFloat = 1.5e-3
    """Of the optimizer in pretraining."""
    online_learning_rate: NaturalFloat = 5e-5
    """Of the optimizer beside the policy: no more than where pretraining ended, or its last, finest steps are undone."""
    max_grad_norm: PositiveFloat = 1.0
    """Global norm to which gradients are clipped."""
    ema_decay: Fraction = 0.995
    """Decay of the averaged weights that imagine."""
    every: PositiveInt = 4
    """Policy updates between two turns of this learner."""
    burst: PositiveInt = 1
    """Updates per turn."""

    def __post_init__(self) -> None:
        beyond = [level for level in self.attention if level >= len(self.channels)]
        if beyond:
            raise ConfigError(
                f"obs_model.attention names level {beyond[0]}, the U-Net has {len(self.channels)}",
                where="world_model.obs_model.attention",
                remedy=f"give levels from 0 to {len(self.channels) - 1}",
            )
        odd = [self.channels[level] for level in self.attention if self.channels[level] % self.attention_head]
        if odd:
            raise ConfigError(
                f"{odd[0]} channels do not divide into attention heads of {self.attention_head}",
                where="world_model.obs_model.attention_head",
                remedy="choose a divisor of the attending levels' channels",
            )
        if self.sampler == "consistency" and self.offset_noise:
            raise ConfigError(
                "consistency training has no offset noise",
                where="world_model.obs_model.offset_noise",
                remedy="set it to 0, or sampler to euler or heun",
            )
        if self.sigma_min >= self.sigma_max:
            raise ConfigError(
                f"obs_model.sigma_min={self.sigma_min} is not below sigma_max={self.sigma_max}",
                where="world_model.obs_model",
                remedy="lower sigma_min or raise sigma_max",
            )
