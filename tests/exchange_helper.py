"""Other programs' datasets, made here in their documented formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.exchange.lerobot_writer import png
from buffers.exchange.video import VideoWriter
from buffers.records import RecordSpec
from tests.records_helper import make_record

FPS = 10


def spread_record(spec: RecordSpec, number: int, length: int, **facts: Any) -> Any:
    """A record whose every array holds something of its own."""
    rng = np.random.default_rng(number)
    record = make_record(spec, number, length, **facts)
    record.images = {
        name: rng.integers(0, 256, frames.shape, np.uint8) for name, frames in record.images.items()
    }
    record.proprio = rng.normal(size=record.proprio.shape).astype(np.float32)
    record.tokens = rng.integers(0, spec.bins, record.tokens.shape).astype(np.int16)
    record.log_probs = rng.normal(size=record.log_probs.shape).astype(np.float32)
    record.values = rng.normal(size=length).astype(np.float32)
    record.version = np.sort(rng.integers(0, 9, length)).astype(np.int32)
    record.valid[-1, 1:] = False
    record.extra = {"noise_level": float(number % 2)}
    return record


def frames_of(number: int, count: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """``[n, H, W, 3]``: one colour a frame, so that video coding hardly changes it: red the episode, green the row."""
    frames = np.zeros((count, *size, 3), np.uint8)
    frames[..., 0], frames[..., 1], frames[..., 2] = (
        40 + 20 * (number % 10),
        (60 + 5 * np.arange(count))[:, None, None],
        90,
    )
    return frames


def write_lerobot(
    folder: Path, lengths: list[int], *, size: tuple[int, int] = (32, 32), dims: tuple[int, int] = (3, 3),
    tasks: list[str] | None = None, success: bool = True, images: bool = False, index: str = "task", camera: str = "top",
) -> Path:  # fmt: skip
    """A dataset as LeRobot's recorder lays it out: rows are env steps, the last one's action has no observation after it."""
    key, names = f"observation.images.{camera}", tasks or ["reach the blue block"]
    columns: dict[str, list[Any]] = {}
    for number, length in enumerate(lengths):
        new = lerobot_steps(number, length, sum(lengths[:number]), dims, success=success)
        for name, values in {**new, "task_index": [number % len(names)] * length}.items():
            columns.setdefault(name, []).extend(values)
    videos = [frames_of(number, length, size) for number, length in enumerate(lengths)]
    if not images:
        write_video(folder / f"videos/{key}/chunk-000/file-000.mp4", videos, size)
    tables = {
        "data/chunk-000/file-000.parquet": lerobot_table(columns, {key: videos} if images else {}),
        "meta/episodes/chunk-000/file-000.parquet": lerobot_episodes(lengths, key, names),
        "meta/tasks.parquet": {"task_index": list(range(len(names))), index: names},
    }
    write_parquet(folder, tables)
    info = lerobot_info(lengths, list(columns), dims, key, size, images=images) | {"total_tasks": len(names)}
    (folder / "meta/info.json").write_text(json.dumps(info))
    return folder


def lerobot_steps(
    number: int, length: int, before: int, dims: tuple[int, int], *, success: bool
) -> dict[str, list[Any]]:
    """Columns of one episode whose first row is ``before``."""
    proprio, dim = dims
    rng, steps = np.random.default_rng(number), np.arange(length)
    columns: dict[str, list[Any]] = {
        "observation.state": np.stack([np.full(proprio, 100 * number + step) for step in steps]).tolist(),
        "action": rng.uniform(-1, 1, (length, dim)).tolist(),
        "timestamp": (steps / FPS).tolist(), "frame_index": steps.tolist(), "episode_index": [number] * length,
        "index": (before + steps).tolist(),
    }  # fmt: skip
    if success:
        done = (steps == length - 1).astype(float)
        columns |= {"next.reward": done.tolist(), "next.success": (done > 0).tolist()}
    return columns


def lerobot_table(
    columns: dict[str, list[Any]], pictures: dict[str, list[NDArray[np.uint8]]]
) -> dict[str, Any]:
    """Columns with LeRobot's types; ``pictures`` by camera where frames lie in the table itself."""
    import pyarrow

    floats = {"observation.state", "action"}
    table = {
        name: pyarrow.array(values, pyarrow.list_(pyarrow.float32()) if name in floats else None)
        for name, values in columns.items()
    }
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    for key, videos in pictures.items():
        rows = [{"bytes": png(frame), "path": None} for frames in videos for frame in frames]
        table[key] = pyarrow.array(rows, kind)
    return table


