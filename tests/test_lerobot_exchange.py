"""LeRobot datasets: our export by its documented schema, the way back, and other people's."""

from __future__ import annotations

import json
from pathlib import Path
from platform.datasets import open_export
from platform.exchange import export
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from buffers.exchange import lerobot_layout as layout
from buffers.exchange import lerobot_writer
from buffers.exchange.lerobot import LeRobotSource, is_export
from buffers.exchange.source import Choices
from buffers.exchange.statistics import ColourCount, of_numbers
from buffers.exchange.video import VideoReader
from configs.errors import CheckpointError, DataError
from policies.tokens import ActionTokenizer
from tests.exchange_helper import FPS, frames_of, spread_record, write_lerobot
from tests.records_helper import assert_same_record, make_spec

SPEC = make_spec(cameras=2, size=8)
INFO: dict[str, Any] = {"action_low": [-1.0, -2.0], "action_high": [1.0, 2.0], "noise": [1, 2]}
LENGTHS = [3, 1, 5, 2]


def records() -> list[Any]:
    facts = [{"success": True}, {}, {"success": True, "source": "demonstration"}, {}]
    return [spread_record(SPEC, number, length, **facts[number]) for number, length in enumerate(LENGTHS)]


def exported(
    folder: Path, *, lossless: bool, fps: int = 20, made: list[Any] | None = None, spec: Any = SPEC
) -> Path:
    export(records() if made is None else made, spec, INFO, folder, env_fps=fps, lossless=lossless)
    return folder


@pytest.mark.parametrize("group_bytes", [1, 10**9])
def test_a_lossless_export_comes_back_exactly(tmp_path, monkeypatch, group_bytes):
    monkeypatch.setattr(lerobot_writer, "GROUP_BYTES", group_bytes)
    found = open_export(exported(tmp_path / "out", lossless=True))
    assert (found.spec, found.info, len(found)) == (SPEC, INFO, 4)
    for before, after in zip(records(), found.records(), strict=True):
        assert_same_record(before, after)


@pytest.mark.parametrize("group_bytes", [1, 10**9])
def test_video_changes_frames_a_little_and_nothing_else(tmp_path, monkeypatch, group_bytes):
    monkeypatch.setattr(lerobot_writer, "GROUP_BYTES", group_bytes)
    made = records()
    for number, record in enumerate(made):
        record.images = {name: frames_of(number, record.length + 1, (8, 8)) for name in record.images}
    found = list(open_export(exported(tmp_path / "out", lossless=False, made=made)).records())
    for before, after in zip(made, found, strict=True):
        for name, frames in before.images.items():
            error = np.abs(frames.astype(int) - after.images[name])
            assert error.max() <= 6
            assert not error[-1].any(), "the last observation is kept as it was"
        after.images = before.images
        assert_same_record(before, after)


def test_rows_are_decisions_by_the_documented_schema(tmp_path, monkeypatch):
    monkeypatch.setattr(lerobot_writer, "GROUP_BYTES", 2000)
    folder = exported(tmp_path / "out", lossless=False)
    info = json.loads((folder / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["fps"], info["total_episodes"], info["total_frames"]) == (10, 4, 11)
    assert info["features"]["action"] == {
        "dtype": "float32", "shape": [4], "names": ["step0.0", "step0.1", "step1.0", "step1.1"],
    }  # fmt: skip
    episodes = parquet.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [episode["length"] for episode in episodes] == LENGTHS
    files = [episode["data/file_index"] for episode in episodes]
    assert files == sorted(files)
    assert len(set(files)) > 1
    tables = [parquet.read_table(path) for path in sorted((folder / "data/chunk-000").glob("*.parquet"))]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["index"] for row in rows] == list(range(11))
    tokenizer = ActionTokenizer(INFO["action_low"], INFO["action_high"], SPEC.bins)
    for episode, record in zip(episodes, records(), strict=True):
        own = rows[episode["dataset_from_index"] : episode["dataset_to_index"]]
        assert [row["frame_index"] for row in own] == list(range(record.length))
        np.testing.assert_allclose(
            [row["timestamp"] for row in own], np.arange(record.length) / 10, atol=1e-6
        )
        np.testing.assert_array_equal([row["observation.state"] for row in own], record.proprio[:-1])
        actions = tokenizer.decode(record.tokens[:, :2]).reshape(record.length, 4)
        np.testing.assert_array_equal([row["action"] for row in own], actions)
        assert [row["next.done"] for row in own] == [False] * (record.length - 1) + [True]
        assert own[-1]["next.success"] == record.success
        assert episode["tasks"] == [record.instruction]
        for camera in SPEC.cameras:
            key = f"videos/observation.images.{camera}"
            place = {name: episode[f"{key}/{name}"] for name in ("chunk_index", "file_index")}
            with VideoReader(
                folder / layout.VIDEO.format(video_key=key.removeprefix("videos/"), **place)
            ) as video:
                first = round(episode[f"{key}/from_timestamp"] * 10)
                assert len(list(video.read(first, record.length))) == record.length
            assert round(episode[f"{key}/to_timestamp"] * 10) == first + record.length


