"""How far two draws of the same future differ: what M_obs does not know shows where its samples disagree."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from world_models.base import Frames

LEVELS = 255.0
PATCH = 8
"""Pixels along each side: a misplaced gripper fills one, and would vanish in the mean over the whole frame."""


def disagreement(first: Frames, second: Frames) -> Float[Tensor, " B"]:
    """Root mean square difference, as a share of the pixels' range, in the patch where two draws differ most.

    Frames are {camera: ``[B, H, W, 3]``}, of one patch where they are smaller; the camera that differs most counts.
    """
    worst = [_worst_patch(first[name], second[name]) for name in first]
    largest = worst[0]
    for other in worst[1:]:
        largest = largest.maximum(other)
    return largest


def _worst_patch(a: Tensor, b: Tensor) -> Float[Tensor, " B"]:
    squared = ((a.float() - b.float()) / LEVELS).square().mean(-1)
    size = min(PATCH, *squared.shape[1:])
    return F.avg_pool2d(squared[:, None], size).flatten(1).amax(1).sqrt()
