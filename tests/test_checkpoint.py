"""A run's checkpoints on disk: what stays, what is written anew."""

from __future__ import annotations

from pathlib import Path
from platform.checkpoint import read_checkpoint, write_checkpoint

TORN = Path("000002") / "training_state" / "state.json"


def write(folder: Path, step: int, number: int) -> None:
    write_checkpoint(folder, step, {"runner": {"number": number}}, {}, None, keep=2)  # type: ignore[arg-type]


def test_a_torn_checkpoint_does_not_hold_the_place_of_a_good_one(tmp_path: Path) -> None:
    write(tmp_path, 1, 1)
    write(tmp_path, 2, 2)
    (tmp_path / TORN).write_text("{}")
    assert read_checkpoint(tmp_path) == (1, {"runner": {"number": 1}})
    write(tmp_path, 2, 3)
    assert read_checkpoint(tmp_path) == (2, {"runner": {"number": 3}})
    assert (tmp_path / "last").resolve().name == "000002"


def test_a_good_checkpoint_is_never_written_again(tmp_path: Path) -> None:
    write(tmp_path, 2, 2)
    write(tmp_path, 2, 3)
    assert read_checkpoint(tmp_path) == (2, {"runner": {"number": 2}})
