"""The network F of M_obs: a U-Net that sees the noisy target, past frames, actions, proprio and instruction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from configs.obs_model import ObsModelConfig
from world_models.acceleration import require_compiler, to_fp8, uses_bfloat16
from world_models.base import ModelSpec, coordinate_maps

NOISE_FEATURES = 16
"""Fourier features of c_noise; it moves between -1.6 and 0.8, so a few smooth waves tell all levels apart."""
SHUT_GATE = -3.0
"""Bias of the gate: an untrained model nearly copies."""
NORM_GROUPS = 1
"""One group: torch's CPU kernel for channels-last bfloat16 is 8 to 17 times faster than with several."""


@dataclass(frozen=True)
class Conditions:
    """What a transition is predicted from, beside the noisy frame."""

    past: Float[Tensor, "B LC h w"]
    vector: Float[Tensor, "B N"]
    """As ``Conditioner.vector`` makes it."""
    instruction: Int[Tensor, "B W"]


class Conditioner(nn.Module):
    """What the U-Net is told beside pixels: an embedding for its group norms and maps beside its input channels."""

    def __init__(self, spec: ModelSpec, width: int, size: tuple[int, int]) -> None:
        super().__init__()
        actions = spec.actions_per_step * spec.action_dim
        self.num_maps = actions + 2 * spec.proprio_dim + 2
        self.words = nn.Embedding(spec.num_words, width, padding_idx=0)
        self.register_buffer("frequencies", torch.linspace(0.25, 4.0, NOISE_FEATURES // 2), persistent=False)
        self.register_buffer("coordinates", coordinate_maps(*size), persistent=False)
        self.mlp = nn.Sequential(
            nn.Linear(actions + 2 * spec.proprio_dim + NOISE_FEATURES, width),
            nn.SiLU(),
            nn.Linear(width, width),
        )

    def vector(
        self,
        proprio: Float[Tensor, "B P"],
        next_proprio: Float[Tensor, "B P"],
        actions: Float[Tensor, "B R D"],
    ) -> Float[Tensor, "B N"]:
        """Everything but noise and words, concatenated."""
        return torch.cat([actions.flatten(1), proprio, next_proprio], dim=1)

    def maps(self, vector: Float[Tensor, "B N"]) -> Float[Tensor, "B M h w"]:
        """The vector at every cell, with the cell's coordinates: where the arm is becomes a local question."""
        coordinates: Tensor = self.get_buffer("coordinates")
        height, width = coordinates.shape[-2:]
        rows = vector.shape[0]
        broadcast = vector[:, :, None, None].expand(-1, -1, height, width)
        return torch.cat([broadcast, coordinates.expand(rows, -1, -1, -1)], dim=1)

    def embedding(
        self, vector: Float[Tensor, "B N"], c_noise: Float[Tensor, " B"], instruction: Int[Tensor, "B W"]
    ) -> Float[Tensor, "B E"]:
        """Embedding for the adaptive group norms."""
        waves = 2 * math.pi * c_noise[:, None] * self.get_buffer("frequencies")[None]
        features = torch.cat([vector, waves.cos(), waves.sin()], dim=1)
        return self.mlp(features) + mean_of_words(self.words, instruction)  # type: ignore[no-any-return]


class ProprioHead(nn.Module):
    """Next proprio: one small step model, applied once per executed action; zero change at initialisation."""

    def __init__(self, spec: ModelSpec, width: int) -> None:
        super().__init__()
        last = nn.Linear(width, spec.proprio_dim)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        inputs = spec.proprio_dim + spec.action_dim
        self.step = nn.Sequential(
            nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), last
        )

    def forward(self, proprio: Float[Tensor, "B P"], actions: Float[Tensor, "B R D"]) -> Float[Tensor, "B P"]:
        """Proprio after R actions, same units as ``proprio``; in float32 even inside a caller's autocast."""
        with torch.autocast(proprio.device.type, enabled=False):
            for action in actions.unbind(1):
                proprio = proprio + self.step(torch.cat([proprio, action], dim=1))
        return proprio


def mean_of_words(embedding: nn.Embedding, instruction: Int[Tensor, "B W"]) -> Float[Tensor, "B E"]:
    """Mean embedding of the words that are not padding (zero for an empty instruction)."""
    count = (instruction != 0).sum(1, keepdim=True).clamp(min=1)
    return embedding(instruction).sum(1) / count  # type: ignore[no-any-return]


def make_unet(config: ObsModelConfig, *, in_channels: int, out_channels: int) -> nn.Module:
    """U-Net of diffusers, conditioned through ``class_labels`` only, its last convolution zeroed.

    Raises ResourceError where the machine cannot do what the config asks for.
    """
    from diffusers import UNet2DModel

    levels = range(len(config.channels))
    attends = [level in config.attention for level in levels]
    unet: Any = UNet2DModel(  # type: ignore[no-untyped-call]
        in_channels=in_channels,
        out_channels=out_channels,
        down_block_types=tuple("AttnDownBlock2D" if attends[i] else "DownBlock2D" for i in levels),
        up_block_types=tuple("AttnUpBlock2D" if attends[i] else "UpBlock2D" for i in reversed(levels)),
        block_out_channels=tuple(config.channels),
        layers_per_block=config.layers_per_block,
        norm_num_groups=NORM_GROUPS,
        attention_head_dim=config.attention_head,
        resnet_time_scale_shift="scale_shift",
        class_embed_type="identity",
        add_attention=attends[-1],
    )
    nn.init.zeros_(unet.conv_out.weight)
    nn.init.zeros_(unet.conv_out.bias)
    if config.checkpointing:
        unet.enable_gradient_checkpointing()
    if config.precision == "fp8":
        to_fp8(unet)
    if config.compiled:
        require_compiler()
    return unet.to(memory_format=torch.channels_last)  # type: ignore[no-any-return]


class Denoiser(nn.Module):
    """F: the noisy target with its conditions to the network output, all in folded pixel space.

    For the residual target the U-Net says where to paint and what: ``F = gate * (content - last / sigma_data)``, so that
    the change ``sigma_data * F`` at high noise replaces the last frame by the content where the gate is open and copies
    it exactly where it is shut. Without the gate, what is erased leaves ghosts and still ground gathers noise.
    """

    def __init__(self, spec: ModelSpec, config: ObsModelConfig) -> None:
        super().__init__()
        multiple = 2 ** (len(config.channels) - 1)
        size = spec.folded_size(config.fold, multiple=multiple, where="world_model.obs_model")
        self.channels = len(spec.cameras) * 3 * config.fold**2
        self.size = size
        self.conditioner = Conditioner(spec, 4 * config.channels[0], size)
        inputs = self.channels * (1 + config.history) + self.conditioner.num_maps
        self.gated = config.target == "residual"
        self.sigma_data = config.sigma_data
        outputs = self.channels * (2 if self.gated else 1)
        self.unet = make_unet(config, in_channels=inputs, out_channels=outputs)
        self.precision = config.precision
        self.compiled = config.compiled

    def forward(
        self,
        scaled: Float[Tensor, "B C h w"],
        c_noise: Float[Tensor, " B"],
        past: Float[Tensor, "B LC h w"],
        vector: Float[Tensor, "B N"],
        instruction: Int[Tensor, "B W"],
    ) -> Float[Tensor, "B C h w"]:
        """``scaled`` is c_in x; ``past`` the history in channels; float32 out whatever runs inside."""
        embedding = self.conditioner.embedding(vector, c_noise, instruction)
        inputs = torch.cat([scaled, past, self.conditioner.maps(vector)], dim=1)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        if self.compiled and self.unet._compiled_call_impl is None:
            # Here and not where it is made: a copy of the module, such as the averaged one, starts uncompiled.
            self.unet.compile(dynamic=True)
        device = inputs.device.type
        half = uses_bfloat16(self.precision, device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=half):
            output = self.unet(inputs, 0, class_labels=embedding, return_dict=False)[0]
        output = output.float()
        if not self.gated:
            return output  # type: ignore[no-any-return]
        content, gate = output.chunk(2, dim=1)
        last = past[:, -self.channels :] / self.sigma_data
        return torch.sigmoid(gate + SHUT_GATE) * (content - last)  # type: ignore[no-any-return]
