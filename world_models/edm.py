"""The arithmetic of EDM (Karras et al. 2022, arXiv:2206.00364), with DIAMOND's offset noise (arXiv:2405.12399).

Pure functions. ``sigma`` is the deviation of the noise; ``sigma_data`` that of what is diffused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

KARRAS_RHO = 7.0
"""Table 1 of the EDM paper."""


@dataclass(frozen=True)
class Preconditioning:
    """The denoiser is ``D(x, sigma) = c_skip x + c_out F(c_in x, c_noise)``."""

    c_skip: Float[Tensor, " B"]
    c_out: Float[Tensor, " B"]
    c_in: Float[Tensor, " B"]
    c_noise: Float[Tensor, " B"]


def precondition(
    sigma: Float[Tensor, " B"], sigma_data: float, *, offset_noise: float = 0.0
) -> Preconditioning:
    """Coefficients of EDM's table 1; offset noise counts as noise: sigma^2 + offset^2 in the place of sigma^2."""
    total_variance = sigma**2 + offset_noise**2
    variance = total_variance + sigma_data**2
    total = total_variance.sqrt()
    return Preconditioning(
        c_skip=sigma_data**2 / variance,
        c_out=total * sigma_data / variance.sqrt(),
        c_in=1.0 / variance.sqrt(),
        c_noise=total.log() / 4.0,
    )


def draw_sigmas(
    count: int, *, mean: float, std: float, low: float, high: float, generator: torch.Generator
) -> Float[Tensor, " B"]:
    """``ln sigma ~ N(mean, std^2)``, clipped to [low, high]."""
    log_sigma = mean + std * torch.randn(count, generator=generator, device=generator.device)
    return log_sigma.exp().clamp(low, high)


def draw_noise(shape: tuple[int, int, int, int], generator: torch.Generator) -> Float[Tensor, "B C h w"]:
    """Unit Gaussian noise, channels last in memory (drawn in memory's order, which is much faster)."""
    rows, channels, height, width = shape
    noise = torch.randn(rows, height, width, channels, generator=generator, device=generator.device)
    return noise.movedim(-1, 1)


def draw_offset(
    rows: int, channels: int, *, offset_noise: float, generator: torch.Generator
) -> Float[Tensor, "B C 1 1"]:
    """Noise shared by all pixels of a channel, deviation ``offset_noise``, not scaled by sigma (as DIAMOND)."""
    return offset_noise * torch.randn(rows, channels, 1, 1, generator=generator, device=generator.device)


def karras_sigmas(steps: int, *, sigma_min: float, sigma_max: float, rho: float = KARRAS_RHO) -> list[float]:
    """Equation 5 of the EDM paper: ``steps`` falling noise levels from ``sigma_max``, then 0."""
    assert steps >= 1
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    ramp = [i / (steps - 1) if steps > 1 else 0.0 for i in range(steps)]
    return [(high + r * (low - high)) ** rho for r in ramp] + [0.0]


def euler_step(
    x: Float[Tensor, "*shape"], denoised: Float[Tensor, "*shape"], sigma: float, sigma_next: float
) -> Float[Tensor, "*shape"]:
    """One Euler step of the probability-flow ODE ``dx/dsigma = (x - D) / sigma``."""
    return x + (x - denoised) * ((sigma_next - sigma) / sigma)
