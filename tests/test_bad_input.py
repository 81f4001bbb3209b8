"""What users get wrong: each mistake ends the real command in one line that tells the remedy, and leaves nothing behind."""

from __future__ import annotations

import importlib
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from platform.command import main

import pytest

from tests.run_helper import FAST, MODELS, POLICY, config, write_demos

SERIAL = [*FAST, "host=serial", "run.dir={out}/run"]
PRETRAIN = [*POLICY, *MODELS, "out={out}/models", "run.precision=no"]
DATA, UPDATES = "data={bed}/demos", "run.stop.updates=1"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, a folder of (untrained) models, torn copies of it, a finished run."""
    from platform.context import make_context
    from platform.models import save_model
    from platform.weights import module_arrays

    folder = tmp_path_factory.mktemp("bed")
    write_demos(folder / "demos", 60)
    context = make_context(config("real"), seed=0, device="cpu")
    makers = {
        "policy": context.make_policy,
        "obs_model": context.make_obs_model,
        "reward_model": context.make_reward_model,
    }
    for name, make in makers.items():
        save_model(folder / "models" / name, context.describe(name), module_arrays(make()), {})
    shutil.copytree(folder / "models", folder / "torn")
    for name in makers:
        weights = folder / "torn" / name / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-5])
    (folder / "torn" / "policy" / "manifest.json").unlink()
    shutil.copytree(folder / "models" / "policy", folder / "no_json")
    (folder / "no_json" / "config.json").write_text("{")
    (folder / "empty").mkdir()
    (folder / "file").write_text("not a folder")
    return folder


@pytest.fixture(scope="module")
def finished(bed: Path) -> Path:
    """A run of one turn."""
    from platform.train import run

    assert run(["real", *FAST, "host=serial", UPDATES, f"run.dir={bed / 'finished'}"]) == 0
    return bed / "finished"


def fails(
    command: str, argv: list[str], words: str, caplog: pytest.LogCaptureFixture, out: Path, code: int = 2
) -> None:
    """The command ends with ``code`` and one line that holds ``words``; ``out`` stays empty."""
    module = importlib.import_module(f"platform.{command}")
    before = sorted(out.rglob("*"))
    assert main(module.run, "usage", argv=argv) == code
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1, errors
    assert "\n" not in errors[0]
    assert words in errors[0]
    assert ": " in errors[0], "a remedy follows"
    assert sorted(out.rglob("*")) == before


TRAIN: dict[str, tuple[list[str], str]] = {
    "mode": (["rael"], "did you mean real?"),
    "key": (["real", "algorithm.bacth=3"], "did you mean algorithm.batch?"),
    "section": (["real", "algoritm.batch=3"], "did you mean algorithm?"),
    "no data": (["real+imagined", "data=/nowhere"], "no such folder"),
    "data is a file": (["real+imagined", "data={bed}/file"], "no such folder"),
    "empty data": (["real+imagined", "data={bed}/empty"], "no dataset.json"),
    "data is a model": (["real+imagined", "data={bed}/models/policy"], "no dataset.json"),
    "data of another camera": (["real+imagined", DATA, "env.camera_size=64"], "cameras is"),
    "data of other tokens": (["real", DATA, "policy.bins=8"], "bins is 16, expected 8"),
    "data of another chunk": (["real", DATA, "policy.chunk=8"], "chunk is 4, expected 8"),
    "data of another task": (["real", DATA, "env=tabletop_push"], "is not one of tabletop's"),
    "horizon": (["real+imagined", "imagination.schedule.horizon=0"], "imagination.schedule.horizon=0 does not fit"),
    "sigma 0": (["real", "algorithm.sigma=0"], "algorithm.sigma=0 does not fit"),
    "sigma below 0": (["real", "algorithm.sigma=-0.5"], "algorithm.sigma=-0.5 does not fit"),
    "sigma nan": (["real", "algorithm.sigma=nan"], "does not fit"),
    "replan": (["real", "policy.replan=5"], "set policy.replan to at most 4"),
    "micro batch": (["real", "algorithm.micro_batch=33"], "choose a micro_batch that divides"),
    "stale data uncorrected": (
        ["real", "algorithm=decoupled_ppo", "algorithm.behave_weight=false"], "leaves stale data uncorrected",
    ),
    "stale data uncorrected without a budget": (
        ["real", "algorithm=decoupled_ppo", "algorithm.anchor=interpolate", "algorithm.behave_weight=false", "sync=on_policy"],
        "staleness.bound=0 and sync.updates_per_publish=1",
    ),
    "threshold": (
        ["real", "algorithm=decoupled_ppo", "algorithm.behave_weight_threshold=1"], "number above 1",
    ),
    "ranks on one process": (["real", "learner.ranks=2", "algorithm.micro_batch=16"], "use host=ray"),
    "more ranks than episodes": (
        ["real", "host=ray", "learner.ranks=32", "algorithm.micro_batch=1"], "lower it to at most",
    ),
    "no place for imagination": (["real+imagined", "algorithm.batch=1", "algorithm.micro_batch=1"], "mix (constant)"),
    "share of real data": (["real+imagined", "mix.real_fraction=1"], "below 1"),
    "buffer": (["real", "buffers.real.max_bytes=60000"], "give at least"),
    "imagined buffer": (["imagined", "buffers.imagined.max_bytes=60000"], "give at least"),
    "replicas": (["real", "inference.replicas=3", "rollout.workers=2"], "lower it, or raise rollout.workers"),
    "memory": (["real", "buffers.real.max_bytes=100000000000000"], "the machine has"),
    "store": (["real", "sync.store_size=100", "staleness.budget=0.5"], "give at most 48"),
    "waiting for ever": (["real", "staleness.on_violation=wait", "staleness.bound=0"], "set staleness.bound to 1"),
    "on-policy share of nothing": (["imagined", "staleness.on_policy_min_ratio=0.1"], "no real decision"),
    "segments for models": (["imagined", "rollout.segment=2"], "drop rollout.segment"),
    "segments in groups": (["real", "rollout.segment=2", "rollout.group=2"], "whole episodes"),
    "segments in order": (["real", "rollout.segment=2", "sync=on_policy"], "change sync.ordered"),
    "verl's partial": (["real", "async_training.partial_rollout=true"], "use sync.partial"),
    "held out": (["imagined", "buffers.real.held_out=0", "evaluation.quality_every=5"], "buffers.real.held_out"),
    "gate unmeasured": (["imagined", "imagination.gate.enabled=true"], "evaluation.quality_every"),
    "policy of another camera": (
        ["real", "env.camera_size=64", "policy.path={bed}/models/policy"], "was trained with cameras",
    ),
    "policy of another width": (["real", "policy.path={bed}/models/policy", "policy.width=32"], "width=16"),
    "models of another camera": (
        ["imagined", "env.camera_size=64", "world_model.path={bed}/models"], "was trained with cameras",
    ),
    "another model": (["real", "policy.path={bed}/models/obs_model"], "holds the obs_model"),
    "policy is a dataset": (["real", "policy.path={bed}/demos"], "no policy there"),
    "no policy": (["real", "policy.path=/nowhere"], "no such folder"),
    "models are a policy": (["imagined", "world_model.path={bed}/models/policy"], "no obs_model there"),
    "torn policy": (["real", "policy.path={bed}/torn/policy"], "model.safetensors is missing or torn"),
    "torn models": (["imagined", "world_model.path={bed}/torn"], "model.safetensors is missing or torn"),
    "torn config": (["real", "policy.path={bed}/no_json"], "config.json is missing or torn"),
    "frozen beside real": (["real", DATA, "world_model.frozen=true"], "use the mode imagined"),
    "frozen without data": (["imagined", "world_model.frozen=true"], "give data=<folder>"),
    "unknown id": (["real", "env=gymnasium", "env.id=Nope-v0"], "cannot make 'Nope-v0'"),
    "no id": (["real", "env=gymnasium"], "set env.id="),
    "discrete actions": (["real", "env=gymnasium", "env.id=CartPole-v1"], "continuous Box action space"),
    "no cluster": (["real", "host=ray", "host.address=127.0.0.1:9"], "nothing listens there"),
    "no updates": (["real", "run.stop.updates=-1"], "run.stop.updates=-1 does not fit"),
    "no trials": (["real", "evaluation.trials=0"], "evaluation.trials=0 does not fit"),
    "no evaluation to stop at": (["real", "run.stop.success=0.9"], "evaluation.every"),
    "seed": (["real", "run.seed=9999999999999"], "run.seed=9999999999999 does not fit"),
    "frame does not divide": (["imagined", "world_model.obs_model.fold=3"], "does not divide"),
    "nobody to take over from": (["real", "rollout.spare_envs=2"], "raise rollout.workers"),
    "blocks": (["real", "env.block_radius=0.4"], "do not fit on the table"),
    "resume nothing": (["real", "run.resume=/nowhere"], "no run there"),
    "resume a dataset": (["real", "run.resume={bed}/demos"], "no run there"),
    "directory below a file": (["real", "run.dir={bed}/file/run"], "choose a folder"),
    "directory is a file": (["real", "run.dir={bed}/file"], "choose a folder"),
    "directory in use": (["real", "run.dir={bed}/demos"], "never overwritten"),
}  # fmt: skip


@pytest.mark.parametrize("case", TRAIN)
def test_train(case: str, bed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    argv, words = TRAIN[case]
    filled = [text.format(bed=bed, out=tmp_path) for text in [argv[0], *SERIAL, *argv[1:]]]
    fails("train", filled, words, caplog, tmp_path)


OTHERS: dict[str, tuple[str, list[str], str]] = {
    "evaluate nothing": ("evaluate", [], "give policy.path="),
    "evaluate no folder": ("evaluate", ["policy.path=/nowhere"], "no policy there"),
    "evaluate another model": ("evaluate", [*POLICY, "policy.path={bed}/models/obs_model"], "holds the obs_model"),
    "evaluate another size": ("evaluate", ["policy.path={bed}/models/policy"], "was trained with width=16"),
    "evaluate a torn model": ("evaluate", [*POLICY, "policy.path={bed}/torn/policy"], "missing or torn"),
    "demos without an expert": ("demos", ["env=gymnasium", "env.id=Pendulum-v1", "out={out}/d"], "no scripted expert"),
    "demos below a file": ("demos", ["out={bed}/file/demos", "episodes=2"], "choose another folder"),
    "demos over something": ("demos", ["out={bed}/empty", "episodes=2"], "exists already"),
    "pretrain what": ("pretrain", ["polcy", DATA, *PRETRAIN], "did you mean policy?"),
    "pretrain on nothing": ("pretrain", ["policy", *PRETRAIN], "data is missing"),
    "pretrain on an empty folder": ("pretrain", ["all", "data={bed}/empty", *PRETRAIN], "no dataset.json"),
    "pretrain for other tasks": ("pretrain", ["policy", DATA, *PRETRAIN, "env=tabletop_push"], "is not one of"),
    "policy batch": ("pretrain", ["policy", DATA, *PRETRAIN, "policy_budget.batch=100000"], "larger than the data"),
    "obs_model batch": ("pretrain", ["obs_model", DATA, *PRETRAIN, "obs_model_budget.batch=100000"], "larger than the data"),
    "reward_model batch": ("pretrain", ["reward_model", DATA, *PRETRAIN, "reward_model_budget.batch=100000"], "larger than"),
    "pretrain over a model": ("pretrain", ["policy", DATA, *PRETRAIN, "out={bed}/models"], "never overwritten"),
    "pretrain below a file": ("pretrain", ["policy", DATA, *PRETRAIN, "out={bed}/file/models"], "choose a folder"),
    "pretrain in FP8": ("pretrain", ["obs_model", DATA, *PRETRAIN, "world_model.obs_model.precision=fp8"], "FP8 needs a GPU"),
    "distil nothing": ("pretrain", ["obs_model", DATA, *PRETRAIN, "world_model.obs_model.sampler=consistency"], "give world_model.path"),
    "no policy to look through": ("pretrain", ["reward_model", DATA, *PRETRAIN, "world_model.reward_model.backbone=policy"], "give policy.path"),
    "pretrain nothing calm": ("pretrain", ["policy", DATA, *PRETRAIN, "clone_noise=0"], "record more episodes"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_other_commands(case: str, bed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    command, argv, words = OTHERS[case]
    fails(command, [text.format(bed=bed, out=tmp_path) for text in argv], words, caplog, tmp_path)


@pytest.mark.parametrize("command", ["train", "evaluate", "pretrain"])
def test_a_gpu_that_is_not_there(
    command: str, bed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    argv = {
        "train": ["real", *SERIAL],
        "evaluate": [*POLICY, "policy.path={bed}/models/policy"],
        "pretrain": ["all", DATA, *PRETRAIN],
    }[command]
    filled = [text.format(bed=bed, out=tmp_path) for text in [*argv, "run.device=cuda"]]
    fails(command, filled, "use run.device=cpu", caplog, tmp_path)


def test_resuming_a_run_without_or_with_torn_checkpoints(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resume = ["real", "host=serial", "run.stop.updates=2"]
    bare = shutil.copytree(finished, tmp_path / "bare", symlinks=True)
    shutil.rmtree(bare / "checkpoints")
    fails("train", [*resume, f"run.resume={bare}"], "no checkpoint", caplog, tmp_path)
    caplog.clear()
    torn = shutil.copytree(finished, tmp_path / "torn", symlinks=True)
    for manifest in torn.glob("checkpoints/0*/manifest.json"):
        manifest.write_text("{")
    fails("train", [*resume, f"run.resume={torn}"], "no complete checkpoint", caplog, tmp_path)


def test_a_part_of_a_torn_checkpoint_is_refused(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its hashes are in the checkpoint's manifest, not beside it."""
    copy = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    weights = copy / "checkpoints" / "last" / "policy" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    argv = [*POLICY, "evaluation.trials=1", f"policy.path={weights.parent}"]
    fails("evaluate", argv, "missing or torn", caplog, tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 120 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("command", ["demos", "pretrain"])
def test_a_full_disk_leaves_nothing(
    command: str, bed: Path, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    argv = {
        "demos": [f"out={disk}/demos", "episodes=20"],
        "pretrain": ["obs_model", DATA, *PRETRAIN, "obs_model_budget.updates=1"],
    }[command]
    filled = [text.format(bed=bed, out=disk) for text in argv]
    fails(command, filled, "free", caplog, disk)


def test_a_disk_that_fills_while_training_keeps_what_is_complete(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from platform.train import run

    assert main(run, "usage", argv=["real", *FAST, "host=serial", UPDATES, f"run.dir={disk}/run"]) == 2
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "the disk is full" in errors[0]
    assert not list((disk / "run" / "checkpoints").glob("*"))
    assert not list((disk / "run" / "checkpoints").glob(".*"))


def test_a_disk_that_is_full_from_the_start_gets_no_run_directory(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (disk / "filler").write_bytes(bytes(120 * 1024 - 8192))
    (disk / "rest").write_bytes(bytes(4096))
    fails("train", ["real", *FAST, "host=serial", f"run.dir={disk}/run"], "space", caplog, disk)


@pytest.mark.parametrize("command", ["train", "demos", "pretrain"])
def test_a_read_only_file_system(
    command: str, bed: Path, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    argv = {
        "train": ["real", *SERIAL],
        "demos": [f"out={disk}/demos", "episodes=2"],
        "pretrain": ["policy", DATA, *PRETRAIN],
    }[command]
    fails(command, [text.format(bed=bed, out=disk) for text in argv], "choose a", caplog, disk)


def test_a_reader_that_leaves_gets_no_traceback(bed: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "platform.evaluate", *POLICY, f"policy.path={bed / 'models' / 'policy'}",
        "evaluation.trials=2", "env.max_episode_steps=8", f"run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 141


@pytest.mark.parametrize("mode", ["imagined", "real+imagined"])
def test_imagination_without_data_waits_for_real_episodes(mode: str, tmp_path: Path) -> None:
    from platform.checkpoint import read_checkpoint
    from platform.train import run

    argv = [
        mode, *FAST, "host=serial", f"run.dir={tmp_path}/run", "run.stop.updates=3", "run.stall_s=5",
        "imagination.gate.enabled=true", "imagination.gate.min_agreement=0", "imagination.gate.max_false_success=1",
        "evaluation.quality_every=1", "world_model.obs_model.every=1", "world_model.reward_model.every=1",
    ]  # fmt: skip
    assert run(argv) == 0
    _, states = read_checkpoint(tmp_path / "run" / "checkpoints")
    assert states["policy_learner"]["turns"] == 3
    assert states["rollout_0"]["steps"]["taken"] > 0
    assert (states["imagination"]["imagined_steps"] > 0) or mode == "real+imagined"
    assert states["obs_model_learner"]["updates"] > 0


def test_a_horizon_beyond_an_episode_is_cut_to_it(tmp_path: Path) -> None:
    from platform.checkpoint import read_checkpoint
    from platform.train import run

    argv = [
        "real+imagined", *FAST, "host=serial", f"run.dir={tmp_path}/run", "run.stop.updates=1",
        "imagination.schedule.horizon=20", "env.max_episode_steps=12",
    ]  # fmt: skip
    assert run(argv) == 0
    assert read_checkpoint(tmp_path / "run" / "checkpoints")[1]["imagination"]["imagined_steps"] > 0
