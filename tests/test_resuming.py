"""Under which configuration a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.resuming import resumed_config, resumed_folder  # isort: skip
from configs.errors import ConfigError
from configs.loader import load_config, to_yaml
from configs.schema import TrainConfig
from configs.system import RayHostConfig, SerialHostConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run with settings of its own."""
    argv = ["imagined", "host=serial", "run.stop.updates=7", "algorithm.batch=64",
        "algorithm.micro_batch=32", "algorithm.learning_rate=1e-5", "run.seed=3",
        "run.precision=no", "imagination/schedule=fixed", "imagination.schedule.horizon=2",
    ]  # fmt: skip
    (tmp_path / "config.yaml").write_text(to_yaml(load_config(TrainConfig, argv)))
    return tmp_path


def test_nothing_but_the_folder_has_to_be_given(folder: Path) -> None:
    argv = [f"run.resume={folder}"]
    assert resumed_folder(argv) == folder
    config = resumed_config(folder, argv)
    assert config.mode == "imagined"
    assert isinstance(config.host, SerialHostConfig)
    assert (config.run.stop.updates, config.algorithm.batch, config.run.seed) == (7, 64, 3)


def test_what_is_free_may_change_alone(folder: Path) -> None:
    argv = [
        "imagined",
        f"run.resume={folder}",
        "run.stop.updates=9",
        "host=ray",
        "learner.ranks=2",
        "run.dir=x",
    ]
    config = resumed_config(folder, argv)
    assert config.run.stop.updates == 9
    assert isinstance(config.host, RayHostConfig)
    assert config.learner.ranks == 2
    assert (config.algorithm.batch, config.run.dir) == (64, None)


def test_the_same_command_again_is_fine_and_another_is_refused(folder: Path) -> None:
    same = [
        "imagined", "algorithm.batch=64", "algorithm.learning_rate=1e-5", "env=tabletop", "run.seed=3", "preset=quickstart",
        "run.precision=no", "imagination/schedule=fixed", "imagination.schedule.horizon=2",
        f"run.resume={folder}",
    ]  # fmt: skip
    assert resumed_config(folder, same).algorithm.batch == 64
    for argv, told in (
        (["algorithm.batch=32"], "algorithm.batch is 64 in the run, 32 on the command line"),
        (["env=tabletop_push"], "env is"),
        (["imagination/schedule=linear"], "imagination/schedule is"),
        (["algorithm=ppo"], "algorithm is"),
        (["algorithm.bach=64"], "did you mean"),
    ):
        with pytest.raises(ConfigError, match=told):
            resumed_config(folder, [*argv, f"run.resume={folder}"])
    for named in ("real", "mode=real"):
        with pytest.raises(ConfigError, match="mode is imagined in the run, real on the command line"):
            resumed_config(folder, [named, f"run.resume={folder}"])


def test_a_dry_run_shows_the_configuration_that_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from platform.train import dry_run

    assert dry_run([f"run.resume={folder}", "run.stop.updates=9"]) == 0
    shown = capsys.readouterr().out
    assert "mode: imagined" in shown
    assert "updates: 9" in shown


@pytest.mark.parametrize("text", ["run.resume=null", "run.resume=", "run.seed=1"])
def test_no_folder_is_no_resume(text: str) -> None:
    assert resumed_folder([text]) is None