def test_tasks_are_a_pandas_index(tmp_path):
    table = parquet.read_table(exported(tmp_path / "out", lossless=True) / "meta/tasks.parquet")
    assert table.to_pydict() == {"task_index": [0, 1, 2, 3], "task": [f"reach {i}" for i in range(4)]}
    assert json.loads(table.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_statistics_are_those_of_the_rows(tmp_path):
    found = json.loads((exported(tmp_path / "out", lossless=True) / "meta/stats.json").read_text())
    state = np.concatenate([record.proprio[:-1] for record in records()]).astype(np.float64)
    np.testing.assert_allclose(found["observation.state"]["mean"], state.mean(axis=0))
    np.testing.assert_allclose(found["observation.state"]["q99"], np.quantile(state, 0.99, axis=0))
    assert found["observation.state"]["count"] == [11]
    pixels = np.concatenate([record.images["camera0"][:-1] for record in records()]) / 255
    image = found["observation.images.camera0"]
    np.testing.assert_allclose(np.ravel(image["mean"]), pixels.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(np.ravel(image["std"]), pixels.std(axis=(0, 1, 2)))
    np.testing.assert_allclose(np.ravel(image["max"]), pixels.max(axis=(0, 1, 2)))
    assert np.shape(image["min"]) == (3, 1, 1)


def test_statistics_by_hand():
    found = of_numbers(np.array([[1, 10], [3, 10]]))
    assert (found["min"], found["mean"], found["std"], found["count"]) == ([1, 10], [2, 10], [1, 0], [2])
    count = ColourCount()
    count.add(np.array([[[[0, 51, 255], [255, 51, 255]]]], np.uint8))
    colours = count.statistics()
    assert np.ravel(colours["mean"]).tolist() == [0.5, 0.2, 1.0]
    assert np.ravel(colours["std"]).round(6).tolist() == [0.5, 0, 0]
    assert np.ravel(colours["q50"]).tolist() == [0, 0.2, 1]


def test_what_the_format_cannot_express_is_refused_and_nothing_stays(tmp_path):
    odd = make_spec(size=5)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"lossless": False, "fps": 15}, "give a multiple of 2"),
        ({"lossless": False, "made": [spread_record(odd, 0, 2)], "spec": odd}, "give lossless=true"),
        ({"lossless": True, "made": [spread_record(SPEC, 0, 2, source="imagined")]}, "is imagined"),
        ({"lossless": False, "made": [spread_record(SPEC, 0, 2), spread_record(SPEC, 1, 2, is_last=False)]}, "a segment"),
        ({"lossless": True, "made": []}, "no episode"),
    ]  # fmt: skip
    for arguments, message in cases:
        with pytest.raises(DataError, match=message) as caught:
            exported(tmp_path / "out", **arguments)
        assert caught.value.remedy
        assert not list(tmp_path.iterdir())


def test_an_odd_size_is_lossless(tmp_path):
    odd = make_spec(size=5)
    made = [spread_record(odd, 0, 2)]
    (found,) = open_export(exported(tmp_path / "out", lossless=True, made=made, spec=odd)).records()
    assert_same_record(made[0], found)


def test_a_torn_or_edited_export_is_refused(tmp_path):
    folder = exported(tmp_path / "out", lossless=True)
    data = folder / "data/chunk-000/file-000.parquet"
    data.write_bytes(data.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"file-000.parquet is missing or torn"):
        open_export(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"file-000.parquet is torn"):
        list(open_export(folder).records())
    sidecar = folder / layout.SIDECAR
    facts = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps({**facts, "episodes": facts["episodes"][1:]}))
    with pytest.raises(DataError, match="edited since the export"):
        open_export(folder)
    sidecar.unlink()
    assert not is_export(folder)
    with pytest.raises(DataError, match="rows are decisions of an export"):
        LeRobotSource(folder, Choices())


