"""Config of the command that writes a fresh checkpoint."""

from __future__ import annotations

from dataclasses import field

from configs.env import EnvConfig, TabletopConfig
from configs.fields import Seed, component
from configs.openvla import OpenVLAConfig
from configs.policy import PolicyConfig


@component
class FreshConfig:
    """``python -m platform.fresh``: a checkpoint in OpenVLA's format with random weights."""

    out: str = "outputs/fresh"
    """Folder of the checkpoint; never overwritten. Later commands name it as ``policy.base``."""
    seed: Seed = 0
    """Of the weights."""
    env: EnvConfig = field(default_factory=TabletopConfig)
    """Whose instructions the tokenizer learns its words from, and whose action range becomes the action statistics."""
    policy: PolicyConfig = field(default_factory=OpenVLAConfig)
    """Sizes, towers and action tokens; only ``policy=openvla`` and its relatives have this format."""
