"""Generalised advantage estimation over decisions, and normalisation over all ranks.

Shape letters: B records, T decisions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def gae(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T_plus_1"],
    terminated: Bool[Tensor, " B"],
    lengths: Int64[Tensor, " B"],
    gamma_decision: float | Float[Tensor, "B T"],
    lam: float,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Advantages and returns (advantage + value); zeros beyond ``lengths``. No gradient.

    ``delta_t = r_t + gamma V_{t+1} (1 - terminated) - V_t``, ``A_t = delta_t + gamma lam A_{t+1}`` (Schulman 2016).
    ``values[b, lengths[b]]`` is the value of the true final observation: a record that did not terminate (truncated, or
    cut) bootstraps from it. ``gamma_decision`` is the discount over one decision, ``gamma ** executed actions``; give a
    tensor where that differs. What lies beyond ``lengths`` may be anything.
    """
    steps = rewards.shape[1]
    assert values.shape[1] == steps + 1, f"values {tuple(values.shape)} for rewards {tuple(rewards.shape)}"
    rewards, values = rewards.detach(), values.detach()
    position = torch.arange(steps, device=rewards.device)
    inside = position < lengths[:, None]
    ends_here = (position == lengths[:, None] - 1) & terminated[:, None]
    following = torch.where(ends_here, 0.0, values[:, 1:])
    gamma = torch.as_tensor(gamma_decision, dtype=rewards.dtype, device=rewards.device).expand_as(rewards)
    delta = torch.where(inside, rewards + gamma * following - values[:, :-1], 0.0)
    decay = torch.where(inside, gamma * lam, 0.0)
    advantages = torch.zeros_like(delta)
    running = torch.zeros_like(delta[:, 0]) if steps else delta.new_zeros(len(delta))
    for t in range(steps - 1, -1, -1):
        running = delta[:, t] + decay[:, t] * running
        advantages[:, t] = running
    return advantages, torch.where(inside, advantages + values[:, :-1], 0.0)


@dataclass(frozen=True)
class AdvantageStatistics:
    """Sums from which mean and deviation over any number of batches and ranks follow exactly."""

    sum: float
    sum_sq: float
    n: float

    @staticmethod
    def of(advantages: Float[Tensor, "*S"], mask: Bool[Tensor, "*S"]) -> AdvantageStatistics:
        """Of the entries where ``mask``, in float64."""
        chosen = advantages[mask].double()
        return AdvantageStatistics(float(chosen.sum()), float((chosen**2).sum()), float(chosen.numel()))

    def merge(self, other: AdvantageStatistics) -> AdvantageStatistics:
        """Of both together."""
        return AdvantageStatistics(self.sum + other.sum, self.sum_sq + other.sum_sq, self.n + other.n)

    def all_reduced(self, device: torch.device | str = "cpu") -> AdvantageStatistics:
        """Summed over all ranks where ``torch.distributed`` is initialised, else unchanged.

        ``device`` must suit the backend: ``cuda`` for NCCL.
        """
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self
        sums = torch.tensor([self.sum, self.sum_sq, self.n], dtype=torch.float64, device=device)
        torch.distributed.all_reduce(sums)
        return AdvantageStatistics(*sums.tolist())

    @property
    def mean(self) -> float:
        """0 of nothing."""
        return self.sum / max(self.n, 1.0)

    @property
    def deviation(self) -> float:
        """Population standard deviation."""
        return float(max(self.sum_sq / max(self.n, 1.0) - self.mean**2, 0.0) ** 0.5)


def normalize(
    advantages: Float[Tensor, "*S"],
    mask: Bool[Tensor, "*S"],
    statistics: AdvantageStatistics,
    epsilon: float = 1e-6,
) -> Float[Tensor, "*S"]:
    """``(A - mean) / (deviation + epsilon)`` where ``mask``, 0 elsewhere; equal advantages all become 0."""
    scaled = (advantages - statistics.mean) / (statistics.deviation + epsilon)
    return torch.where(mask, scaled, 0.0)
