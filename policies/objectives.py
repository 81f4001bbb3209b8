"""What the policy learner minimises: GIPO, PPO or decoupled PPO, entropy, the anchor, and the critic's loss. Pure tensor functions.

Shape letters: B decisions, K actions per chunk, D action dimensions. Means are over valid tokens, or over decisions with
a valid token at chunk level. A learner that accumulates micro-batches gives ``policy_loss`` what all of them count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from configs.algorithm import AlgorithmBase, ClippedBase, DecoupledPPOConfig, GIPOConfig, PPOConfig
from policies.base import token_log_probs
from policies.proximal import Age, Counts, kept_ratios, proximal_log_probs, total_clip_range
from policies.ratios import (
    MAX_LOG_RATIO,
    approximate_kl,
    by_lag,
    effective_sample_size,
    gipo_log_weight,
    log_ratios,
    masked_mean,
    token_mask,
)


@dataclass
class ObjectiveResult:
    """A loss and what to report about it."""

    loss: Float[Tensor, ""]
    count: Float[Tensor, ""]
    """What the mean was taken over: valid tokens, or decisions."""
    statistics: dict[str, Float[Tensor, ""]] = field(default_factory=dict)
    """Metric name without its prefix to a detached scalar on the loss's device."""


def gipo_loss(
    config: GIPOConfig,
    log_probs: Float[Tensor, "B K D"],
    behaviour_log_probs: Float[Tensor, "B K D"],
    advantages: Float[Tensor, " B"],
    valid: Bool[Tensor, "B K"],
    age: Age | None = None,
) -> ObjectiveResult:
    """``-mean(omega e^l A)``, ``omega = exp(-(l/sigma)^2 / 2)`` without gradient (design, formulas).

    ``exp(l - (l/sigma)^2 / 2)`` of the detached l times the gradient of log pi is the same gradient and cannot overflow.
    """
    log_ratio, mask = log_ratios(log_probs, behaviour_log_probs, valid, config.ratio)
    fixed = log_ratio.detach()
    log_weight = gipo_log_weight(fixed, config.sigma)
    scale = (fixed + log_weight).exp()
    # The added difference is zero: it carries the gradient of log pi and leaves the value alone.
    surrogate = scale * (1.0 + log_ratio - fixed) * _per_unit(advantages, log_ratio)
    weight = log_weight.exp()

    def reached(chosen: Tensor) -> dict[str, Tensor]:
        return {
            "gipo_suppressed_ratio": masked_mean((weight < 0.1).float(), chosen),
            "effective_sample_size": effective_sample_size(fixed + log_weight, chosen),
        }

    return ObjectiveResult(
        loss=-masked_mean(surrogate, mask),
        count=mask.sum(),
        statistics={
            "gipo_weight_mean": masked_mean(weight, mask),
            **_ratio_statistics(fixed, mask),
            **_overall_and_by_lag(age, mask, reached),
        },
    )


def ppo_loss(
    config: PPOConfig,
    log_probs: Float[Tensor, "B K D"],
    behaviour_log_probs: Float[Tensor, "B K D"],
    advantages: Float[Tensor, " B"],
    valid: Bool[Tensor, "B K"],
    age: Age | None = None,
) -> ObjectiveResult:
    """``-mean(min(r A, clip(r, 1 - clip_low, 1 + clip_high) A))`` (Schulman 2017), ``r = pi / mu``, with dual clip."""
    log_ratio, mask = log_ratios(log_probs, behaviour_log_probs, valid, config.ratio)
    clipped = _clip(config, log_ratio, _per_unit(advantages, log_ratio))
    fixed = log_ratio.detach()

    def reached(chosen: Tensor) -> dict[str, Tensor]:
        return {
            "clip_fraction": masked_mean(clipped.is_clipped.float(), chosen),
            "effective_sample_size": effective_sample_size(fixed, chosen),
        }

    return ObjectiveResult(
        loss=masked_mean(clipped.losses, mask),
        count=mask.sum(),
        statistics={
            "dual_clip_fraction": masked_mean(clipped.is_bounded.float(), mask),
            **_ratio_statistics(fixed, mask),
            **_overall_and_by_lag(age, mask, reached),
        },
    )


