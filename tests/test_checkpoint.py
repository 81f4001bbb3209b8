"""A run's checkpoints on disk: what stays, what is written anew."""

from __future__ import annotations

from pathlib import Path
from platform.checkpoint import complete, read_checkpoint, write_checkpoint

import pytest

from buffers.reverb_process import hash_checkpoint

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


def test_checkpoints_are_in_the_order_of_their_turns_not_of_their_names(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000, 1_000_001):
        write(tmp_path, step, step)
    assert read_checkpoint(tmp_path) == (1_000_001, {"runner": {"number": 1_000_001}})
    assert [path.name for path in complete(tmp_path)] == ["1000000", "1000001"]


def test_one_whose_buffers_server_wrote_torn_files_is_not_chosen_nor_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        saved = tmp_path / "replay" / "real" / "saved" / str(step)
        saved.mkdir(parents=True)
        (saved / "chunks").write_text(f"chunks {step}")
        state = {"backend": "reverb", "server": {"path": f"saved/{step}", "sha256": hash_checkpoint(saved)}}
        states = {"runner": {"number": step}, "b_real": state}
        write_checkpoint(folder, step, states, {}, None, keep=2)  # type: ignore[arg-type]
    assert read_checkpoint(folder)[0] == 2
    (saved / "chunks").write_text("chunks")
    step, found = read_checkpoint(folder)
    assert (step, found["b_real"]["server"]["path"]) == (1, "saved/1")
    assert "skipped a torn checkpoint: the Reverb checkpoint is missing or torn" in caplog.text
    write(folder, 2, 3)
    assert read_checkpoint(folder) == (2, {"runner": {"number": 3}})
