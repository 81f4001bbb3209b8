"""``platform.demos {export,import,inspect}`` and ``platform.pretrain data=…`` as a user calls them."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from platform.command import main
from platform.datasets import read_any, run_episodes
from platform.demos import run, start
from platform.pretrain import run as pretrain

import numpy as np
import pytest
from PIL import Image

from buffers.dataset import read_dataset
from tests.exchange_helper import write_lerobot, write_libero
from tests.records_helper import assert_same_record
from tests.run_helper import FAST, POLICY, write_demos

TINY = [
    *POLICY,
    "policy_budget.updates=4",
    "policy_budget.batch=8",
    "evaluation.online_trials=2",
    "run.precision=no",
]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our dataset, a LeRobot dataset that fits reach, one that does not say success, LIBERO's file."""
    folder = tmp_path_factory.mktemp("bed")
    write_demos(folder / "demos", 12)
    write_lerobot(folder / "lerobot", [9] * 12, tasks=["reach the blue block", "move to the red block"])
    write_lerobot(folder / "unsure", [9] * 4, success=False, camera="front", size=(48, 64))
    write_libero(folder / "libero" / "put_demo.hdf5", [8, 8])
    (folder / "empty").mkdir()
    return folder


def test_there_and_back(bed, tmp_path, capsys):
    assert run(["export", f"data={bed}/demos", f"out={tmp_path}/lerobot", "lossless=true"]) == 0
    assert "12 episodes" in capsys.readouterr().out
    assert run(["import", f"data={tmp_path}/lerobot", f"out={tmp_path}/back"]) == 0
    before, after = read_dataset(bed / "demos"), read_dataset(tmp_path / "back")
    assert (before.spec, before.info) == (after.spec, after.info)
    for one, two in zip(before.records, after.records, strict=True):
        assert_same_record(one, two)


def test_anybodys_dataset_is_imported_by_its_own_statistics(bed, tmp_path):
    out = tmp_path / "out"
    arguments = [f"data={bed}/unsure", f"out={out}", "success=all", "cameras={top: front}", "camera_size=32"]
    assert run(["import", *arguments, "policy.bins=256", "policy.chunk=4", "policy.replan=2"]) == 0
    dataset = read_dataset(out)
    assert dataset.spec.cameras == {"top": (32, 32)}
    assert (dataset.spec.max_decisions, len(dataset.records)) == (4, 4)
    actions = np.concatenate([np.random.default_rng(i).uniform(-1, 1, (9, 3)) for i in range(4)])
    np.testing.assert_allclose(dataset.info["action_low"], np.quantile(actions, 0.01, axis=0), atol=1e-5)
    np.testing.assert_allclose(dataset.info["action_high"], np.quantile(actions, 0.99, axis=0), atol=1e-5)


def test_libero_is_imported(bed, tmp_path):
    assert run(["import", f"data={bed}/libero", f"out={tmp_path}/out", "action_low=[-1,-1,-1,-1,-1,-1,-1]",
                "action_high=[1,1,1,1,1,1,1]"]) == 0  # fmt: skip
    dataset = read_dataset(tmp_path / "out")
    assert [record.env_steps for record in dataset.records] == [7, 7]
    assert dataset.info["action_low"] == [-1.0] * 7


