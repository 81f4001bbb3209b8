"""The observation model's network trained and sampled as a reader of diffusers' documentation would write it.

The same U-Net, conditions, loss and noise as ours; the scheduler's own preconditioning and steps; float32, torch's
default layout and optimizer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import EDMEulerScheduler
from diffusers.training_utils import EMAModel
from torch import Tensor, nn

from configs.obs_model import ObsModelConfig
from world_models.base import ModelSpec
from world_models.denoiser import SHUT_GATE, Conditioner, ProprioHead, make_unet


class PlainWorldModel(nn.Module):
    """U-Net and conditions in torch's default layout."""

    def __init__(self, spec: ModelSpec, config: ObsModelConfig) -> None:
        super().__init__()
        size = spec.folded_size(config.fold, multiple=1, where="benchmark")
        self.channels = len(spec.cameras) * 3 * config.fold**2
        self.sigma_data = config.sigma_data
        self.conditioner = Conditioner(spec, 4 * config.channels[0], size)
        self.proprio_head = ProprioHead(spec, 64)
        inputs = self.channels * (1 + config.history) + self.conditioner.num_maps
        unet = make_unet(config, in_channels=inputs, out_channels=2 * self.channels)
        self.unet = unet.to(memory_format=torch.contiguous_format)

    def forward(self, scaled: Tensor, c_noise: Tensor, past: Tensor, vector: Tensor, words: Tensor) -> Tensor:
        """F, gated as ours is."""
        embedding = self.conditioner.embedding(vector, c_noise, words)
        inputs = torch.cat([scaled, past, self.conditioner.maps(vector)], dim=1).contiguous()
        content, gate = self.unet(inputs, 0, class_labels=embedding).sample.chunk(2, dim=1)
        return torch.sigmoid(gate + SHUT_GATE) * (content - past[:, -self.channels :] / self.sigma_data)


class DiffusersLoop:
    """One training step and one sampled batch."""

    def __init__(self, spec: ModelSpec, config: ObsModelConfig) -> None:
        torch.manual_seed(0)
        self.spec, self.config = spec, config
        self.model = PlainWorldModel(spec, config)
        self.scheduler: Any = EDMEulerScheduler(
            sigma_min=config.sigma_min, sigma_max=config.sampling_sigma_max, sigma_data=config.sigma_data
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate)
        self.ema = EMAModel(self.model.parameters(), decay=config.ema_decay)

    def pixels(self, frames: np.ndarray[Any, Any]) -> Tensor:
        """uint8 ``[B, L, H, W, 3]`` to ``[B, L, C, h, w]`` in [-1, 1]."""
        images = torch.from_numpy(frames).permute(0, 1, 4, 2, 3).float() / 127.5 - 1
        return F.pixel_unshuffle(images, self.config.fold)

    def train(self, windows: Any, actions: Tensor, words: Tensor) -> float:
        """One optimizer step on single transitions."""
        config = self.config
        frames = torch.cat([self.pixels(frame) for frame in windows.frames.values()], dim=2)
        proprio = torch.from_numpy(windows.proprio)
        past, last = frames[:, : config.history], frames[:, config.history - 1]
        past = past + config.conditioning_noise * torch.randn_like(past)
        clean = frames[:, config.history] - last
        sigma = (config.noise_mean + config.noise_std * torch.randn(len(clean))).exp()
        sigma = sigma.clamp(config.sigma_min, config.sigma_max).view(-1, 1, 1, 1)
        noisy = clean + sigma * torch.randn_like(clean)
        now = proprio[:, config.history - 1]
        after = self.model.proprio_head(now, actions)
        vector = self.model.conditioner.vector(now, after.detach(), actions)
        output = self.model(
            self.scheduler.precondition_inputs(noisy, sigma),
            self.scheduler.precondition_noise(sigma).flatten(),
            past.flatten(1, 2),
            vector,
            words,
        )
        denoised = self.scheduler.precondition_outputs(noisy, output, sigma)
        weight = (sigma**2 + config.sigma_data**2) / (sigma * config.sigma_data) ** 2
        loss = (weight * (denoised - clean) ** 2).mean()
        loss = loss + F.smooth_l1_loss(50 * after, 50 * proprio[:, config.history], beta=0.1) / 50
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
        self.optimizer.step()
        self.ema.step(self.model.parameters())
        return float(loss.detach())

    @torch.no_grad()
    def sample(self, windows: Any, actions: Tensor, words: Tensor, steps: int) -> Tensor:
        """uint8 frames ``[B, C, H, W]``."""
        config = self.config
        frames = torch.cat(
            [self.pixels(frame[:, : config.history]) for frame in windows.frames.values()], dim=2
        )
        now = torch.from_numpy(windows.proprio[:, config.history - 1])
        vector = self.model.conditioner.vector(now, self.model.proprio_head(now, actions), actions)
        self.scheduler.set_timesteps(steps)
        x = torch.randn_like(frames[:, -1]) * self.scheduler.init_noise_sigma
        for t in self.scheduler.timesteps:
            scaled = self.scheduler.scale_model_input(x, t)
            output = self.model(scaled, t.float().expand(len(x)), frames.flatten(1, 2), vector, words)
            x = self.scheduler.step(output, t, x).prev_sample
        images = F.pixel_shuffle(frames[:, -1] + x, config.fold)
        return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
