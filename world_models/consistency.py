"""Consistency training (arXiv:2303.01469): one denoising step learns to land where the next noise level's would.

With a teacher the neighbouring point is a step of the teacher's own ODE (distillation); without one it is the true
frame with the same noise, less of it (training on data alone, as beside the policy).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from configs.obs_model import ObsModelConfig
from world_models.edm import karras_sigmas

if TYPE_CHECKING:
    from world_models.denoiser import Conditions
    from world_models.obs_model import ObservationModel

TEACHER_STEPS = 10
"""Steps of the teacher's sampler; more than ten change its frames by less than a grey level."""


def teacher_config(config: ObsModelConfig) -> ObsModelConfig:
    """The same network, sampled carefully from the noise that the student starts from."""
    steps = min(config.consistency_levels, TEACHER_STEPS)
    return replace(config, sampler="heun", sampling_steps=steps, unit_start=False)


@dataclass
class ConsistencyAim:
    """What the denoised frame should be: where the averaged weights land from the neighbouring noise level."""

    config: ObsModelConfig
    averaged: ObservationModel
    teacher: ObservationModel | None

    def draw_sigmas(
        self, rows: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """A noise level of the grid for each row, and the next lower one."""
        config = self.config
        grid = karras_sigmas(
            config.consistency_levels, sigma_min=config.sigma_min, sigma_max=config.sampling_sigma_max
        )
        levels = torch.tensor(grid, device=generator.device)
        drawn = torch.randint(
            config.consistency_levels, (rows,), generator=generator, device=generator.device
        )
        return levels[drawn], levels[drawn + 1]

    @torch.no_grad()
    def target(
        self,
        noisy: Float[Tensor, "B C h w"],
        clean: Float[Tensor, "B C h w"],
        sigma: Float[Tensor, " B"],
        sigma_next: Float[Tensor, " B"],
        conditions: Conditions,
    ) -> Float[Tensor, "B C h w"]:
        """``[B, C, h, w]``; ``noisy`` is ``clean`` with noise of level ``sigma``."""
        # The level above 0 keeps divisions finite; rows at level 0 are there already.
        level = sigma_next.clamp(min=self.config.sigma_min)
        rest = (sigma_next > 0).view(-1, 1, 1, 1)
        first, change = sigma.view(-1, 1, 1, 1), (sigma_next - sigma).view(-1, 1, 1, 1)
        towards = clean if self.teacher is None else self.teacher.denoise(noisy, sigma, conditions)
        # Towards the clean frame a step only takes noise away: x_0 + sigma z becomes x_0 + sigma' z.
        slope = (noisy - towards) / first
        near = noisy + slope * change
        if self.teacher is not None:
            # Heun's step, as the teacher's own sampler takes it.
            there = (near - self.teacher.denoise(near, level, conditions)) / level.view(-1, 1, 1, 1)
            near = torch.where(rest, noisy + (slope + there) / 2 * change, near)
        landed = self.averaged.denoise(near, level, conditions)
        return torch.where(rest, landed, near)


@torch.no_grad()
def sample_loss(
    model: ObservationModel,
    reference: ObservationModel | None,
    window: Float[Tensor, "B T C h w"],
    proprio: Float[Tensor, "B T P"],
    actions: Float[Tensor, "B S K D"],
    mask: Bool[Tensor, "B S"],
    instruction: Int[Tensor, "B W"],
    *,
    seed: int = 0,
) -> list[float]:
    """By decision, along the model's own predictions: mean square of how far its frames are from those of ``reference``
    for the same history and noise, or from the real ones; in units of ``sigma_data``.
    """
    length, scale = model.config.history, model.config.sigma_data**2
    history, present = window[:, :length], proprio[:, length - 1]
    losses = []
    for step in range(actions.shape[1]):
        on = mask[:, step]
        if not bool(on.any()):
            break
        noise = torch.Generator(window.device).manual_seed(seed + step)
        pixels, after = model.imagine(history, present, actions[:, step], instruction, generator=noise)
        aimed = window[:, length + step]
        if reference is not None:
            noise.manual_seed(seed + step)
            aimed, _ = reference.imagine(history, present, actions[:, step], instruction, generator=noise)
        losses.append(float((pixels - aimed)[on].square().mean()) / scale)
        history, present = torch.cat([history[:, 1:], pixels[:, None]], dim=1), after
    return losses