@pytest.mark.parametrize("index", ["task", "__index_level_0__"])
@pytest.mark.parametrize("images", [True, False])
def test_anybodys_dataset_is_read_env_step_by_env_step(tmp_path, images, index):
    folder = write_lerobot(tmp_path / "d", [4, 3], tasks=["push", "pull"], images=images, index=index)
    source = LeRobotSource(folder, Choices())
    contents = source.contents
    assert (contents.episodes, contents.env_steps, contents.longest, contents.fps) == (2, 5, 3, FPS)
    assert (contents.cameras, contents.proprio_dim, contents.action_dim) == ({"top": (32, 32)}, 3, 3)
    assert contents.instructions == ("push", "pull")
    for number, (found, length) in enumerate(zip(source.trajectories(), [4, 3], strict=True)):
        assert found.instruction == ["push", "pull"][number]
        expected = np.random.default_rng(number).uniform(-1, 1, (length, 3))[:-1]
        np.testing.assert_allclose(found.actions, expected, atol=1e-6)
        assert found.proprio[:, 0].tolist() == [100 * number + step for step in range(length)]
        difference = np.abs(found.images["top"].astype(int) - frames_of(number, length, (32, 32)))
        assert difference.max() <= (0 if images else 6)
        # The last row's action is left out, what it earned is not.
        assert found.rewards.tolist() == [0] * (length - 2) + [1]
        assert found.success is found.terminated is True


def test_the_user_says_what_the_dataset_does_not(tmp_path):
    folder = write_lerobot(tmp_path / "d", [4], success=False, camera="front")
    (unknown,) = LeRobotSource(folder, Choices()).trajectories()
    assert unknown.success is None
    choices = Choices(success="all", cameras={"top": "front"}, camera_size=16)
    (found,) = LeRobotSource(folder, choices).trajectories()
    assert found.success is True
    assert found.rewards.tolist() == [0, 0, 1]
    assert {name: frames.shape for name, frames in found.images.items()} == {"top": (4, 16, 16, 3)}
    with pytest.raises(DataError, match=r"no camera 'side'.*choose among front"):
        LeRobotSource(folder, Choices(cameras={"top": "side"}))


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _shorten_video(folder: Path) -> None:
    from buffers.exchange.video import VideoWriter

    video = VideoWriter(next((folder / "videos").rglob("*.mp4")), (32, 32), FPS)
    video.write(frames_of(0, 2, (32, 32)))
    video.close()


def _without_action(folder: Path) -> None:
    info = json.loads((folder / "meta/info.json").read_text())
    del info["features"]["action"]
    _edit(folder, features=info["features"])


def _nan_actions(folder: Path) -> None:
    import pyarrow

    path = folder / "data/chunk-000/file-000.parquet"
    table = parquet.read_table(path)
    place = table.column_names.index("action")
    rows = pyarrow.array([[float("nan")] * 3] * len(table), pyarrow.list_(pyarrow.float32()))
    parquet.write_table(table.set_column(place, "action", rows), path)


BREAKAGES: dict[str, tuple[Any, str]] = {
    "version 2": (lambda f: _edit(f, codebase_version="v2.1"), "version v2.1, v3.0 is read.*convert"),
    "torn info": (lambda f: (f / "meta/info.json").write_text("{"), "is not JSON"),
    "no fps": (lambda f: _edit(f, fps=None), "lacks what it should have"),
    "no actions": (_without_action, "no feature 'action'"),
    "no tasks": (lambda f: (f / "meta/tasks.parquet").unlink(), "tasks.parquet is missing"),
    "no episodes": (lambda f: (f / "meta/episodes/chunk-000/file-000.parquet").unlink(), "has no table"),
    "no data": (lambda f: (f / "data/chunk-000/file-000.parquet").unlink(), "file-000.parquet is missing"),
    "torn data": (lambda f: (f / "data/chunk-000/file-000.parquet").write_bytes(b"PAR1"), "file-000.parquet is torn"),
    "no video": (lambda f: next((f / "videos").rglob("*.mp4")).unlink(), "file-000.mp4 is missing"),
    "torn video": (lambda f: next((f / "videos").rglob("*.mp4")).write_bytes(b"\0" * 99), "no video that ffmpeg can read"),
    "short video": (_shorten_video, "ends after 2 frames"),
    "nan": (_nan_actions, "actions has NaN"),
    "outside": (lambda f: _edit(f, data_path="../{chunk_index}/{file_index}"), "points outside of the folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_dataset_is_refused_in_one_line(tmp_path, name):
    damage, message = BREAKAGES[name]
    folder = write_lerobot(tmp_path / "d", [4, 3])
    damage(folder)

    def read() -> None:
        for trajectory in LeRobotSource(folder, Choices()).trajectories():
            trajectory.check()

    with pytest.raises(DataError, match=message) as caught:
        read()
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
