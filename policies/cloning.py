"""Behaviour cloning of action tokens.

Shape letters: B decisions, K actions per chunk, D action dimensions.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from policies.objectives import ObjectiveResult
from policies.ratios import masked_mean, token_mask


def cloning_loss(
    logits: Float[Tensor, "B K D bins"],
    tokens: Int64[Tensor, "B K D"],
    valid: Bool[Tensor, "B K"],
    *,
    neighbour_smoothing: float = 0.0,
) -> ObjectiveResult:
    """Cross-entropy, mean over valid tokens; reports token accuracy and the mean absolute error in bins.

    ``neighbour_smoothing`` is the share of the target's mass that its two neighbouring bins get (half each; the last bin
    keeps what has no neighbour): bins are ordered, and a miss by one is a small miss.
    """
    log_p = logits.float().log_softmax(dim=-1)
    mask = token_mask(valid, logits.shape[2])
    tokens = torch.where(mask, tokens, 0)
    last = logits.shape[-1] - 1
    losses = -_pick(log_p, tokens)
    if neighbour_smoothing:
        beside = _pick(log_p, (tokens - 1).clamp(min=0)) + _pick(log_p, (tokens + 1).clamp(max=last))
        losses = (1 - neighbour_smoothing) * losses - 0.5 * neighbour_smoothing * beside
    guess = log_p.detach().argmax(dim=-1)
    loss = masked_mean(losses, mask)
    return ObjectiveResult(
        loss=loss,
        count=mask.sum(),
        statistics={
            "cloning_loss": loss.detach(),
            "token_accuracy": masked_mean((guess == tokens).float(), mask),
            "bin_error": masked_mean((guess - tokens).abs().float(), mask),
        },
    )


def _pick(log_p: Tensor, tokens: Tensor) -> Tensor:
    return log_p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
