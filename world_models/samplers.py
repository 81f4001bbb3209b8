"""From noise to a frame: solvers of EDM's probability-flow ODE, and consistency sampling.

Pure functions of a denoiser ``D(x, sigma)``, a first ``x`` and falling noise levels that end in 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from world_models.edm import draw_noise, euler_step

Denoise = Callable[[Tensor, float], Tensor]
"""Noisy ``[B, C, h, w]`` and its noise level to the denoised one."""
Sampler = Callable[[Denoise, Tensor, Sequence[float], torch.Generator], Tensor]
SamplerName = Literal["euler", "heun", "consistency"]


def sample_euler(
    denoise: Denoise, x: Float[Tensor, "B C h w"], sigmas: Sequence[float], _generator: torch.Generator
) -> Float[Tensor, "B C h w"]:
    """One evaluation a step."""
    for sigma, sigma_next in itertools.pairwise(sigmas):
        x = euler_step(x, denoise(x, sigma), sigma, sigma_next)
    return x


def sample_heun(
    denoise: Denoise, x: Float[Tensor, "B C h w"], sigmas: Sequence[float], _generator: torch.Generator
) -> Float[Tensor, "B C h w"]:
    """Algorithm 1 of the EDM paper: the slope is the mean of those at both ends, but for the last step, to noise 0."""
    for sigma, sigma_next in itertools.pairwise(sigmas):
        slope = (x - denoise(x, sigma)) / sigma
        ahead = x + slope * (sigma_next - sigma)
        if sigma_next > 0:
            slope = (slope + (ahead - denoise(ahead, sigma_next)) / sigma_next) / 2
            ahead = x + slope * (sigma_next - sigma)
        x = ahead
    return x


def sample_consistency(
    denoise: Denoise, x: Float[Tensor, "B C h w"], sigmas: Sequence[float], generator: torch.Generator
) -> Float[Tensor, "B C h w"]:
    """Algorithm 1 of consistency models (arXiv:2303.01469): to noise 0 at once; each further step adds noise anew."""
    first, *further = sigmas[:-1]
    x = denoise(x, first)
    for sigma in further:
        rows, channels, height, width = x.shape
        x = denoise(x + sigma * draw_noise((rows, channels, height, width), generator), sigma)
    return x


SAMPLERS: dict[SamplerName, Sampler] = {
    "euler": sample_euler,
    "heun": sample_heun,
    "consistency": sample_consistency,
}
