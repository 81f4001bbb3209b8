"""Configs of the real environments. ``kind`` selects the class in ``platform.envs``."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field

from configs.fields import PositiveFloat, PositiveInt, component
from configs.libero import LiberoConfig

TaskName = Literal["reach", "push", "pick_place"]


@component
class TabletopConfig:
    """The built-in tabletop: a gripper, coloured blocks, an instruction. Lengths are in table widths."""

    kind: Literal["tabletop"] = "tabletop"
    tasks: Annotated[list[TaskName], Field(min_length=1)] = field(default_factory=lambda: ["reach"])
    """Each episode draws one of these."""
    camera_size: Literal[32, 64] = 32
    """Height and width of the frame in pixels."""
    blocks: Annotated[int, Field(ge=1, le=5)] = 3
    """Blocks on the table, each of another colour; one of them is meant."""
    max_episode_steps: PositiveInt = 48
    """Env steps until truncation."""
    arm_speed: PositiveFloat = 0.03
    """Largest move along one axis in one env step."""
    tolerance: PositiveFloat = 0.08
    """How near counts: gripper to block for reach and grasp, block to pad for push and pick_place."""
    reach_hold: PositiveInt = 1
    """reach: env steps in a row that the gripper must stay within tolerance; passing over the target is no success."""
    block_radius: PositiveFloat = 0.07
    """Radius of a block."""


@component
class GymnasiumConfig:
    """Any registered Gymnasium id with a ``Box`` action space."""

    kind: Literal["gymnasium"] = "gymnasium"
    id: str = ""
    """Registered id, for example ``gym_pusht/PushT-v0``; ``module:id`` imports the module first."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to ``gymnasium.make``."""
    image: Literal["observation", "render"] = "render"
    """Where the frame comes from."""
    image_key: str = ""
    """Key of the image in a dictionary observation; empty when the observation itself is the image."""
    proprio_key: str = ""
    """Key of the proprioception in a dictionary observation; empty: a flat ``Box`` observation is used whole."""
    camera_size: PositiveInt = 64
    """Frames are resized to this height and width."""
    instruction: str = "complete the task"
    """The task in words."""
    success_key: str = "is_success"
    """Key in ``info`` that tells success; without it success is termination with a positive reward."""
    max_episode_steps: PositiveInt = 200
    """Env steps until truncation."""
    overlap: Literal["none", "threads", "processes"] = "threads"
    """How slots step beside each other, so that a slow one holds up nobody. ``threads``: for environments that wait, or
    compute outside of Python's lock; ``processes``: for those that compute in Python; ``none``: one after the other, for
    those that bear neither."""


@component
class RecordedConfig:
    """What a dataset was recorded in, where nothing can be stepped: for pretraining on other people's episodes."""

    kind: Literal["recorded"] = "recorded"
    data: str = ""
    """Dataset folder that ``python -m platform.demos import`` wrote; its cameras, sizes, instructions and action range count."""


EnvConfig = Annotated[
    TabletopConfig | GymnasiumConfig | LiberoConfig | RecordedConfig, Field(discriminator="kind")
]
