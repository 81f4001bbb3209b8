"""The environment that a dataset was recorded in, known by its dataset alone: it has shapes and words, and cannot be stepped."""

from __future__ import annotations

from typing import NoReturn

from buffers.dataset import peek_dataset
from configs.env import RecordedConfig
from configs.errors import DataError, EnvError

from .base import EnvSpec


def recorded_spec(config: RecordedConfig) -> EnvSpec:
    """What the dataset's header says.

    Raises:
        DataError: no dataset of ours, or one that does not say its action range.
    """
    if not config.data:
        raise EnvError("env=recorded needs a dataset", where="env.data", remedy="set env.data=<folder>")
    dataset = peek_dataset(config.data)
    spec, info = dataset.spec, dataset.info
    missing = {"action_low", "action_high", "instructions"} - set(info)
    if missing:
        raise DataError(
            f"the dataset does not say its {sorted(missing)[0]}", where=f"env.data={config.data}",
            remedy="record it again, or write it with python -m platform.demos import",
        )  # fmt: skip
    return EnvSpec(
        name="recorded",
        cameras=spec.cameras,
        proprio_dim=spec.proprio_dim,
        action_dim=spec.action_dim,
        action_low=tuple(float(x) for x in info["action_low"]),
        action_high=tuple(float(x) for x in info["action_high"]),
        tasks=("recorded",),
        instructions=tuple(str(text) for text in info["instructions"]),
        max_episode_steps=spec.max_decisions * spec.replan,
    )


def refuse(_config: RecordedConfig, _slots: int = 0, **_decisions: int) -> NoReturn:
    """Always an EnvError."""
    raise EnvError(
        "a dataset is no environment: nothing can act in it", where="env=recorded",
        remedy="use it with platform.pretrain, and another env to train or to evaluate",
    )  # fmt: skip
