"""Importance ratios and the statistics made of them, as pure tensor functions.

Shape letters: B decisions, K actions per chunk, D action dimensions. ``*U`` is the shape of what has one ratio:
``B K D`` at token level, ``B`` at chunk level.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Where a plain ratio must be formed, its logarithm is clamped here: e^20 is far outside every clip range, and its
square is still finite in float32."""


def masked_mean(x: Float[Tensor, "*U"], mask: Bool[Tensor, "*U"]) -> Float[Tensor, ""]:
    """Mean of ``x`` where ``mask``; 0 where nothing is. What is masked out may be anything, NaN included."""
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def token_mask(valid: Bool[Tensor, "B K"], action_dim: int) -> Bool[Tensor, "B K D"]:
    """A token counts where its action was executed."""
    return valid.unsqueeze(-1).expand(*valid.shape, action_dim)


def log_ratios(
    log_probs: Float[Tensor, "B K D"],
    behaviour_log_probs: Float[Tensor, "B K D"],
    valid: Bool[Tensor, "B K"],
    level: Literal["token", "chunk"],
) -> tuple[Float[Tensor, "*U"], Bool[Tensor, "*U"]]:
    """``l = log pi - log mu`` and where it counts; at chunk level the sum over the chunk's valid tokens."""
    mask = token_mask(valid, log_probs.shape[-1])
    ratios = torch.where(mask, log_probs - behaviour_log_probs, 0.0)
    if level == "token":
        return ratios, mask
    return ratios.sum(dim=(1, 2)), valid.any(dim=1)


def gipo_log_weight(log_ratio: Float[Tensor, "*U"], sigma: float) -> Float[Tensor, "*U"]:
    """``log omega = -(l / sigma)^2 / 2`` (design, formulas: GIPO)."""
    return -0.5 * (log_ratio / sigma) ** 2


def effective_sample_size(log_weights: Float[Tensor, "*U"], mask: Bool[Tensor, "*U"]) -> Float[Tensor, ""]:
    """Kish's ``(sum w)^2 / (n sum w^2)``, in (0, 1]; 0 where nothing counts. Computed relative to the largest weight."""
    masked = torch.where(mask, log_weights, -torch.inf)
    top = masked.max() if masked.numel() else masked.new_tensor(-torch.inf)
    weights = (masked - torch.where(top.isfinite(), top, 0.0)).exp()
    share = weights.sum() ** 2 / (mask.sum() * (weights**2).sum()).clamp(min=torch.finfo(weights.dtype).tiny)
    return share.clamp(max=1.0)


def approximate_kl(log_ratio: Float[Tensor, "*U"], mask: Bool[Tensor, "*U"]) -> Float[Tensor, ""]:
    """KL(mu || pi) by the k3 estimator ``mean(e^l - 1 - l)`` (Schulman 2020): unbiased and never negative."""
    clamped = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return masked_mean(torch.expm1(clamped) - clamped, mask).clamp(min=0.0)


def gipo_statistics_by_lag(
    log_ratio: Float[Tensor, "*U"], mask: Bool[Tensor, "*U"], lag: Int[Tensor, " B"], sigma: float
) -> dict[int, tuple[float, float]]:
    """Per lag: share of suppressed ratios (omega < 0.1) and effective sample size. For reports, not for hot loops."""
    rows = lag.reshape(-1, *[1] * (log_ratio.dim() - 1)).expand_as(log_ratio)
    log_weight = gipo_log_weight(log_ratio, sigma)
    answer = {}
    for value in torch.unique(lag).tolist():
        chosen = mask & (rows == value)
        suppressed = masked_mean((log_weight.exp() < 0.1).float(), chosen)
        answer[int(value)] = (float(suppressed), float(effective_sample_size(log_ratio + log_weight, chosen)))
    return answer
