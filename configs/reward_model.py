"""Config of the reward model."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from configs.errors import ConfigError
from configs.fields import Fraction, NaturalFloat, NaturalInt, PositiveFloat, PositiveInt, component


@component
class RewardModelConfig:
    """M_reward: probability that the frame shows success, given the instruction."""

    backbone: Literal["own", "policy"] = "own"
    """What looks at the frame: convolutions of its own, or the policy's first layers, copied with their weights."""
    freeze_backbone: bool = False
    """Keep the policy's layers as they are and train the head alone."""
    fold: Annotated[int, Field(ge=1, le=8)] = 2
    """Pixels folded into channels along each axis before the first stage; all stages keep that resolution."""
    channels: Annotated[list[PositiveInt], Field(min_length=1)] = field(default_factory=lambda: [32, 32, 64])
    """Channels of the convolutional stages."""
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
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
    hard_negatives: Fraction = 0.0
    """Share of a batch's imagined failures drawn among those that this model took for success: imagined success, real
    failure, which is what a policy finds and exploits."""
    calibration: Literal["none", "temperature", "platt"] = "none"
    """Fitted to held-out real frames as they come: one ``temperature`` of the logits, or ``platt``, with an offset too, which
    undoes that balanced draws make probabilities run high."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Success probability above which an imagined episode terminates; balanced draws make probabilities run high."""
    false_success: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Choose the threshold instead: the lowest that calls at most this share of held-out frames without success one, of
    the real as of the imagined ones."""
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

    @property
    def calibrated(self) -> bool:
        """Whether the model carries what was measured on held-out frames."""
        return self.calibration != "none" or self.false_success is not None

    def __post_init__(self) -> None:
        if self.freeze_backbone and self.backbone == "own":
            raise ConfigError(
                "reward_model.freeze_backbone=true would freeze untrained layers",
                where="world_model.reward_model.freeze_backbone",
                remedy="set reward_model.backbone=policy, or drop it",
            )
        if self.hard_negatives and not self.imagined_fraction:
            raise ConfigError(
                "reward_model.hard_negatives are imagined frames, but imagined_fraction=0",
                where="world_model.reward_model.hard_negatives",
                remedy="raise imagined_fraction, or set hard_negatives to 0",
            )
