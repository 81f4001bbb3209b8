"""Configs of the policy objectives. ``objective`` selects the function in ``policies.objectives``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.errors import ConfigError
from configs.fields import Fraction, NaturalFloat, NaturalInt, PositiveFloat, PositiveInt, component


@component
class AlgorithmBase:
    """What every objective shares."""

    ratio: Literal["token", "chunk"] = "token"
    """Importance ratio per action token, or one per chunk (log-ratios summed over its tokens)."""
    batch: PositiveInt = 512
    """Decisions per optimizer step."""
    micro_batch: PositiveInt = 512
    """Decisions per forward and backward; gradients accumulate to ``batch``."""
    epochs: PositiveInt = 1
    """Passes of the policy over the leased samples of a turn."""
    critic_epochs: PositiveInt = 2
    """Passes of the critic over them."""
    learning_rate: NaturalFloat = 1e-4
    """AdamW, policy network."""
    learning_rate_warm_up: NaturalInt = 20
    """Policy updates over which its rate rises from zero: Adam's first steps are as long as any, whatever the gradient."""
    learning_rate_end: Fraction = 1.0
    """Share of that rate which is left at the run's last turn; it falls on a straight line."""
    critic_learning_rate: NaturalFloat = 1e-3
    """AdamW, critic network: it reads the actor's features, its gradients never reach them."""
    critic_warm_up: NaturalInt = 20
    """Turns at the start in which the critic learns alone."""
    max_grad_norm: PositiveFloat = 0.5
    """Global norm to which policy gradients are clipped."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Discount per env step."""
    gae_lambda: Fraction = 0.95
    """GAE's lambda, per decision."""
    recompute_values: bool = True
    """Compute every value with the newest critic when the batch is trained."""
    normalize_advantages: bool = True
    """Zero mean and unit deviation over all decisions of a turn."""
    entropy: NaturalFloat = 0.0
    """Weight of the entropy bonus."""
    kl_anchor: NaturalFloat = 0.1
    """Weight of KL(policy || anchor) per token; 0 turns the anchor off. The anchor is the policy that the run started
    from."""
    anchor_decay: Fraction = 1.0
    """The anchor follows the policy: each turn it keeps this share of itself and takes the rest from the policy (WARP,
    arXiv:2406.16768). 1 leaves it where the run started, 0 pulls towards the policy of the turn before."""
    value_loss: Literal["huber", "mse"] = "huber"
    """Loss of the critic."""
    value_clip: NaturalFloat = 0.0
    """Clip range of the value around the recorded one; 0 turns it off."""
    value_range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    """Least and largest return there can be: values are clipped to it where advantages and returns are made of them. [0, 1]
    where success is the only reward. Short imagined segments end in the critic's own values, which can otherwise
    drive each other beyond any return."""
    time_limit: Literal["bootstrap", "end"] = "bootstrap"
    """What the time limit of a real episode means: ``bootstrap`` from the critic as if it went on, or its ``end``: who had not
    succeeded by then failed."""

    def __post_init__(self) -> None:
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise ConfigError(
                f"algorithm.value_range={self.value_range} is empty", where="algorithm.value_range",
                remedy="give the least return first, for example [0, 1]",
            )  # fmt: skip
        if self.batch % self.micro_batch:
            raise ConfigError(
                f"algorithm.batch={self.batch} does not divide by algorithm.micro_batch={self.micro_batch}",
                where="algorithm",
                remedy="choose a micro_batch that divides the batch",
            )


@component
class GIPOConfig(AlgorithmBase):
    """Gaussian importance sampling (design: L = -mean(exp(l - (l/sigma)^2 / 2) A))."""

    objective: Literal["gipo"] = "gipo"
    sigma: PositiveFloat = 0.5
    """Width of the Gaussian weight in log-ratio units."""


@component
class ClippedBase(AlgorithmBase):
    """What the clipped objectives share."""

    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    """Bounds the loss by dual_clip * |A| where A < 0; none turns it off."""


@component
class PPOConfig(ClippedBase):
    """Clipped surrogate with separate bounds and an optional dual clip; the ratio is to the behaviour."""

    objective: Literal["ppo"] = "ppo"


@component
class DecoupledPPOConfig(ClippedBase):
    """PPO around a proximal policy, times how likely that policy was to act as the behaviour did."""

    objective: Literal["decoupled_ppo"] = "decoupled_ppo"
    anchor: Literal["recompute", "interpolate", "behaviour"] = "recompute"
    """The proximal policy: the learner's weights at the start of the turn, an interpolation by versions, or the behaviour."""
    behave_weight: bool = True
    """Multiply by w = proximal / behaviour. False trusts that both are one, and is refused where data can be stale."""
    behave_weight_threshold: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = 2.0
    """Tokens (or chunks) whose w is above it do not train; none keeps all."""


AlgorithmConfig = Annotated[GIPOConfig | PPOConfig | DecoupledPPOConfig, Field(discriminator="objective")]
