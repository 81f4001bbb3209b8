"""What a folder of models says of itself: the part of a pretraining's or a run's ``config.yaml`` that shapes its models."""

from __future__ import annotations

from dataclasses import field

from configs.env import EnvConfig, TabletopConfig
from configs.fields import component
from configs.policy import PolicyConfig, SmallVLAConfig
from configs.world_model import WorldModelConfig


@component
class ModelsConfig:
    """Shapes of a policy and its world models."""

    env: EnvConfig = field(default_factory=TabletopConfig)
    policy: PolicyConfig = field(default_factory=SmallVLAConfig)
    world_model: WorldModelConfig = field(default_factory=WorldModelConfig)
