"""Success in imagination is counted over whole episodes, and written beside that in the real environment."""

from __future__ import annotations

import json
from pathlib import Path
from platform.context import OBS_MODEL, REWARD_MODEL, make_context
from platform.datasets import read_any
from platform.imagined_success import WORLDS, imagined_success
from platform.pretrain_jobs import dataset_buffer
from platform.weights import module_arrays

import pytest

from tests.run_helper import config, write_demos
from tests.test_pretrain import PRETRAIN, pretrain


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demos(tmp_path_factory.mktemp("data") / "demos", 60)


@pytest.mark.parametrize(("threshold", "rate"), [(1e-6, 1.0), (0.999999, 0.0)])
def test_a_judge_that_sees_success_everywhere_or_nowhere(threshold: float, rate: float, demos: Path) -> None:
    """A judge that was never trained is sure of nothing."""
    settings = config("real+imagined", f"world_model.reward_model.threshold={threshold}")
    context = make_context(settings, seed=0, device="cpu")
    models = {
        OBS_MODEL: module_arrays(context.make_obs_model()),
        REWARD_MODEL: module_arrays(context.make_reward_model()),
    }
    real = dataset_buffer(context, read_any(demos, context, gamma=0.99), 0.1)
    policy = context.make_policy().eval()
    found = [imagined_success(context, real, models, policy, greedy=greedy) for greedy in (True, False)]
    assert [(each.rate, each.trials) for each in found] == [(rate, WORLDS)] * 2


def test_pretraining_writes_it_beside_real_success(
    demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "models"
    for name in ("policy", "obs_model", "reward_model"):
        assert pretrain(name, f"data={demos}", f"out={out}", *PRETRAIN) == 0
    capsys.readouterr()
    assert pretrain("all", f"run.resume={out}") == 0
    card = json.loads((out / "card.json").read_text())
    for name in ("greedy", "sampled"):
        assert card["imagined_success"][name]["trials"] == WORLDS
    said = capsys.readouterr().out
    assert said.count(f"of {WORLDS} imagined episodes") == 2
    page = (out / "README.md").read_text()
    assert "| greedy | " in page
    assert "| sampled | " in page
