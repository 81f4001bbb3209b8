"""Action tokens out of policies that answer with a continuous action: a Gaussian around it, at the middles of the bins.

What acts is then a distribution over tokens like any other: its log-probabilities, entropy and distance to an anchor are
exact, finite everywhere, and the same on every machine; no density is approximated. The gradient of a token's
log-probability by the mean is ``(c - E[c]) / sigma^2``, the score of a Gaussian that stays inside the range.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def gaussian_logits(
    means: Float[Tensor, "*N"], centres: Float[Tensor, " bins"], sigma: float
) -> Float[Tensor, "*N bins"]:
    """``-((c - mean) / sigma)^2 / 2``, float32; means, centres and ``sigma`` in the same units."""
    with torch.autocast(means.device.type, enabled=False):
        return -0.5 * ((centres - means.float().unsqueeze(-1)) / sigma) ** 2


def uniform_centres(bins: int) -> Float[Tensor, " bins"]:
    """Middles of equal parts of [-1, 1]: what ``ActionTokenizer`` decodes to, in half ranges."""
    return (2 * torch.arange(bins, dtype=torch.float32) + 1) / bins - 1


def openvla_centres(bins: int) -> Float[Tensor, " bins"]:
    """Middles of the ``bins - 1`` parts that OpenVLA cuts [-1, 1] into. The last token, the upper end's own, lies one part
    beyond them: what is above the range goes there, and decodes as the part below it.
    """
    return (2 * torch.arange(bins, dtype=torch.float32) + 1) / (bins - 1) - 1
