"""Importance ratios and the statistics made of them, as pure tensor functions.

Shape letters: B decisions, K actions per chunk, D action dimensions. ``*U`` is the shape of what has one ratio:
``B K D`` at token level, ``B`` at chunk level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
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


def ratio_mask(
    valid: Bool[Tensor, "B K"], action_dim: int, level: Literal["token", "chunk"]
) -> Bool[Tensor, "*U"]:
    """Where a ratio counts: valid tokens, or decisions with a valid action."""
    return token_mask(valid, action_dim) if level == "token" else valid.any(dim=1)


def log_ratios(
    log_probs: Float[Tensor, "B K D"],
    behaviour_log_probs: Float[Tensor, "B K D"],
    valid: Bool[Tensor, "B K"],
    level: Literal["token", "chunk"],
) -> tuple[Float[Tensor, "*U"], Bool[Tensor, "*U"]]:
    """``l = log pi - log mu`` and where it counts; at chunk level the sum over the chunk's valid tokens."""
    ratios = torch.where(token_mask(valid, log_probs.shape[-1]), log_probs - behaviour_log_probs, 0.0)
    return ratios if level == "token" else ratios.sum(dim=(1, 2)), ratio_mask(
        valid, log_probs.shape[-1], level
    )


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


LAG_BUCKETS = {"0": 0, "1": 1, "2_3": 2, "4_7": 4, "8_15": 8, "16_up": 16}
"""Name of a range of lags to its first lag; a range ends where the next one begins."""


def by_lag(
    lag: Int64[Tensor, " B"],
    mask: Bool[Tensor, "*U"],
    statistics: Callable[[Bool[Tensor, "*U"]], dict[str, Float[Tensor, ""]]],
) -> dict[str, Float[Tensor, ""]]:
    """``statistics`` of each range of lags that occurs, as ``<name>/lag_<range>``. ``statistics`` is given a mask."""
    starts = torch.tensor(list(LAG_BUCKETS.values()), device=lag.device)
    bucket = torch.bucketize(lag, starts, right=True) - 1
    rows = bucket.reshape(-1, *[1] * (mask.dim() - 1)).expand_as(mask)
    names = list(LAG_BUCKETS)
    return {
        f"{name}/lag_{names[index]}": value
        for index in torch.unique(rows[mask]).tolist()
        for name, value in statistics(mask & (rows == index)).items()
    }
