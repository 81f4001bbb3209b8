"""Vision transformers whose weights carry timm's names, as OpenVLA's checkpoints do: DINOv2 (with registers) and SigLIP.

Only what reaches the language model is built: the output of the last block but one, without norm and without the tokens
in front of the patches (timm's ``get_intermediate_layers``). So ``blocks`` holds one block less than the checkpoint.

Shape letters: B images, N patches, P tokens in front of them, E width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class ViTShape:
    """What a tower is built from."""

    width: int
    depth: int
    """Blocks of the checkpoint; the last one is not built."""
    heads: int
    hidden: int
    """Width inside a feed-forward."""
    patch: int
    """Pixels a side."""
    image_size: int
    """Pixels a side."""
    class_token: bool = False
    registers: int = 0
    layer_scale: bool = False

    @property
    def patches(self) -> int:
        """N."""
        return (self.image_size // self.patch) ** 2


class _PatchEmbed(nn.Module):
    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, shape.width, shape.patch, shape.patch)

    def forward(self, pixels: Tensor) -> Tensor:
        projected: Tensor = self.proj(pixels)
        return projected.flatten(2).transpose(1, 2)


class _Attention(nn.Module):
    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(x).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value)
        projected: Tensor = self.proj(seen.transpose(1, 2).reshape(batch, length, width))
        return projected


class _LayerScale(nn.Module):
    """Named ``scale_factor`` in OpenVLA's checkpoints; ``gamma`` in timm's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


class _MLP(nn.Module):
    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.width, shape.hidden)
        self.fc2 = nn.Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        raised: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return raised


class _Block(nn.Module):
    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width, eps=1e-6)
        self.attn = _Attention(shape)
        self.ls1 = _LayerScale(shape.width) if shape.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(shape.width, eps=1e-6)
        self.mlp = _MLP(shape)
        self.ls2 = _LayerScale(shape.width) if shape.layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        updated: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return updated


def _places(shape: ViTShape) -> Float[Tensor, "1 N E"]:
    """Where a fresh tower's positions begin: sines and cosines of column and row, 0.4 to 4 sides long, as in
    MAE (arXiv:2111.06377). Small random ones take a small tower thousands of updates to tell apart.
    """
    side, pairs = shape.image_size // shape.patch, shape.width // 4
    turns = torch.logspace(0, 1, pairs) * torch.pi / (2 * side)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    angles = torch.cat([place.reshape(-1, 1) * turns for place in (rows, columns)], dim=1)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    return F.pad(waves, (0, shape.width - waves.shape[1])).unsqueeze(0)


class VisionTransformer(nn.Module):
    """Positions are added to patches alone; class token and registers stand in front."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.shape = shape
        self.patch_embed = _PatchEmbed(shape)
        self.pos_embed = nn.Parameter(_places(shape))
        if shape.class_token:
            self.cls_token = nn.Parameter(torch.randn(1, 1, shape.width) * 0.02)
        if shape.registers:
            self.reg_token = nn.Parameter(torch.randn(1, shape.registers, shape.width) * 0.02)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.depth - 1))

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B F+N E"]:
        """Features of normalised frames: those of what stands in front, then the patches'."""
        patches = self.patch_embed(pixels) + self.pos_embed
        front = [getattr(self, name) for name in ("cls_token", "reg_token") if hasattr(self, name)]
        x = torch.cat([*(token.expand(len(patches), -1, -1) for token in front), patches], dim=1)
        for block in self.blocks:
            x = block(x)
        return x
