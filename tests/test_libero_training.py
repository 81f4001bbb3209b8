"""LIBERO from demonstrations to training in both worlds, step by step as a user goes, with models of a few numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from platform.command import main  # isort: skip
from configs.loader import load_config
from configs.schema import DemosConfig, TrainConfig
from tests.run_helper import FAST, MODELS, POLICY

pytest.importorskip("libero", reason="pip install 'reverie-rl[libero]'")

TASK = [
    "env=libero_object", "env.tasks=[0]", "env.camera_size=32", "env.processes=1", "env.max_episode_steps=200",
    "policy=small_vla_libero",
]  # fmt: skip
BOTH = [*TASK, "world_model/obs_model=libero", *POLICY, *MODELS, "world_model.obs_model.rollout_start=1"]
BUDGETS = [
    f"{name}_budget.{key}" for name in ("policy", "obs_model", "reward_model")
    for key in ("updates=4", "validate_every=2", "batch=8")
]  # fmt: skip
CALM = "noise=[{share: 1, action_noise: 0.05}]"


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes: number 0 trains, number 1 is held out."""
    from platform.demos import write_demos

    folder = tmp_path_factory.mktemp("data") / "demos"
    summary = write_demos(
        load_config(DemosConfig, [*TASK, f"out={folder}", "episodes=2", "gamma=0.995", CALM])
    )
    assert summary.levels[0].successes == 2
    return folder


@pytest.fixture(scope="module")
def pretrained(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from platform.pretrain import run

    out = tmp_path_factory.mktemp("pretrained") / "models"
    argv = [
        *BOTH, *BUDGETS, f"data={demos}", f"out={out}", "held_out=0.2", "algorithm.gamma=0.995", "run.precision=no",
        "evaluation.online_trials=1", "evaluation.envs=1",
    ]  # fmt: skip
    for name in ("obs_model", "reward_model", "policy"):
        assert main(run, "usage", argv=[name, *argv]) == 0
    return out


def test_pretrained_models_train_on_in_both_worlds(demos: Path, pretrained: Path, tmp_path: Path) -> None:
    cards = {
        name: json.loads((pretrained / name / "card.json").read_text()) for name in ("policy", "obs_model")
    }
    assert cards["policy"]["success"]["greedy"]["trials"] == 1
    assert cards["obs_model"]["updates"] == 4

    result = train(
        tmp_path, f"data={demos}", f"policy.path={pretrained / 'policy'}", f"world_model.path={pretrained}"
    )
    assert result["updates"]["policy"] > 0
    assert result["updates"]["obs_model"] > 0
    assert result["updates"]["reward_model"] > 0
    assert result["real_steps"]["demonstrations"] > 0
    assert result["real_steps"]["online"] + result["real_steps"]["warm_up"] > 0
    assert result["imagined_steps"] > 0
    assert result["success"]["after"]["trials"] == 1
    assert (tmp_path / "media" / "film.png").is_file()


def train(folder: Path, *overrides: str) -> dict[str, Any]:
    """A few turns on the serial host under the preset's schedule; its summary."""
    from platform.report import write_report
    from platform.runner import Runner

    fast = [text for text in FAST if not text.startswith(("imagination/schedule", "imagination.schedule"))]
    small = [
        "algorithm.critic_warm_up=1", "rollout.envs=1", "imagination.worlds=4", "imagination.schedule.start=2",
        "imagination.schedule.end=3", "evaluation.trials=1", "evaluation.envs=1", "buffers.real.held_out=0.2",
        "world_model.obs_model.every=1", "world_model.reward_model.every=1", "run.stop.updates=3",
    ]  # fmt: skip
    argv = ["real+imagined", *fast, *BOTH, "preset=libero", "host=serial", *small, *overrides]
    settings = load_config(TrainConfig, argv)
    return Runner(settings, folder).run(lambda outcome: write_report(settings, outcome, folder))
