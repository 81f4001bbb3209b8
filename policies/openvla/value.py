"""The value head: attention pooling over the states that the actions are read from.

Shape letters: B observations, Q states, E width of a state.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class ValueHead(nn.Module):
    """A query looks at the states, each with an embedding of its step in the chunk; then two layers. Zero before training."""

    def __init__(self, states: int, width: int, inner: int) -> None:
        super().__init__()
        self.states = states
        self.norm = nn.LayerNorm(width)
        self.key_value = nn.Linear(width, 2 * inner)
        self.step = nn.Parameter(torch.randn(states, inner) * 0.02)
        self.query = nn.Parameter(torch.randn(inner) * 0.02)
        self.hidden = nn.Linear(inner, inner)
        self.out = nn.Linear(inner, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, features: Float[Tensor, "*B F"]) -> Float[Tensor, "*B"]:
        """Values in float32 of ``Q * E`` numbers each."""
        with torch.autocast(features.device.type, enabled=False):
            states = self.norm(features.float().reshape(*features.shape[:-1], self.states, -1))
            key, value = self.key_value(states).chunk(2, dim=-1)
            scores = ((key + self.step) @ self.query) / key.shape[-1] ** 0.5
            pooled = (scores.softmax(dim=-1).unsqueeze(-1) * (value + self.step)).sum(dim=-2)
            values: Tensor = self.out(F.gelu(self.hidden(pooled))).squeeze(-1)
        return values
