"""Optimizers by name, and their states as trees."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.errors import ConfigError
from tests.model_parts import SPEC, encode, make_windows, obs_config
from world_models import optimizers
from world_models.obs_model import ObservationModel
from world_models.optimizers import pack, unpack
from world_models.training import ObsModelTrainer

RATES: dict[Any, float] = {"adamw": 1e-3, "soap": 1e-2}


def trainer(name: Any, seed: int = 0) -> ObsModelTrainer:
    """Of a tiny model."""
    torch.manual_seed(seed)
    model = ObservationModel(SPEC, obs_config(precision="float32", optimizer=name))
    return ObsModelTrainer(model, model.config, encode=encode, seed=seed, learning_rate=RATES[name])


@pytest.mark.parametrize("name", ["adamw", "soap"])
def test_a_state_through_the_disk_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Whatever the optimizer keeps: factors, counters, what it has initialised."""
    from platform.storage import load_tree, new_folder, save_tree

    one, two = trainer(name), trainer(name, seed=5)
    for update in range(3):
        one.update(make_windows(4, 1, 3, seed=update))
    with new_folder(tmp_path / "state") as folder:
        save_tree(folder, "state", one.state())
    two.load(load_tree(tmp_path / "state", "state"))
    # Numbers drawn elsewhere in between change nothing.
    torch.randn(3)
    for update in range(3, 6):
        assert one.update(make_windows(4, 1, 3, seed=update)) == two.update(
            make_windows(4, 1, 3, seed=update)
        )
    assert all(torch.equal(v, two.model.state_dict()[k]) for k, v in one.model.state_dict().items())


@pytest.mark.parametrize("name", ["adamw", "soap"])
def test_every_optimizer_learns(name: str) -> None:
    """The loss on one batch falls."""
    subject = trainer(name)
    windows = make_windows(8, 1, 3)
    first = subject.validation_loss(windows)[0]
    for _ in range(40):
        subject.update(windows)
    subject.averaged.load_state_dict(subject.model.state_dict())
    assert subject.validation_loss(windows)[0] < 0.9 * first


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(optimizers, "find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"pytorch-optimizer is not installed.*pip install 'reverie-rl\[kronecker\]'"
    ):
        trainer("soap")


def test_packing_is_undone() -> None:
    """Keys that are numbers, sets, tuples, tensors, nothing."""
    state = {
        0: {"step": torch.tensor(3.0), "q": [(1, torch.eye(2)), None]},
        "seen": {2, 1},
        "betas": (0.9, 0.99),
        "columns": torch.arange(6.0).reshape(2, 3).t(),
    }
    back = unpack(copy.deepcopy(pack(state)))
    assert torch.equal(back[0].pop("step"), state[0]["step"])  # type: ignore[index]
    assert torch.equal(back[0]["q"][0][1], torch.eye(2))
    assert (back[0]["q"][0][0], back[0]["q"][1], back["seen"], back["betas"]) == (
        1,
        None,
        {1, 2},
        (0.9, 0.99),
    )