def decoupled_ppo_loss(
    config: DecoupledPPOConfig,
    log_probs: Float[Tensor, "B K D"],
    behaviour_log_probs: Float[Tensor, "B K D"],
    advantages: Float[Tensor, " B"],
    valid: Bool[Tensor, "B K"],
    age: Age | None = None,
) -> ObjectiveResult:
    """PPO's clipped loss of ``r = pi / p`` times ``w = p / mu`` (no gradient), over what ``w`` leaves (Hilton 2021;
    AReaL). ``p`` is the proximal policy, ``mu`` the behaviour.
    """
    proximal = proximal_log_probs(config, log_probs.detach, behaviour_log_probs, age)
    log_ratio, mask = log_ratios(log_probs, proximal, valid, config.ratio)
    log_weight, _ = log_ratios(proximal, behaviour_log_probs, valid, config.ratio)
    kept = kept_ratios(config, log_weight, mask)
    clipped = _clip(config, log_ratio, _per_unit(advantages, log_ratio))
    weight = _bounded_exp(log_weight) if config.behave_weight else torch.ones_like(log_weight)
    fixed = log_ratio.detach()
    total = fixed + log_weight

    def reached(chosen: Tensor) -> dict[str, Tensor]:
        return {
            "behav_clip_fraction": masked_mean((~kept).float(), chosen),
            # What is dropped has weight 0, and still counts as a sample that was paid for.
            "effective_sample_size": effective_sample_size(torch.where(kept, total, -torch.inf), chosen),
        }

    return ObjectiveResult(
        loss=masked_mean(clipped.losses * weight, kept),
        count=kept.sum(),
        statistics={
            "clip_fraction": masked_mean(clipped.is_clipped.float(), kept),
            "dual_clip_fraction": masked_mean(clipped.is_bounded.float(), kept),
            "proximal_approx_kl": approximate_kl(fixed, kept),
            "behav_approx_kl": approximate_kl(log_weight, mask),
            "ratio_mean": masked_mean(_bounded_exp(total), mask),
            **_overall_and_by_lag(age, mask, reached),
            **_clip_range(config, age),
        },
    )


OBJECTIVES: dict[type[AlgorithmBase], Callable[..., ObjectiveResult]] = {
    GIPOConfig: gipo_loss,
    PPOConfig: ppo_loss,
    DecoupledPPOConfig: decoupled_ppo_loss,
}
"""Class of the config to ``f(config, log_probs, behaviour_log_probs, advantages, valid, age)``."""


def kl_to_anchor(
    logits: Float[Tensor, "B K D bins"],
    anchor_logits: Float[Tensor, "B K D bins"],
    valid: Bool[Tensor, "B K"],
) -> Float[Tensor, ""]:
    """Exact KL(policy || pretrained policy) per token, mean over valid tokens; no gradient to the anchor."""
    log_p = logits.float().log_softmax(dim=-1)
    log_q = anchor_logits.detach().float().log_softmax(dim=-1)
    return masked_mean((log_p.exp() * (log_p - log_q)).sum(dim=-1), token_mask(valid, logits.shape[2]))


def policy_loss(
    config: AlgorithmBase,
    logits: Float[Tensor, "B K D bins"],
    tokens: Int64[Tensor, "B K D"],
    behaviour_log_probs: Float[Tensor, "B K D"],
    advantages: Float[Tensor, " B"],
    valid: Bool[Tensor, "B K"],
    anchor_logits: Float[Tensor, "B K D bins"] | None = None,
    age: Age | None = None,
    over: Counts | None = None,
) -> ObjectiveResult:
    """The config's objective, minus the entropy bonus, plus the anchor where ``anchor_logits`` are given.

    The loss of one micro-batch divides by ``over``, what all micro-batches of the update count, so that their sum is
    the loss of the batch. The statistics are its own.
    """
    log_probs, entropy = token_log_probs(logits, tokens)
    result = OBJECTIVES[type(config)](config, log_probs, behaviour_log_probs, advantages, valid, age)
    mask = token_mask(valid, tokens.shape[-1])
    mean_entropy = masked_mean(entropy, mask)
    result.statistics["entropy"] = mean_entropy.detach()
    surrogate = result.loss
    extra = -config.entropy * mean_entropy if config.entropy else torch.zeros_like(mean_entropy)
    if anchor_logits is not None:
        kl = kl_to_anchor(logits, anchor_logits, valid)
        extra = extra + config.kl_anchor * kl
        result.statistics["anchor_kl"] = kl.detach()
    result.statistics["loss"] = (surrogate + extra).detach()
    result.loss = surrogate + extra
    if over is not None:
        result.loss = surrogate * (result.count / max(1.0, over.ratios)) + extra * (
            mask.sum() / max(1.0, over.tokens)
        )
    return result


