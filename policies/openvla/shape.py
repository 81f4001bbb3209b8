"""What a model of OpenVLA's format is built from, whether a checkpoint or a config says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from configs.openvla import OpenVLAConfig
from policies.openvla.images import IMAGENET, SIGLIP, ImagePreparation
from policies.openvla.vit import ViTShape

Statistics = tuple[tuple[float, float, float], tuple[float, float, float]]
BYTES = 256
SPECIAL_TOKENS = 3
"""Unknown, begin and end, as in Llama's vocabulary; a fresh model has the bytes after them."""


@dataclass(frozen=True)
class Tower:
    """One vision tower."""

    name: str
    """Under ``vision_backbone`` in the checkpoint."""
    shape: ViTShape
    pixels: Statistics
    """Mean and deviation of what it reads."""


@dataclass(frozen=True)
class ModelShape:
    """Everything but the weights."""

    towers: tuple[Tower, ...]
    language: dict[str, Any]
    """Fields of ``LlamaConfig``."""
    vocabulary: int
    """Tokens that the tokenizer knows; the last of them are the action tokens."""
    rows: int
    """Of the embedding and of the whole output layer: the vocabulary, filled up to a multiple."""
    bins: int

    @property
    def vision_width(self) -> int:
        """Of the towers together."""
        return sum(tower.shape.width for tower in self.towers)

    def preparation(self, area: float) -> ImagePreparation:
        """How frames become the towers' inputs."""
        return ImagePreparation(
            tuple(tower.shape.image_size for tower in self.towers),
            tuple(tower.pixels[0] for tower in self.towers),
            tuple(tower.pixels[1] for tower in self.towers),
            area,
        )


TOWER_NAMES = ("featurizer", "fused_featurizer")


def fresh_shape(config: OpenVLAConfig) -> ModelShape:
    """Of a model that no checkpoint describes."""
    kinds: dict[str, tuple[dict[str, Any], Statistics]] = {
        "siglip": ({}, SIGLIP),
        "dinov2": ({"class_token": True, "registers": 4, "layer_scale": True}, IMAGENET),
    }
    chosen = {"siglip": ["siglip"], "dinov2": ["dinov2"], "dinosiglip": ["dinov2", "siglip"]}[config.towers]
    towers = []
    for name, kind in zip(TOWER_NAMES, chosen, strict=False):
        extras, pixels = kinds[kind]
        shape = ViTShape(
            config.vision_width, config.vision_layers, config.heads, 4 * config.vision_width, config.patch,
            config.image_size, **extras,
        )  # fmt: skip
        towers.append(Tower(name, shape, pixels))
    vocabulary = SPECIAL_TOKENS + BYTES + config.bins
    language = {
        "hidden_size": config.width,
        "intermediate_size": 8 * config.width // 3 // 8 * 8,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "max_position_embeddings": 2048,
        # Llama's own deviation of 0.02 is for a width of thousands: in a narrow model attention would start flat.
        "initializer_range": config.width**-0.5,
    }
    return ModelShape(tuple(towers), language, vocabulary, -(-vocabulary // 64) * 64, config.bins)
