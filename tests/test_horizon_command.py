"""The horizon command: an experiment from start to report, invoked again, and what stands in its way."""

from __future__ import annotations

import fcntl
import json
import logging
import subprocess
import sys
from pathlib import Path
from platform.command import main
from platform.horizon import dry_run, run, without_multirun

import pytest

from tests.run_helper import FAST, write_demos

ARGV = [
    *(text for text in FAST if not text.startswith("imagination.schedule") and not text.startswith("imagination/")),
    "imagination.schedule.horizon=2", "imagination.schedule.end=3", "imagination.schedule.start=2", "host=serial",
    "imagination/schedule=fixed,drift", "run.seed=0", "run.stop.updates=2", "evaluation.quality_every=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """A finished experiment of two runs: its folder, its arguments, what it printed."""
    folder = tmp_path_factory.mktemp("experiment")
    argv = [*ARGV, f"data={write_demos(folder / 'demos', 60)}", f"experiment.dir={folder / 'out'}"]
    command = [sys.executable, "-m", "platform.horizon", "--multirun", *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "out", argv, done.stdout


def test_an_experiment_leaves_its_report(experiment: tuple[Path, list[str], str]) -> None:
    """Table and verdict are printed and kept, beside the plot, the numbers and the runs."""
    folder, _, printed = experiment
    assert (folder / "report.md").read_text() == printed
    assert [line.split(" | ")[0] for line in printed.splitlines()[2:4]] == ["| fixed", "| drift"]
    assert "No difference beyond the seeds' spread" in printed
    assert (folder / "curves.png").stat().st_size > 10_000
    results = json.loads((folder / "results.json").read_text())
    assert [(each["arm"], each["seed"]) for each in results["runs"]] == [("fixed", 0), ("drift", 0)]
    assert (folder / "drift" / "seed_0" / "summary.json").is_file()
    assert "turn 2/2" in (folder / "drift" / "seed_0.txt").read_text()
    assert list((folder / "drift" / "seed_0" / "media" / "films").glob("*.png"))


def test_again_keeps_what_is_finished_and_continues_what_was_cut(
    experiment: tuple[Path, list[str], str],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without its summary a run counts as cut: it goes on from its checkpoint. The other one is not touched."""
    folder, argv, _ = experiment
    (folder / "drift" / "seed_0" / "summary.json").unlink()
    kept = (folder / "fixed" / "seed_0" / "metrics.jsonl").stat().st_mtime_ns
    assert dry_run(argv) == 0
    shown = capsys.readouterr().out
    assert f"seed 0: is kept ({folder / 'fixed' / 'seed_0'})" in shown
    assert f"seed 0: is continued ({folder / 'drift' / 'seed_0'})" in shown
    with caplog.at_level(logging.INFO):
        assert run(argv) == 0
    assert "2 runs, 1 of them finished before" in caplog.text
    assert (folder / "fixed" / "seed_0" / "metrics.jsonl").stat().st_mtime_ns == kept
    assert json.loads((folder / "drift" / "seed_0" / "summary.json").read_text())["version"] == 2


def test_a_failed_run_is_told_and_tried_again(
    experiment: tuple[Path, list[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its torn checkpoint is the run's own fault; the finished one still gets its report."""
    folder, argv, _ = experiment
    summary = folder / "drift" / "seed_0" / "summary.json"
    kept = summary.read_text()
    summary.unlink()
    (manifest,) = (folder / "drift" / "seed_0" / "checkpoints" / "last").resolve().glob("manifest.json")
    hashes = manifest.read_text()
    manifest.write_text("{")
    assert run(argv) == 3
    assert "drift seed 0: ended with status 2, error: " in caplog.text
    assert "drift seed 0 failed; the same command tries it again" in caplog.text
    report = (folder / "report.md").read_text()
    assert "One arm, fixed" in report
    assert "1 of 2 runs are finished." in report
    manifest.write_text(hashes)
    summary.write_text(kept)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["run.stop.updates=3"], "was run with another run.stop.updates"),
        (["evaluation.trials=16"], "was run with another evaluation.trials"),
        (["host=ray", "experiment.parallel=2", "experiment.dir={out}/new"], "takes all cores itself"),
        (["experiment.parallel=2", "buffers.real.max_bytes=900000000000000", "experiment.dir={out}/new"], "side by side|GB"),
        (["data=/nowhere", "experiment.dir={out}/new"], "no such folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_said_before_anything_starts(
    experiment: tuple[Path, list[str], str], extra: list[str], words: str, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """One line, exit code 2, nothing written."""
    changed = [text.format(out=tmp_path) for text in extra]
    keys = {text.split("=")[0] for text in changed}
    argv = [text for text in experiment[1] if text.split("=")[0] not in keys] + changed
    assert main(run, "usage", argv=argv) == 2
    (error,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert any(word in error for word in words.split("|"))
    assert list(tmp_path.iterdir()) == []


def test_two_commands_do_not_share_an_experiment(
    experiment: tuple[Path, list[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """The second one says so."""
    with (experiment[0] / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(run, "usage", argv=experiment[1]) == 2
    assert "another command is at work" in caplog.text


def test_hydras_flag_is_taken_and_others_are_not() -> None:
    """``--multirun`` says what happens anyway."""
    assert without_multirun(["-m", "a=1,2", "--multirun", "--fast"]) == ["a=1,2", "--fast"]
