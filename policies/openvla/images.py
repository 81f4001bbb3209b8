"""Frames as the towers expect them: centre crop, bicubic resize to whole grey levels, each tower's mean and deviation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of DINOv2's inputs."""
SIGLIP = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True)
class ImagePreparation:
    """Of all towers of one model; they read the same size or sizes of their own."""

    sizes: tuple[int, ...]
    """Pixels a side, per tower."""
    means: tuple[tuple[float, float, float], ...]
    deviations: tuple[tuple[float, float, float], ...]
    area: float = 1.0
    """Share of the frame that is kept, around its centre."""

    def __call__(self, frames: UInt8[Tensor, "B H W 3"]) -> list[Float[Tensor, "B 3 S S"]]:
        """One tensor per tower, normalised."""
        pixels = self._cropped(frames.permute(0, 3, 1, 2).float())
        prepared = []
        for size, mean, deviation in zip(self.sizes, self.means, self.deviations, strict=True):
            resized = _resized(pixels, size) / 255.0
            prepared.append((resized - _column(mean, pixels)) / _column(deviation, pixels))
        return prepared

    def _cropped(self, pixels: Tensor) -> Tensor:
        """Each side by the root of the area; the towers' resize follows, so the crop itself is left at its size."""
        if self.area == 1.0:
            return pixels
        height, width = (max(1, round(side * self.area**0.5)) for side in pixels.shape[2:])
        top, left = (pixels.shape[2] - height) // 2, (pixels.shape[3] - width) // 2
        return pixels[:, :, top : top + height, left : left + width]


def _resized(pixels: Tensor, size: int) -> Tensor:
    """Bicubic with antialiasing, columns first, each pass to whole grey levels: what Pillow answers, give or take one level."""
    for shape in ((pixels.shape[2], size), (size, size)):
        if tuple(pixels.shape[2:]) != shape:
            pixels = F.interpolate(pixels, shape, mode="bicubic", antialias=True).clamp(0, 255).round()
    return pixels


def _column(numbers: tuple[float, float, float], like: Tensor) -> Tensor:
    return torch.tensor(numbers, device=like.device)[:, None, None]
