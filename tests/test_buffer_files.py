"""Buffers in checkpoints: large ones incrementally, verified when they are read."""

from __future__ import annotations

from pathlib import Path
from platform import buffer_files
from platform.buffer_files import SHARDS, load_buffers, save_buffers
from platform.storage import new_folder, verify_folder

import numpy as np
import pytest

from configs.errors import CheckpointError
from tests.buffer_helper import SPEC, fill, make_buffer
from tests.records_helper import assert_same_record, make_record


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_files, "LARGE_BYTES", 1)
    monkeypatch.setattr(buffer_files, "RECORDS_PER_SHARD", 4)


def save(folder: Path, name: str, state: dict[str, object], previous: str | None = None) -> Path:
    with new_folder(folder / name) as partial:
        (partial / "buffers").mkdir()
        save_buffers(partial / "buffers", {"b_real": state}, previous and folder / previous / "buffers")  # type: ignore[arg-type]
    return folder / name / "buffers"


def shards(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (folder / SHARDS).iterdir()}


def test_only_what_is_new_is_written_and_all_comes_back(tmp_path: Path) -> None:
    buffer = make_buffer(rows=200)
    fill(buffer, [4] * 18)
    one = save(tmp_path, "1", buffer.state())
    assert len(shards(one)) == 5
    buffer.extend([make_record(SPEC, 100 + i, 7) for i in range(2)])
    state = buffer.state()
    two = save(tmp_path, "2", state, previous="1")
    kept = set(shards(one).items()) & set(shards(two).items())
    assert len(kept) == 4, "the last shard grew, the others are the same files"
    (tmp_path / "1").rename(tmp_path / "gone")
    verify_folder(tmp_path / "2")
    twin = make_buffer(rows=200)
    twin.load(load_buffers(two)["b_real"])
    assert twin.ids() == buffer.ids()
    for key in buffer.ids():
        assert_same_record(buffer.get(key), twin.get(key))
    for name, column in state["shelf"]["columns"].items():
        np.testing.assert_array_equal(twin.state()["shelf"]["columns"][name], column)


def test_records_that_left_take_their_shards_with_them(tmp_path: Path) -> None:
    buffer = make_buffer(rows=40)
    fill(buffer, [4] * 8)
    one = save(tmp_path, "1", buffer.state())
    buffer.extend([make_record(SPEC, 100 + number, 4) for number in range(8)])
    two = save(tmp_path, "2", buffer.state(), previous="1")
    assert not set(shards(one)) & set(shards(two))
    twin = make_buffer(rows=40)
    twin.load(load_buffers(two)["b_real"])
    assert twin.ids() == list(range(8, 16))


def test_a_shard_that_decayed_is_written_anew_and_refused_where_it_was(tmp_path: Path) -> None:
    buffer = make_buffer(rows=100)
    fill(buffer, [4] * 8)
    state = buffer.state()
    one = save(tmp_path, "1", state)
    victim = sorted((one / SHARDS).iterdir())[0]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CheckpointError, match="missing or torn"):
        verify_folder(tmp_path / "1")
    two = save(tmp_path, "2", state, previous="1")
    verify_folder(tmp_path / "2")
    assert shards(two)[victim.name] != shards(one)[victim.name]
    twin = make_buffer(rows=100)
    twin.load(load_buffers(two)["b_real"])
    assert_same_record(buffer.get(0), twin.get(0))


def test_an_empty_buffer_comes_back(tmp_path: Path) -> None:
    folder = save(tmp_path, "1", make_buffer(rows=40).state())
    twin = make_buffer(rows=40)
    twin.load(load_buffers(folder)["b_real"])
    assert twin.ids() == []
