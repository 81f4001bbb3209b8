"""What the policy learner minimises: GIPO or PPO, entropy, the anchor, and the critic's loss. Pure tensor functions.

Shape letters: B decisions, K actions per chunk, D action dimensions. Means are over valid tokens, or over decisions with
a valid token at chunk level. A learner that accumulates micro-batches weighs each by ``count``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from configs.algorithm import AlgorithmBase, GIPOConfig, PPOConfig
from policies.base import token_log_probs
from policies.ratios import (
    MAX_LOG_RATIO,
    approximate_kl,
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
    return ObjectiveResult(
        loss=-masked_mean(surrogate, mask),
        count=mask.sum(),
        statistics={
            "gipo_weight_mean": masked_mean(weight, mask),
            "gipo_suppressed_ratio": masked_mean((weight < 0.1).float(), mask),
            "effective_sample_size": effective_sample_size(fixed + log_weight, mask),
            **_ratio_statistics(fixed, mask),
        },
    )


def ppo_loss(
    config: PPOConfig,
    log_probs: Float[Tensor, "B K D"],
    behaviour_log_probs: Float[Tensor, "B K D"],
    advantages: Float[Tensor, " B"],
    valid: Bool[Tensor, "B K"],
) -> ObjectiveResult:
    """``-mean(min(r A, clip(r, 1 - clip_low, 1 + clip_high) A))`` (Schulman 2017); the dual clip (Ye 2020) bounds the
    loss by ``dual_clip |A|`` where A < 0. The log-ratio is clamped to +-20 first, so that the ratio stays finite.
    """
    log_ratio, mask = log_ratios(log_probs, behaviour_log_probs, valid, config.ratio)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    advantage = _per_unit(advantages, log_ratio)
    free, clipped = -ratio * advantage, -ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantage
    losses = torch.maximum(free, clipped)
    is_clipped, is_bounded = clipped > free, torch.zeros_like(mask)
    if config.dual_clip is not None:
        bound = config.dual_clip * advantage.abs()
        is_bounded = (advantage < 0) & (losses > bound)
        losses = torch.where(is_bounded, bound, losses)
    fixed = log_ratio.detach()
    return ObjectiveResult(
        loss=masked_mean(losses, mask),
        count=mask.sum(),
        statistics={
            "clip_fraction": masked_mean(is_clipped.float(), mask),
            "dual_clip_fraction": masked_mean(is_bounded.float(), mask),
            "effective_sample_size": effective_sample_size(fixed, mask),
            **_ratio_statistics(fixed, mask),
        },
    )


OBJECTIVES: dict[type[AlgorithmBase], Callable[..., ObjectiveResult]] = {
    GIPOConfig: gipo_loss,
    PPOConfig: ppo_loss,
}
"""Class of the config to ``f(config, log_probs, behaviour_log_probs, advantages, valid)``."""


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
) -> ObjectiveResult:
    """The config's objective, minus the entropy bonus, plus the anchor where ``anchor_logits`` are given."""
    log_probs, entropy = token_log_probs(logits, tokens)
    result = OBJECTIVES[type(config)](config, log_probs, behaviour_log_probs, advantages, valid)
    mean_entropy = masked_mean(entropy, token_mask(valid, tokens.shape[-1]))
    result.statistics["entropy"] = mean_entropy.detach()
    if config.entropy:
        result.loss = result.loss - config.entropy * mean_entropy
    if anchor_logits is not None:
        kl = kl_to_anchor(logits, anchor_logits, valid)
        result.loss = result.loss + config.kl_anchor * kl
        result.statistics["anchor_kl"] = kl.detach()
    result.statistics["loss"] = result.loss.detach()
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


def _ratio_statistics(log_ratio: Tensor, mask: Tensor) -> dict[str, Tensor]:
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return {"ratio_mean": masked_mean(ratio, mask), "behav_approx_kl": approximate_kl(log_ratio, mask)}
