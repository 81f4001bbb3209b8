"""Tiny datasets, models and runs for the tests of the running system."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from configs.loader import load_config
from configs.schema import DemosConfig, TrainConfig

POLICY = [
    "policy.width=16",
    "policy.heads=2",
    "policy.layers=1",
    "policy.stem_channels=[8,8]",
    "policy.keypoints=4",
]
MODELS = [
    "world_model.obs_model.channels=[8,8]",
    "world_model.obs_model.batch=4",
    "world_model.obs_model.rollout_steps=1",
    "world_model.reward_model.channels=[8,8]",
    "world_model.reward_model.width=8",
    "world_model.reward_model.batch=8",
]
FAST = [
    *POLICY,
    *MODELS,
    "algorithm.batch=32",
    "algorithm.micro_batch=32",
    "algorithm.critic_warm_up=1",
    "rollout.envs=8",
    "imagination.worlds=8",
    "imagination.gate.enabled=false",
    "imagination/schedule=fixed",
    "imagination.schedule.horizon=2",
    "evaluation.trials=8",
    "evaluation.online_trials=8",
    "evaluation.every=0",
    "evaluation.quality_every=0",
    "evaluation.envs=8",
    "buffers.real.max_bytes=50000000",
    "buffers.imagined.max_bytes=20000000",
    "run.log_every_s=0.2",
    "run.precision=no",
    "mix.real_fraction=0.5",
]
"""Overrides that make a run of seconds."""


def write_demos(folder: Path, episodes: int = 40) -> Path:
    """A small dataset of reach."""
    from platform.demos import write_demos as write

    write(load_config(DemosConfig, [f"out={folder}", f"episodes={episodes}"]))
    return folder


def config(mode: str, *overrides: str) -> TrainConfig:
    """A fast train config."""
    return load_config(TrainConfig, [mode, *FAST, *overrides])


def train(
    folder: Path, mode: str, *overrides: str, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """``python -m platform.train`` in a process of its own."""
    command = [sys.executable, "-m", "platform.train", mode, *FAST, f"run.dir={folder}", *overrides]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def summary(folder: Path) -> dict[str, Any]:
    """``summary.json`` of a run."""
    data: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return data
