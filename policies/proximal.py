"""The proximal policy of decoupled PPO: between the behaviour that acted and the policy that trains.

Shape letters: B decisions, K actions per chunk, D action dimensions. ``*U`` is the shape of what has one ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from configs.algorithm import AlgorithmBase, DecoupledPPOConfig
from policies.ratios import log_ratios, ratio_mask


@dataclass(frozen=True)
class Age:
    """How old decisions are when they train."""

    lag: Int64[Tensor, " B"]
    """The learner's version minus the one that acted; never negative."""
    proximal_log_probs: Float[Tensor, "B K D"] | None = None
    """Of the learner's weights at the start of the turn; only ``anchor: recompute`` needs them."""


LogProbs = Callable[[], Float[Tensor, "B K D"]]
"""Log-probabilities of the policy that trains, without gradient; called only by an anchor that needs them."""


def interpolation_share(lag: Int64[Tensor, " B"]) -> Float[Tensor, " B"]:
    """``alpha = clip((v_theta - 1 - v_b) / (v_theta - v_b), 0, 1)`` of the way from behaviour to current (AReaL).

    ``v_theta`` is the version that the turn makes: one more than the learner's, so ``v_theta - v_b = lag + 1``, the
    proximal policy stands for the turn's start, and alpha is 0 at lag 0.
    """
    steps = lag.float() + 1.0
    return ((steps - 1.0) / steps).clamp(0.0, 1.0)


def total_clip_range(
    config: DecoupledPPOConfig, lag: Int64[Tensor, "*N"]
) -> tuple[Float[Tensor, "*N"], Float[Tensor, "*N"]]:
    """``(1 - clip_low)^(lag + 1), (1 + clip_high)^(lag + 1)``: where interpolation clips the ratio to the behaviour.

    The clipped ratio is that one to the power ``1 - alpha = 1 / (lag + 1)``.
    """
    steps = lag.double() + 1.0
    return (1.0 - config.clip_low) ** steps, (1.0 + config.clip_high) ** steps


def _recompute(_current: LogProbs, _behaviour: Tensor, age: Age | None) -> Tensor:
    assert age is not None, "recomputed log-probabilities come with the lags"
    assert age.proximal_log_probs is not None, "nobody recomputed the proximal policy"
    return age.proximal_log_probs


def _interpolate(current: LogProbs, behaviour: Tensor, age: Age | None) -> Tensor:
    assert age is not None, "an interpolation needs the lags"
    return torch.lerp(behaviour, current(), interpolation_share(age.lag)[:, None, None])


def _behaviour(_current: LogProbs, behaviour: Tensor, _age: Age | None) -> Tensor:
    return behaviour


_ANCHORS: dict[str, Callable[[LogProbs, Tensor, Age | None], Tensor]] = {
    "recompute": _recompute,
    "interpolate": _interpolate,
    "behaviour": _behaviour,
}


def proximal_log_probs(
    config: DecoupledPPOConfig, current: LogProbs, behaviour: Float[Tensor, "B K D"], age: Age | None
) -> Float[Tensor, "B K D"]:
    """``log p`` of the taken tokens, without gradient."""
    return _ANCHORS[config.anchor](current, behaviour, age).detach()


def kept_ratios(
    config: DecoupledPPOConfig, log_weight: Float[Tensor, "*U"], mask: Bool[Tensor, "*U"]
) -> Bool[Tensor, "*U"]:
    """What trains: all but ``w > behave_weight_threshold``. A weight that is no number stays, so that the update is
    refused and not made without it.
    """
    if not config.behave_weight or config.behave_weight_threshold is None:
        return mask
    return mask & ~(log_weight > math.log(config.behave_weight_threshold))


@dataclass(frozen=True)
class Counts:
    """What the means of one loss are taken over."""

    ratios: float
    """Of the surrogate: tokens, or decisions at chunk level, that train."""
    tokens: float
    """Of entropy and anchor: valid tokens."""

    def __add__(self, other: Counts) -> Counts:
        """Of two micro-batches together."""
        return Counts(self.ratios + other.ratios, self.tokens + other.tokens)


def training_counts(
    config: AlgorithmBase,
    current: LogProbs,
    behaviour: Float[Tensor, "B K D"],
    valid: Bool[Tensor, "B K"],
    age: Age | None,
) -> Counts:
    """Of one micro-batch before its loss: the micro-batches of an update divide by their sum."""
    mask = ratio_mask(valid, behaviour.shape[-1], config.ratio)
    if isinstance(config, DecoupledPPOConfig):
        proximal = proximal_log_probs(config, current, behaviour, age)
        mask = kept_ratios(config, log_ratios(proximal, behaviour, valid, config.ratio)[0], mask)
    return Counts(float(mask.sum()), float(valid.sum() * behaviour.shape[-1]))
