"""How far the learner's log-probabilities are from those that inference recorded under the very same weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .policy_batch import DecisionBatch

NAME = "policy/rollout_train_logprob_gap"


def logprob_gap(logits: torch.Tensor, piece: DecisionBatch) -> dict[str, float]:
    """Mean absolute difference over valid tokens of decisions at lag 0; nothing where there are none.

    ``logits`` must be of the weights that acted: before the turn's first update, and none was made since the version.
    """
    import torch

    from policies.base import token_log_probs

    with torch.no_grad():
        log_probs, _ = token_log_probs(logits, piece.tokens)
        chosen = piece.valid & (piece.lag == 0)[:, None]
        if not bool(chosen.any()):
            return {}
        return {NAME: float((log_probs - piece.log_probs).abs()[chosen].mean())}
