"""Dataset folders: round trip, and every way in which they can be broken."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from buffers import dataset
from buffers.dataset import DatasetWriter, read_dataset
from configs.errors import DataError, ResourceError
from tests.records_helper import assert_same_record, make_record, make_spec

SPEC = make_spec(cameras=2)
INFO = {"env": "tabletop", "noise": [0.1, 0.4], "instructions": ["reach 0"]}


def _write(folder: Path, count: int = 5) -> None:
    with DatasetWriter(folder, SPEC, INFO) as writer:
        for number in range(count):
            writer.add(
                make_record(SPEC, number, 1 + number % 3, success=number % 2 == 0, source="demonstration")
            )


@pytest.mark.parametrize("shard_bytes", [1, 1500, 10**9])
def test_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_bytes: int) -> None:
    monkeypatch.setattr(dataset, "SHARD_BYTES", shard_bytes)
    _write(tmp_path / "deep" / "demos")
    found = read_dataset(tmp_path / "deep" / "demos")
    assert (found.spec, found.info, len(found.records)) == (SPEC, INFO, 5)
    for number, record in enumerate(found.records):
        expected = make_record(SPEC, number, 1 + number % 3, success=number % 2 == 0, source="demonstration")
        assert_same_record(expected, record)
    counts = json.loads((tmp_path / "deep" / "demos" / "dataset.json").read_text())["counts"]
    assert counts == {"episodes": 5, "decisions": 9, "env_steps": 18, "successes": 3}
    assert not (tmp_path / "deep" / "demos.partial").exists()


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    _write(tmp_path / "demos")
    with pytest.raises(DataError, match="exists already"):
        DatasetWriter(tmp_path / "demos", SPEC, INFO)
    (tmp_path / "other.partial").mkdir()
    with pytest.raises(DataError, match="left from a run that was killed"):
        DatasetWriter(tmp_path / "other", SPEC, INFO)


def test_an_error_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    def collect() -> None:
        with DatasetWriter(tmp_path / "demos", SPEC, INFO) as writer:
            writer.add(make_record(SPEC, 0, 2))
            raise RuntimeError("collector died")

    with pytest.raises(RuntimeError, match="collector died"):
        collect()
    assert list(tmp_path.iterdir()) == []


def test_nothing_added_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no episode"):
        DatasetWriter(tmp_path / "demos", SPEC, INFO).close()
    assert list(tmp_path.iterdir()) == []


def test_a_record_of_another_spec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cameras"), DatasetWriter(tmp_path / "demos", SPEC, INFO) as writer:
        writer.add(make_record(make_spec(cameras=1), 0, 2))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_failing_disk_is_a_resource_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    writer = DatasetWriter(tmp_path / "demos", SPEC, INFO)
    writer.add(make_record(SPEC, 0, 2))
    with pytest.raises(ResourceError, match=f"{os.strerror(code)}.*: (free|choose)") as caught:
        writer.close()
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_a_file_is_a_resource_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError):
        DatasetWriter(tmp_path / "file" / "demos", SPEC, INFO)


def _edit_index(folder: Path, **change: Any) -> None:
    path = folder / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


BREAKAGES: dict[str, tuple[Any, str]] = {
    "not there": (lambda f: f.rename(f.with_name("moved")), "no such folder"),
    "no index": (lambda f: (f / "dataset.json").unlink(), "no dataset.json"),
    "torn index": (lambda f: _truncate(f / "dataset.json"), "is not JSON"),
    "other format": (lambda f: _edit_index(f, format="other"), "is not of a reverie-dataset"),
    "other layout": (lambda f: _edit_index(f, version=99), "layout version is 99"),
    "no spec": (lambda f: _edit_index(f, spec={}), "lacks what it should have"),
    "no episodes": (lambda f: _edit_index(f, shards=0), "no episodes"),
    "shard gone": (lambda f: (f / "episodes-00000.safetensors").unlink(), "is missing"),
    "shard torn": (lambda f: _truncate(f / "episodes-00000.safetensors"), "sha256 differs"),
    "shard flipped": (lambda f: _flip(f / "episodes-00000.safetensors"), "sha256 differs"),
    "facts flipped": (lambda f: _flip(f / "episodes-00000.json"), "sha256 differs"),
    "shard unknown": (lambda f: _edit_index(f, shards=2), "is not listed"),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_folder_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    damage, message = BREAKAGES[name]
    _write(tmp_path / "demos")
    damage(tmp_path / "demos")
    with pytest.raises(DataError, match=message) as caught:
        read_dataset(tmp_path / "demos")
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