def test_what_a_run_collected_is_exported(tmp_path, capsys):
    from platform.train import run as train

    folder = tmp_path / "run"
    assert train(["real", *FAST, "host=serial", "run.stop.updates=2", f"run.dir={folder}"]) == 0
    capsys.readouterr()
    assert run(["inspect", str(folder), "json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "run"
    assert run(["export", f"data={folder}", f"out={tmp_path}/lerobot", "lossless=true"]) == 0
    assert run(["import", f"data={tmp_path}/lerobot", f"out={tmp_path}/back"]) == 0
    back = read_dataset(tmp_path / "back").records
    context, collected = run_episodes(folder)
    assert found["episodes"] == len(collected) == len(back) > 0
    taken = read_any(folder, context, gamma=0.99).records
    assert len(taken) == len(collected)
    for one, two in zip(taken, collected, strict=True):
        assert_same_record(one, two)
    for one, two in zip(collected, back, strict=True):
        assert_same_record(one, two)


def test_data_of_no_environment_here_is_pretrained_on(bed, tmp_path, caplog):
    out, tokens = tmp_path / "imported", ["policy.bins=32", "policy.chunk=2", "policy.replan=2"]
    assert (
        run(["import", f"data={bed}/libero", f"out={out}", "cameras={top: wrist}", "camera_size=16", *tokens])
        == 0
    )
    arguments = [
        f"data={out}",
        "env=recorded",
        f"env.data={out}",
        *tokens,
        *TINY,
        "policy_budget.batch=2",
        "held_out=0.5",
    ]
    assert pretrain(["policy", *arguments, f"out={tmp_path}/models"]) == 0
    card = json.loads((tmp_path / "models/policy/card.json").read_text())
    assert (card["updates"], card["success"]) == (4, {})
    assert main(pretrain, "usage", argv=["policy", *arguments, "env.data=", f"out={tmp_path}/m"]) == 2
    assert "set env.data=<folder>" in caplog.text


@pytest.mark.parametrize("folder", ["demos", "lerobot", "libero", "unsure"])
def test_inspect_says_what_is_there(bed, tmp_path, capsys, folder):
    assert run(["inspect", str(bed / folder), "json=true", f"out={tmp_path}/sheet.png"]) == 0
    found = json.loads(capsys.readouterr().out)
    episodes, rate = {"demos": (12, None), "lerobot": (12, 1.0), "libero": (2, 1.0), "unsure": (4, None)}[
        folder
    ]
    assert found["episodes"] == episodes
    if folder != "demos":
        assert found["success"]["rate"] == rate
        assert found["env_steps"] == episodes * found["length"]["max"]
    else:
        records = read_dataset(bed / "demos").records
        assert found["env_steps"] == sum(record.env_steps for record in records)
        assert found["decisions"] == sum(record.length for record in records)
        assert found["success"]["rate"] == sum(record.success for record in records) / 12
    assert sum(task["episodes"] for task in found["tasks"].values()) == episodes
    width, height = Image.open(tmp_path / "sheet.png").size
    assert height >= min(episodes, 8) * 96
    assert width > 3 * 96
    assert run(["inspect", str(bed / folder)]) == 0
    assert f"{episodes} episodes" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["lerobot", "export"])
def test_a_policy_is_cloned_from_what_lerobot_holds(bed, tmp_path, folder):
    data = bed / folder
    if folder == "export":
        data = tmp_path / "export"
        assert run(["export", f"data={bed}/demos", f"out={data}"]) == 0
    assert pretrain(["policy", f"data={data}", f"out={tmp_path}/models", *TINY, "clone_noise=1"]) == 0
    card = json.loads((tmp_path / "models/policy/card.json").read_text())
    assert (card["data"]["episodes"], card["updates"]) == (12, 4)


MISTAKES: dict[str, tuple[str, list[str], str]] = {
    "verb": ("demos", ["imprt"], "did you mean import?"),
    "no folder": ("demos", ["inspect", "/nowhere"], "no such folder"),
    "no dataset": ("demos", ["inspect", "{bed}/empty"], "no dataset.json, meta/info.json or *.hdf5"),
    "inspect nothing": ("demos", ["inspect"], "data is missing"),
    "import ours": ("demos", ["import", "data={bed}/demos", "out={out}/x"], "a dataset of Reverie already"),
    "import over": ("demos", ["import", "data={bed}/lerobot", "out={bed}/empty"], "exists already"),
    "success unknown": ("demos", ["import", "data={bed}/unsure", "out={out}/x"], "success=all"),
    "camera": ("demos", ["import", "data={bed}/lerobot", "out={out}/x", "cameras={{top: side}}"], "no camera 'side'"),
    "range": ("demos", ["import", "data={bed}/lerobot", "out={out}/x", "action_low=[0]", "action_high=[1]"], "3 dimensions"),
    "half a range": ("demos", ["import", "data={bed}/lerobot", "out={out}/x", "action_low=[0]"], "give both or none"),
    "other env": ("demos", ["import", "data={bed}/libero", "out={out}/x", "env=tabletop"], "7 dimensions"),
    "export over": ("demos", ["export", "data={bed}/demos", "out={bed}/empty"], "never overwritten"),
    "export nothing": ("demos", ["export", "data={bed}/empty", "out={out}/x"], "no dataset.json"),
    "export fps": ("demos", ["export", "data={bed}/demos", "out={out}/x", "fps=15"], "give a multiple of 4"),
    "pretrain on LIBERO for a tabletop": ("pretrain", ["policy", "data={bed}/libero", *TINY, "out={out}/m"], "cameras is"),
    "pretrain on an unknown outcome": ("pretrain", ["policy", "data={bed}/unsure", *TINY, "out={out}/m"], "record success"),
    "train on LeRobot": ("train", ["real", "data={bed}/lerobot", "run.dir={out}/r"], "platform.demos import"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_ends_in_one_line(case, bed, tmp_path, caplog):
    import importlib

    command, argv, words = MISTAKES[case]
    module = importlib.import_module(f"platform.{command}")
    filled = [text.format(bed=bed, out=tmp_path) for text in argv]
    assert main(module.run, "usage", argv=filled) == 2
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1, errors
    assert words in errors[0]
    assert "\n" not in errors[0]
    assert not list(tmp_path.iterdir())


def test_tokens_of_another_range_are_no_actions_of_the_env(bed, tmp_path, caplog):
    out = tmp_path / "imported"
    assert run(["import", f"data={bed}/lerobot", f"out={out}"]) == 0
    assert main(pretrain, "usage", argv=["policy", f"data={out}", *TINY, f"out={tmp_path}/models"]) == 2
    assert "max_decisions is" in caplog.text
    assert run(["import", f"data={bed}/lerobot", f"out={out}2", "env=tabletop_reach", "action_low=[-2,-2,-2]",
                "action_high=[2,2,2]"]) == 0  # fmt: skip
    assert (
        main(
            pretrain,
            "usage",
            argv=["policy", f"data={out}2", "env=tabletop_reach", *TINY, f"out={tmp_path}/models"],
        )
        == 2
    )
    assert "its tokens mean other actions" in caplog.text


def test_every_verb_has_a_help_of_its_own(capsys):
    for verb, key in (("export", "lossless"), ("import", "camera_size"), ("inspect", "noop_below")):
        assert start([verb, "--help"]) == 0
        assert key in capsys.readouterr().out
    assert start(["--help"]) == 0
    assert "inspect <folder>" in capsys.readouterr().out


@pytest.mark.parametrize(("package", "folder"), [("pyarrow", "lerobot"), ("h5py", "libero")])
def test_a_missing_package_is_named_with_its_extra(bed, tmp_path, caplog, monkeypatch, package, folder):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(run, "usage", argv=["import", f"data={bed}/{folder}", f"out={tmp_path}/x"]) == 2
    assert f"the package {package} is not installed" in caplog.text
    assert "pip install 'reverie-rl[exchange]'" in caplog.text
    assert not list(tmp_path.iterdir())
