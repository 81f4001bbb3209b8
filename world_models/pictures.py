"""How alike two pictures are: PSNR, SSIM, and a distance in the features of M_reward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

LEVELS = 255.0
PIXELS_AT_ONCE = 1 << 20
"""Of pictures that are compared together: their double-precision maps take some 250 MB."""
WINDOW, SIGMA = 11, 1.5
"""Gaussian window of Wang et al. 2004, section III-B."""
C1, C2 = (0.01 * LEVELS) ** 2, (0.03 * LEVELS) ** 2
"""Their constants for 8-bit pixels."""


def psnr(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """``10 log10(255^2 / MSE)`` over all pixels; equal frames count as an error of a hundredth of a grey level."""
    error = float(np.mean((a.astype(np.float32) - b.astype(np.float32)) ** 2))
    return float(10 * np.log10(LEVELS**2 / max(error, 1e-4)))


def ssim(a: UInt8[NDArray[np.uint8], "N H W 3"], b: UInt8[NDArray[np.uint8], "N H W 3"]) -> float:
    """Mean structural similarity over colours, windows that lie in the picture, and pictures; 1 for equal ones.

    Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural similarity", 2004,
    equation 13 with a Gaussian window. Pictures smaller than the window get one of their own size.
    """
    at_once = max(1, PIXELS_AT_ONCE // (a.shape[1] * a.shape[2]))
    parts = [slice(i, i + at_once) for i in range(0, len(a), at_once)]
    return sum(_likeness(a[part], b[part]) * len(a[part]) for part in parts) / len(a)


def _likeness(a: UInt8[NDArray[np.uint8], "N H W 3"], b: UInt8[NDArray[np.uint8], "N H W 3"]) -> float:
    # Variances are differences of large numbers: single precision loses them on flat pictures.
    x, y = (torch.from_numpy(np.ascontiguousarray(each)).double().movedim(-1, 1) for each in (a, b))
    rows, columns = (_window_means(size, min(WINDOW, *x.shape[2:])) for size in x.shape[2:])

    def blurred(values: Tensor) -> Tensor:
        """Weighted mean around each place where the whole window fits."""
        return rows @ values @ columns.T

    mean_x, mean_y = blurred(x), blurred(y)
    var_x, var_y = blurred(x * x) - mean_x**2, blurred(y * y) - mean_y**2
    covariance = blurred(x * y) - mean_x * mean_y
    likeness = ((2 * mean_x * mean_y + C1) * (2 * covariance + C2)) / (
        (mean_x**2 + mean_y**2 + C1) * (var_x + var_y + C2)
    )
    return float(likeness.mean())


def _window_means(size: int, width: int) -> Float[Tensor, "places size"]:
    """A row per place of a Gaussian window of ``width`` pixels along a side of ``size``."""
    distance = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    line = torch.exp(-0.5 * (distance / SIGMA) ** 2)
    means = torch.zeros(size - width + 1, size, dtype=torch.float64)
    for place in range(len(means)):
        means[place, place : place + width] = line / line.sum()
    return means


def feature_distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> Float[Tensor, " B"]:
    """Distance of two pictures by the feature maps ``[B, C, h, w]`` that a network has of them, summed over its layers.

    The form of LPIPS (Zhang et al. 2018, equation 1) with every channel weighing the same: features scaled to length 1
    at each place, squared difference, mean over places. 0 for equal pictures, at most 4 per layer.
    """
    layers = [
        (F.normalize(one.float(), dim=1) - F.normalize(two.float(), dim=1)).square().sum(1).mean((1, 2))
        for one, two in zip(a, b, strict=True)
    ]
    return torch.stack(layers).sum(0)
