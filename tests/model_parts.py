"""Small world models and hand-made batches that several tests share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.world_model import ObsModelConfig, RewardModelConfig
from world_models.base import ModelSpec

SPEC = ModelSpec(
    cameras={"top": (16, 16)},
    proprio_dim=2,
    chunk=3,
    replan=2,
    action_dim=2,
    bins=4,
    num_words=5,
    instruction_length=3,
)


def obs_config(**changes: Any) -> ObsModelConfig:
    """A tiny M_obs."""
    return ObsModelConfig(**{"channels": [8, 8], "rollout_steps": 2, "rollout_start": 0, **changes})


def reward_config(**changes: Any) -> RewardModelConfig:
    """A tiny M_reward."""
    return RewardModelConfig(**{"channels": [8, 8], "width": 8, **changes})


def encode(instructions: list[str]) -> NDArray[np.int64]:
    """'1 2' gives the ids 1, 2, 0."""
    rows = [[int(word) for word in text.split()] for text in instructions]
    return np.array([row + [0] * (SPEC.instruction_length - len(row)) for row in rows], np.int64)


@dataclass
class Windows:
    """As a buffer's windows."""

    frames: dict[str, NDArray[np.uint8]]
    proprio: NDArray[np.float32]
    tokens: NDArray[np.int16]
    valid: NDArray[np.bool_]
    mask: NDArray[np.bool_]
    instructions: list[str]
    success_within: NDArray[np.bool_]
    between: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    proprio_between: NDArray[np.float32] | None = None


@dataclass
class Outcomes:
    """As a buffer's labelled frames."""

    frames: dict[str, NDArray[np.uint8]]
    instructions: list[str]
    label: NDArray[np.float32]


def make_windows(
    rows: int = 4, history: int = 1, steps: int = 3, *, spec: ModelSpec = SPEC, seed: int = 0
) -> Windows:
    """Random windows, all decisions present."""
    rng = np.random.default_rng(seed)
    length = history + steps
    return Windows(
        frames={
            name: rng.integers(0, 256, (rows, length, *size, 3), dtype=np.uint8)
            for name, size in spec.cameras.items()
        },
        proprio=rng.random((rows, length, spec.proprio_dim), dtype=np.float32),
        tokens=rng.integers(0, spec.bins, (rows, steps, spec.chunk, spec.action_dim)).astype(np.int16),
        valid=np.tile(np.arange(spec.chunk) < spec.replan, (rows, steps, 1)),
        mask=np.ones((rows, steps), np.bool_),
        instructions=["1 2"] * rows,
        success_within=np.zeros((rows, steps + 1), np.bool_),
    )