_VALUE_LOSSES: dict[str, Callable[..., Any]] = {"huber": F.huber_loss, "mse": F.mse_loss}


def value_loss(
    config: AlgorithmBase,
    values: Float[Tensor, " B"],
    returns: Float[Tensor, " B"],
    old_values: Float[Tensor, " B"],
    mask: Bool[Tensor, " B"],
) -> ObjectiveResult:
    """Huber (delta 1) or squared error; with ``value_clip`` the worse of it and that of the value clipped around
    ``old_values`` (Schulman's PPO code). ``mask`` says which decisions count.
    """
    elementwise = _VALUE_LOSSES[config.value_loss]
    losses = elementwise(values, returns, reduction="none")
    if config.value_clip:
        near = old_values + (values - old_values).clamp(-config.value_clip, config.value_clip)
        losses = torch.maximum(losses, elementwise(near, returns, reduction="none"))
    loss = masked_mean(losses, mask)
    statistics = {
        "value_loss": loss.detach(),
        "explained_variance": explained_variance(values.detach(), returns, mask),
    }
    return ObjectiveResult(loss=loss, count=mask.sum(), statistics=statistics)


def explained_variance(
    values: Float[Tensor, " B"], returns: Float[Tensor, " B"], mask: Bool[Tensor, " B"]
) -> Float[Tensor, ""]:
    """``1 - Var(returns - values) / Var(returns)``: 1 is perfect, 0 no better than a constant; 0 for constant returns."""

    def variance(x: Tensor) -> Tensor:
        return masked_mean((x - masked_mean(x, mask)) ** 2, mask)

    total = variance(returns)
    return torch.where(total > 0, 1 - variance(returns - values) / total.clamp(min=1e-12), 0.0)


def _per_unit(advantages: Tensor, log_ratio: Tensor) -> Tensor:
    """One advantage per decision, shaped to stand beside its ratios. No gradient."""
    return advantages.detach().reshape(-1, *[1] * (log_ratio.dim() - 1)).expand_as(log_ratio)


def _bounded_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@dataclass
class _Clipped:
    losses: Tensor
    is_clipped: Tensor
    is_bounded: Tensor


def _clip(config: ClippedBase, log_ratio: Tensor, advantage: Tensor) -> _Clipped:
    """``max(-r A, -clip(r) A)``; the dual clip (Ye 2020) bounds it by ``dual_clip |A|`` where A < 0. The log-ratio is
    clamped to +-20 first, so that the ratio stays finite.
    """
    ratio = _bounded_exp(log_ratio)
    free, clipped = -ratio * advantage, -ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantage
    losses = torch.maximum(free, clipped)
    is_bounded = torch.zeros_like(losses, dtype=torch.bool)
    if config.dual_clip is not None:
        bound = config.dual_clip * advantage.abs()
        is_bounded = (advantage < 0) & (losses > bound)
        losses = torch.where(is_bounded, bound, losses)
    return _Clipped(losses, clipped > free, is_bounded)


def _ratio_statistics(log_ratio: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return {
        "ratio_mean": masked_mean(_bounded_exp(log_ratio), mask),
        "behav_approx_kl": approximate_kl(log_ratio, mask),
    }


def _overall_and_by_lag(
    age: Age | None, mask: Tensor, statistics: Callable[[Tensor], dict[str, Tensor]]
) -> dict[str, Tensor]:
    return {**statistics(mask), **(by_lag(age.lag, mask, statistics) if age is not None else {})}


def _clip_range(config: DecoupledPPOConfig, age: Age | None) -> dict[str, Tensor]:
    """Of the oldest decision; only interpolation widens it with the lag."""
    if config.anchor != "interpolate" or age is None or not len(age.lag):
        return {}
    low, high = total_clip_range(config, age.lag.max())
    return {"total_clip_low": low, "total_clip_high": high}
