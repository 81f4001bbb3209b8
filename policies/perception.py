"""The first layers of a policy as a module of their own: what it sees of frames and instruction, for the reward model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from configs.errors import ConfigError
from policies.base import Policy
from policies.small_vla import MAP_SIDE, SmallVLA
from policies.vision import Keypoints


class SmallVLAPerception(nn.Module):
    """Stem, keypoints and words of a ``SmallVLA``, copied: places, their features, a coarse map and the sentence."""

    def __init__(self, policy: SmallVLA) -> None:
        super().__init__()
        actor = policy.actor
        self.cameras = list(actor.cameras)
        self.words = copy.deepcopy(actor.words)
        self.stems = copy.deepcopy(actor.stems)
        self.keypoints = copy.deepcopy(actor.keypoints)
        points, channels = cast(Keypoints, actor.keypoints[0]).shape
        per_camera = points * (2 + channels) + MAP_SIDE**2 * channels
        self.num_features: int = per_camera * len(self.cameras) + self.words.norm.normalized_shape[0]

    def forward(self, frames: dict[str, Tensor], instruction: Int64[Tensor, "B L"]) -> Float[Tensor, "B F"]:
        """Features of {camera: grey levels ``[B, H, W, 3]``, whole or not}."""
        _, sentence = self.words(instruction)
        parts = [sentence]
        for camera, stem, keypoints in zip(self.cameras, self.stems, self.keypoints, strict=True):
            feature_map = stem(frames[camera], sentence)
            places, features = keypoints(feature_map, sentence)
            cells = F.adaptive_avg_pool2d(feature_map, MAP_SIDE)
            parts += [places.flatten(1), features.flatten(1), cells.flatten(1)]
        return torch.cat([part.float() for part in parts], dim=1)


PERCEPTIONS: dict[type[Policy], Callable[[Any], nn.Module]] = {SmallVLA: SmallVLAPerception}
"""Class of the policy to the module of its first layers."""


def perception(policy: Policy) -> nn.Module:
    """A copy of the first layers of ``policy``, with their weights. Raises ConfigError where that kind has none."""
    make = PERCEPTIONS.get(type(policy))
    if make is None:
        raise ConfigError(
            f"the policy {type(policy).__name__} has no first layers for the reward model",
            where="world_model.reward_model.backbone",
            remedy="use backbone=own",
        )
    return make(policy)
