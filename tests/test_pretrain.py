"""Pretraining jobs: cut and continued they end with the same weights, they start from others', and they leave cards."""

from __future__ import annotations

import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from platform.command import main  # isort: skip
from buffers.dataset import read_dataset
from buffers.index import is_held_out
from tests.run_helper import MODELS, POLICY, write_demos

PRETRAIN = [
    *POLICY, *MODELS, "run.precision=no", "evaluation.online_trials=8", "evaluation.envs=8", "run.device=cpu",
    *(f"{name}_budget.{key}" for name in ("policy", "obs_model", "reward_model")
      for key in ("updates=6", "validate_every=2", "batch=8", "patience=50")),
]  # fmt: skip
NAMES = ("policy", "obs_model", "reward_model")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demos(tmp_path_factory.mktemp("data") / "demos", 60)


@pytest.fixture(scope="module")
def whole(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All three, never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "models"
    for name in ("obs_model", "policy", "reward_model"):
        assert pretrain(name, f"data={demos}", f"out={out}", *PRETRAIN) == 0
    return out


def pretrain(*argv: str) -> int:
    from platform.pretrain import run

    return main(run, "usage", argv=list(argv))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same(one: Path, two: Path) -> None:
    first, second = weights(one), weights(two)
    assert list(first) == list(second)
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def interrupt_at(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """As Ctrl-C or a kill would, in the middle of the fit's loop."""
    from platform import pretraining

    real, seen = pretraining._look, []

    def look(job: Any, fitted: Any) -> bool:
        seen.append(1)
        if fitted.updates == update:
            raise KeyboardInterrupt
        return real(job, fitted)

    monkeypatch.setattr(pretraining, "_look", look)


def test_the_policy_standardises_proprio_as_the_cloned_decisions_have_it(whole: Path, demos: Path) -> None:
    """The last observation of an episode is decided on by nobody, and a dimension that stands still stays as it is."""
    config = json.loads((whole / "policy" / "card.json").read_text())["data"]
    dataset = read_dataset(demos)
    noisy = [level["action_noise"] > 0.2 for level in dataset.info["noise"]]
    cloned = [
        record.proprio[:-1] for record in dataset.records
        if not is_held_out(record.episode_id, 0.1) and not noisy[int(record.extra["noise_level"])]
    ]  # fmt: skip
    rows = np.concatenate(cloned)
    assert config["episodes"] == len(dataset.records) > len(cloned)
    stored = weights(whole / "policy")
    np.testing.assert_allclose(stored["proprio_mean"].numpy(), rows.mean(0), atol=1e-5)
    np.testing.assert_allclose(stored["proprio_scale"].numpy(), 1 / rows.std(0).clip(0.01), rtol=1e-4)


def test_cloning_goes_on_from_a_policy(whole: Path, demos: Path, tmp_path: Path) -> None:
    """Its first look at the held-out decisions is the last good one at where it starts from; its proprio statistics stay,
    though other episodes are cloned.
    """
    out = tmp_path / "models"
    argv = [f"data={demos}", f"out={out}", *PRETRAIN, f"policy.path={whole}/policy", "clone_noise=9"]
    assert pretrain("policy", *argv, "policy.temperature=0.5") == 0
    first, second = (json.loads((folder / "policy" / "card.json").read_text()) for folder in (whole, out))
    assert second["history"][0] != first["history"][0]
    assert (
        weights(out / "policy")["proprio_mean"].tolist() == weights(whole / "policy")["proprio_mean"].tolist()
    )
    again = tmp_path / "again"
    same = [f"data={demos}", f"out={again}", *PRETRAIN, f"policy.path={whole}/policy"]
    assert pretrain("policy", *same) == 0
    assert (
        json.loads((again / "policy" / "card.json").read_text())["first_val_loss"] == first["best_val_loss"]
    )
    stored = [
        json.loads((folder / "policy" / "config.json").read_text())["config"] for folder in (out, again)
    ]
    assert [config["temperature"] for config in stored] == [0.5, 1.0]


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_that_was_cut_ends_with_the_same_weights(
    name: str, whole: Path, demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Cut after its second checkpoint, before the third; the same held-out losses as well."""
    out = tmp_path / "models"
    argv = [f"data={demos}", f"out={out}", *PRETRAIN]
    if name == "reward_model":
        # It sees what M_obs imagines.
        assert pretrain("obs_model", *argv) == 0
    with monkeypatch.context() as cut:
        interrupt_at(cut, 6)
        assert pretrain(name, *argv) == 130
    assert f"to continue: python -m platform.pretrain {name} run.resume={out}" in caplog.text
    assert not (out / name).exists()
    assert pretrain(name, f"run.resume={out}") == 0
    assert_same(out / name, whole / name)
    cards = [json.loads((folder / name / "card.json").read_text()) for folder in (out, whole)]
    assert cards[0]["history"] == cards[1]["history"]
    assert cards[0]["quality"] == cards[1]["quality"]
    assert not list(out.glob(".*"))


def test_a_cut_cloning_by_soap_ends_with_the_same_weights(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state has matrices and lists of them."""
    folders = [tmp_path / name for name in ("whole", "cut", "adamw")]
    whole, cut, adamw = folders
    soap = [f"data={demos}", *PRETRAIN, "policy_budget.optimizer=soap"]
    assert pretrain("policy", *soap, f"out={whole}") == 0
    with monkeypatch.context() as interrupted:
        interrupt_at(interrupted, 6)
        assert pretrain("policy", *soap, f"out={cut}") == 130
    assert pretrain("policy", f"run.resume={cut}") == 0
    assert_same(cut / "policy", whole / "policy")
    assert pretrain("policy", f"data={demos}", *PRETRAIN, f"out={adamw}") == 0
    ends = [json.loads((each / "policy" / "card.json").read_text())["best_val_loss"] for each in folders]
    assert ends[0] == ends[1] != ends[2]


def test_the_probabilities_select_where_they_are_asked_to(demos: Path, tmp_path: Path) -> None:
    """A fresh policy gives every token the same probability: its cross-entropy is the logarithm of their number."""
    by_probability = [
        f"data={demos}",
        f"out={tmp_path}/models",
        *PRETRAIN,
        "policy_budget.select_by=cloning_loss",
    ]
    assert pretrain("policy", *by_probability, "policy_budget.learning_rate=0.01") == 0
    card = json.loads((tmp_path / "models" / "policy" / "card.json").read_text())
    bins = json.loads((tmp_path / "models" / "policy" / "config.json").read_text())["config"]["bins"]
    assert card["first_val_loss"] == pytest.approx(math.log(bins), abs=1e-5)
    assert card["best_val_loss"] < card["first_val_loss"]


def test_a_fit_that_bettered_nothing_says_so(
    whole: Path, demos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights that it was given are what it writes."""
    argv = [f"data={demos}", f"out={tmp_path}/models", *PRETRAIN, f"policy.path={whole}/policy"]
    assert pretrain("policy", *argv, "policy_budget.learning_rate=1e-12") == 0
    assert "the weights it began with are kept" in caplog.text
    assert_same(tmp_path / "models" / "policy", whole / "policy")


def test_a_fit_that_had_ended_is_not_repeated(
    whole: Path, demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while it was measured: resuming trains no further update."""
    from platform import pretrain as command
    from platform.pretraining import ModelJob

    out = tmp_path / "models"
    with monkeypatch.context() as cut:
        cut.setattr(ModelJob, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert pretrain("obs_model", f"data={demos}", f"out={out}", *PRETRAIN) == 130
    monkeypatch.setattr(ModelJob, "update", lambda _: pytest.fail("it trained on"))
    assert command.run(["obs_model", f"run.resume={out}"]) == 0
    assert_same(out / "obs_model", whole / "obs_model")


def test_other_settings_never_continue_a_fit(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same folder with another batch is refused and names the section; so is a second process."""
    out = tmp_path / "models"
    argv = ["obs_model", f"data={demos}", f"out={out}", *PRETRAIN]
    with monkeypatch.context() as cut:
        interrupt_at(cut, 6)
        assert pretrain(*argv) == 130
    caplog.clear()
    assert pretrain(*argv, "obs_model_budget.batch=4") == 2
    assert "obs_model was begun there with another obs_model_budget" in caplog.text
    caplog.clear()
    from platform.children import only_one

    with only_one(out / ".obs_model.training" / "lock"):
        assert pretrain("obs_model", f"run.resume={out}") == 2
    assert "another process is pretraining this model" in caplog.text
    assert pretrain(*argv) == 0


def test_what_is_there_is_kept_and_the_rest_is_made(whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Resuming a finished model does nothing; without run.resume it is refused with that remedy."""
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    assert pretrain("policy", f"run.resume={whole}") == 0
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()} == before
    assert pretrain("policy", f"run.resume={whole}", "held_out=0.2") == 2
    assert "held_out cannot be set when a pretraining goes on" in caplog.text
    caplog.clear()
    assert pretrain("policy", "run.resume=/nowhere") == 2
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == ["no run there (/nowhere): give the directory of a run as run.resume"]


def test_cards_say_what_was_learned_from_and_how_good_it_is(whole: Path) -> None:
    """JSON and a page for each model."""
    for name in NAMES:
        card = json.loads((whole / name / "card.json").read_text())
        assert card["data"]["episodes"] == 60
        assert 0 < card["data"]["held_out_episodes"] < 60
        assert card["data"]["env_steps"] >= card["data"]["decisions"] > 0
        assert re.fullmatch(r"[0-9a-f]{64}", card["data"]["sha256"])
        assert card["updates"] == 6
        page = (whole / name / "README.md").read_text()
        assert f"# {name} for" in page
        assert "| 6 |" in page
    quality = json.loads((whole / "obs_model" / "card.json").read_text())["quality"]
    assert len(quality["psnr_db"]) == len(quality["loss_by_step"]) == 2
    reward = json.loads((whole / "reward_model" / "card.json").read_text())["quality"]
    assert set(reward) == {"real", "imagined", "threshold"}


def test_pretraining_goes_on_from_other_models_and_distils_them(
    whole: Path, demos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``world_model.path`` is where weights come from; consistency training needs it."""
    consistent = "world_model.obs_model.sampler=consistency"
    few = [f"data={demos}", f"out={tmp_path / 'one_step'}", *PRETRAIN, consistent]
    assert pretrain("obs_model", *few) == 2
    assert "give world_model.path=" in caplog.text
    assert (
        pretrain("obs_model", *few, f"world_model.path={whole}", "obs_model_budget.learning_rate=1e-9") == 0
    )
    made, start = weights(tmp_path / "one_step" / "obs_model"), weights(whole / "obs_model")
    assert all(torch.allclose(value, start[key], atol=1e-6) for key, value in made.items())


def test_a_calibrated_reward_model_on_the_policys_layers(whole: Path, demos: Path, tmp_path: Path) -> None:
    """Pretrained, then read by a run that names the same options; its threshold is the model's own."""
    from platform.context import make_context
    from platform.models import read_model
    from platform.weights import load_arrays

    from tests.run_helper import config

    out = tmp_path / "models"
    options = [
        "world_model.reward_model.backbone=policy", "world_model.reward_model.calibration=platt",
        "world_model.reward_model.false_success=0.05", "world_model.reward_model.hard_negatives=0.5",
    ]  # fmt: skip
    argv = [f"data={demos}", f"out={out}", *PRETRAIN, *options, f"world_model.path={whole}"]
    # The weights at world_model.path are of another kind of reward model.
    assert pretrain("reward_model", *argv, f"policy.path={whole}/policy") == 2
    argv = [f"data={demos}", f"out={out}", *PRETRAIN, *options]
    assert pretrain("reward_model", *argv) == 2
    assert pretrain("reward_model", *argv, f"policy.path={whole}/policy") == 0
    card = json.loads((out / "reward_model" / "card.json").read_text())
    fitted = card["quality"]["calibration"]
    assert fitted["false_success"] <= 0.05
    assert fitted["frames"] > 0
    made = make_context(config("real+imagined", *options), seed=0, device="cpu")
    model = made.make_reward_model()
    load_arrays(model, read_model(out / "reward_model", "reward_model", made))
    assert model.threshold == pytest.approx(fitted["threshold"])


def test_folders_of_older_versions_are_still_read(whole: Path, tmp_path: Path) -> None:
    """A config without an option of today means the default; with another value it is refused."""
    import shutil
    from platform.context import make_context
    from platform.models import read_model

    from configs.errors import CheckpointError
    from tests.run_helper import config

    old = shutil.copytree(whole / "obs_model", tmp_path / "obs_model")
    (old / "manifest.json").unlink()
    description = json.loads((old / "config.json").read_text())
    for key in ("attention", "sampler", "optimizer"):
        del description["config"][key]
    (old / "config.json").write_text(json.dumps(description))
    assert read_model(old, "obs_model", make_context(config("real+imagined"), seed=0, device="cpu"))
    other = make_context(config("real+imagined", "world_model.obs_model.attention=[1]"), seed=0, device="cpu")
    with pytest.raises(CheckpointError, match=r"trained with attention=\[\]"):
        read_model(old, "obs_model", other)
