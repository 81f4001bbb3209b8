"""Tiny datasets, models and runs for the tests of the running system."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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


def write_demos(folder: Path, episodes: int = 40, overrides: Sequence[str] = ()) -> Path:
    """A small dataset of reach."""
    from platform.demos import write_demos as write

    write(load_config(DemosConfig, [f"out={folder}", f"episodes={episodes}", *overrides]))
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


def assert_same_training(one: dict[str, Any], two: dict[str, Any], versions: int) -> None:
    """Two runs trained on the same samples in the same order: states of their checkpoints after ``versions`` versions."""
    first, second = (_samples_before(state["b_real"], versions) for state in (one, two))
    assert sorted(first) == sorted(second)
    assert len(first) > versions
    for key, columns in first.items():
        for name, column in columns.items():
            np.testing.assert_allclose(column, second[key][name], atol=1e-5, err_msg=f"{key} {name}")
    # The shuffle and Adam's moments depend on the order, so equal weights say that it was the same.
    for name, weights in one["policy_learner"]["policy"].items():
        np.testing.assert_allclose(weights, two["policy_learner"]["policy"][name], atol=1e-5, err_msg=name)


def _samples_before(buffer: dict[str, Any], version: int) -> dict[int, dict[str, Any]]:
    """Columns of the samples that versions before ``version`` made, by id."""
    shelf, samples, row = buffer["shelf"], {}, 0
    for item in shelf["items"]:
        rows = slice(row, row + item["length"])
        row += item["length"] + 1
        if item["newest_version"] < version:
            samples[item["id"]] = {name: column[rows] for name, column in shelf["columns"].items()}
    return samples
