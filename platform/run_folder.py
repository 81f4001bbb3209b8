"""The run directory: made once, never overwritten."""

from __future__ import annotations

import time
from pathlib import Path

from configs.errors import CheckpointError
from configs.system import RunConfig

from .storage import disk_errors

GIVEN = ("config.yaml", "log.txt", "policy.json")
"""Files that say what is to be done."""
ROWS = ("metrics.jsonl", "trials.jsonl")
"""Files of what was done."""


def new_run_folder(run: RunConfig) -> Path:
    """Make ``run.dir``, or ``outputs/<name>/<date>_<time>``.

    Raises CheckpointError when it is there and not empty, ResourceError when it cannot be made.
    """
    given = run.dir
    folder = Path(given) if given else Path("outputs") / run.name / time.strftime("%Y-%m-%d_%H-%M-%S")
    if folder.is_dir() and any(folder.iterdir()):
        raise CheckpointError(
            "the run directory is not empty and is never overwritten", where=str(folder),
            remedy="choose another run.dir, or continue it with run.resume=",
        )  # fmt: skip
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def remove_if_bare(folder: Path) -> None:
    """Take away the directory of a run that failed before it did anything: no row of metrics or trials, nothing else either."""
    paths = list(folder.iterdir())
    began = any(path.stat().st_size > 0 for path in paths if path.name in ROWS)
    if {path.name for path in paths} <= {*GIVEN, *ROWS} and not began:
        for path in paths:
            path.unlink()
        folder.rmdir()


def require_run(folder: Path) -> None:
    """Raise CheckpointError unless ``folder`` is a run directory."""
    if not (folder / "config.yaml").is_file():
        raise CheckpointError(
            "no run there", where=str(folder), remedy="give the directory of a run as run.resume"
        )