def lerobot_episodes(lengths: list[int], key: str, names: list[str]) -> list[dict[str, Any]]:
    """One row an episode: where it lies in the table and in the video."""
    ends = np.cumsum(lengths).tolist()
    return [
        {
            "episode_index": number, "tasks": [names[number % len(names)]], "length": length,
            "dataset_from_index": end - length, "dataset_to_index": end, "data/chunk_index": 0, "data/file_index": 0,
            f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": 0,
            f"videos/{key}/from_timestamp": (end - length) / FPS, f"videos/{key}/to_timestamp": end / FPS,
        }
        for number, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]  # fmt: skip


def lerobot_info(
    lengths: list[int], columns: list[str], dims: tuple[int, int], key: str, size: tuple[int, int], *, images: bool
) -> dict[str, Any]:  # fmt: skip
    """``meta/info.json`` without the number of tasks."""
    widths = dict(zip(("observation.state", "action"), dims, strict=True))
    features: dict[str, Any] = {
        name: {"dtype": "float32", "shape": [widths.get(name, 1)], "names": None} for name in columns
    }
    kind = "image" if images else "video"
    features[key] = {"dtype": kind, "shape": [*size, 3], "names": ["height", "width", "channels"]}
    return {
        "codebase_version": "v3.0", "robot_type": "test", "total_episodes": len(lengths), "total_frames": sum(lengths),
        "fps": FPS, "features": features,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }  # fmt: skip


def write_video(path: Path, videos: list[NDArray[np.uint8]], size: tuple[int, int]) -> None:
    """All episodes in one file, as LeRobot keeps them."""
    video = VideoWriter(path, size, FPS)
    for frames in videos:
        video.write(frames)
    video.close()


def write_parquet(folder: Path, tables: dict[str, Any]) -> None:
    """Tables of columns or of rows, by path."""
    import pyarrow
    from pyarrow import parquet

    for name, table in tables.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        made = pyarrow.Table.from_pylist(table) if isinstance(table, list) else pyarrow.table(table)
        parquet.write_table(made, folder / name)


def write_libero(path: Path, lengths: list[int], *, after: bool = True, convention: str = "opengl") -> Path:
    """A file of LIBERO's layout. Time is in everything: MuJoCo's joints before action ``j`` are ``j``, and those seen are
    ``j + 1`` where observations follow their actions, as in the files that LIBERO publishes, else ``j``.
    """
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = json.dumps({"language_instruction": "put the bowl on the plate"})
        data.attrs["macros_image_convention"] = convention
        for number, length in enumerate(lengths):
            demo = data.create_group(f"demo_{number}")
            before = np.arange(length, dtype=np.float64)
            seen = before + after
            states = np.zeros((length, 20))
            states[:, 1:8] = before[:, None]
            demo["states"] = states
            demo["actions"] = np.tile(before[:, None] / 100, (1, 7))
            demo["rewards"] = (before == length - 1).astype(np.uint8)
            demo["dones"] = (before == length - 1).astype(np.uint8)
            frames = np.zeros((length, 8, 8, 3), np.uint8)
            frames[:, 0, 0, 0] = 200
            frames[..., 1] = seen[:, None, None]
            demo["obs/agentview_rgb"] = frames
            demo["obs/eye_in_hand_rgb"] = frames
            demo["obs/joint_states"] = np.tile(seen[:, None], (1, 7))
            demo["obs/ee_states"] = np.tile(seen[:, None], (1, 6))
            demo["obs/gripper_states"] = np.tile(seen[:, None], (1, 2))
    return path
