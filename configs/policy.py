"""Configs of the policies. ``kind`` selects the class in ``policies``."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from configs.decision import check_replan
from configs.errors import ConfigError
from configs.fields import PositiveFloat, PositiveInt, component
from configs.openvla import OpenVLAConfig
from configs.pi0 import PI0Config
from configs.stored_policy import temperature_of


@component
class SmallVLAConfig:
    """A small vision-language-action policy sized for a CPU: image, instruction and proprio tokens, action queries."""

    kind: Literal["small_vla"] = "small_vla"
    path: str | None = None
    """Folder with pretrained weights (``model.safetensors`` and ``config.json``); none starts from random weights."""
    chunk: PositiveInt = 4
    """Actions per decision, K."""
    replan: PositiveInt = 4
    """How many of them are executed before the next decision."""
    bins: Annotated[int, Field(ge=2, le=1024)] = 16
    """Action tokens per dimension."""
    width: PositiveInt = 96
    """Width of a token."""
    heads: PositiveInt = 4
    """Attention heads."""
    layers: PositiveInt = 2
    """Decoder blocks, each a cross-attention from the action queries and a feed-forward."""
    stem_channels: Annotated[list[PositiveInt], Field(min_length=1)] = field(default_factory=lambda: [32, 64])
    """Channels of the convolutional stem; each stage halves the frame."""
    keypoints: PositiveInt = 16
    """Spatial-softmax keypoints, each one token."""
    temperature: PositiveFloat | None = None
    """What acts and is trained is softmax(logits / temperature). A cloned policy that succeeds when greedy and fails when
    sampled wants less than 1. None is that of the weights at ``path``, and 1 for others."""

    def __post_init__(self) -> None:
        check_replan(self.chunk, self.replan)
        self.temperature = temperature_of(self.temperature, self.path)
        if self.width % self.heads:
            raise ConfigError(
                f"policy.width={self.width} does not divide by policy.heads={self.heads}",
                where="policy",
                remedy="choose a width that is a multiple of the heads",
            )


PolicyConfig = Annotated[SmallVLAConfig | OpenVLAConfig | PI0Config, Field(discriminator="kind")]
