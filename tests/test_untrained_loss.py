"""The loss that the validated schedule starts from: on the scale of the one that is measured beside the policy."""

from __future__ import annotations

import json
from pathlib import Path
from platform.model_card import untrained_loss

import pytest
import torch

from configs.world_model import ObsModelConfig, WorldModelConfig
from tests.model_parts import SPEC, encode, make_windows, obs_config
from world_models.consistency import teacher_config
from world_models.obs_model import ObservationModel
from world_models.training import ObsModelTrainer


def models(folder: Path, sampler: str) -> WorldModelConfig:
    return WorldModelConfig(path=str(folder), obs_model=ObsModelConfig(sampler=sampler))


def written(folder: Path, sampler: str, **quality: float) -> Path:
    (folder / "obs_model").mkdir(parents=True)
    (folder / "obs_model" / "config.json").write_text(json.dumps({"config": {"sampler": sampler}}))
    card = {"first_val_loss": 0.9, "quality": quality}
    (folder / "obs_model" / "card.json").write_text(json.dumps(card))
    return folder


@pytest.mark.parametrize(
    ("stored", "now", "quality", "expected"),
    [
        ("euler", "euler", {"untrained_loss": 1.1}, 1.1),
        ("euler", "heun", {"untrained_loss": 1.1}, 1.1),
        ("euler", "euler", {}, 0.9),
        ("consistency", "consistency", {"untrained_loss": 7.5}, 7.5),
        ("consistency", "consistency", {}, None),
        ("consistency", "euler", {"untrained_loss": 7.5}, None),
        ("heun", "consistency", {"untrained_loss": 1.1}, None),
    ],
)
def test_only_a_loss_of_the_same_scale_is_taken(
    tmp_path: Path, stored: str, now: str, quality: dict[str, float], expected: float | None
) -> None:
    assert untrained_loss(models(written(tmp_path / "m", stored, **quality), now)) == expected


def test_a_run_from_nothing_knows_none(tmp_path: Path) -> None:
    assert untrained_loss(WorldModelConfig()) is None
    assert untrained_loss(models(tmp_path, "euler")) is None
    folder = written(tmp_path / "checkpoint", "euler")
    (folder / "obs_model" / "card.json").write_text("{}")
    assert untrained_loss(models(folder, "euler")) is None


def trainer(model: ObservationModel, teacher: ObservationModel | None) -> ObsModelTrainer:
    return ObsModelTrainer(
        model,
        model.config,
        encode=encode,
        seed=0,
        learning_rate=1e-3,
        total_updates=None,
        chains=False,
        teacher=teacher,
    )


def test_a_distilled_models_first_loss_is_measured_without_its_teacher() -> None:
    """What a learner beside the policy would say of the same untrained weights, and not the distance to the teacher."""
    config = obs_config(sampler="consistency")
    torch.manual_seed(0)
    student, untrained = ObservationModel(SPEC, config), ObservationModel(SPEC, config)
    teacher = ObservationModel(SPEC, teacher_config(config))
    windows = make_windows(3, config.history, 2)
    online = trainer(untrained, None).validation_loss(windows)
    distilling = trainer(student, teacher)
    assert distilling.untrained_loss(untrained, windows) == pytest.approx(online)
    assert distilling.validation_loss(windows) != pytest.approx(online)
    plain = trainer(ObservationModel(SPEC, obs_config()), None)
    fresh = ObservationModel(SPEC, obs_config())
    assert plain.untrained_loss(fresh, windows) == pytest.approx(
        trainer(fresh, None).validation_loss(windows)
    )
