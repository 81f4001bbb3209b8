"""LeRobot's dataset format, version 3.0, and what an export of ours adds to it.

::

    meta/info.json                               features, counts, fps, path templates
    meta/stats.json                              statistics of every feature
    meta/tasks.parquet                           task_index by task
    meta/episodes/chunk-000/file-000.parquet     one row per episode: where its rows and frames lie, its statistics
    data/chunk-000/file-000.parquet              one row per frame, many episodes a file
    videos/<key>/chunk-000/file-000.mp4          the frames of the same episodes, one after the other
    reverie/episodes.json                        ours: spec, info, and the facts of each record
    reverie/last-00000.safetensors               ours: each episode's last observation, of one data file's episodes

A row is an observation and the action taken there. Records keep frames at decisions, so a row of an export is a
*decision*: its ``action`` holds the ``replan`` actions that were executed, one after the other, and the frame rate is that
of decisions. The observation after the last action has no action and is no row: LeRobot's trainers see nothing invented.

Source: the ``datasets`` module of huggingface/lerobot (``CODEBASE_VERSION`` "v3.0") and its documentation of the format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.records import RecordSpec

VERSION = "v3.0"
FILES_PER_CHUNK = 1000
DATA_MB, VIDEO_MB = 100, 200
"""LeRobot's own bounds on its files."""

INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"

SIDECAR, SIDECAR_FORMAT, SIDECAR_VERSION = "reverie/episodes.json", "reverie-lerobot", 1
LAST = "reverie/last-{group:05d}.safetensors"

CAMERA, STATE, ACTION = "observation.images.", "observation.state", "action"
REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"
TOKENS, LOG_PROBS, VALID, VALUE, MADE_BY = (
    "decision.tokens", "decision.log_probs", "decision.valid", "decision.value", "decision.version",
)  # fmt: skip
"""Ours. Not under ``action``: LeRobot takes every feature of that prefix for something to predict."""

COUNTERS: dict[str, str] = {
    "timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64", "task_index": "int64",
}  # fmt: skip
"""Columns that every dataset has."""


def position(group: int) -> dict[str, int]:
    """Chunk and file of the ``group``-th file."""
    chunk, file = divmod(group, FILES_PER_CHUNK)
    return {"chunk_index": chunk, "file_index": file}


def columns_of(spec: RecordSpec) -> dict[str, tuple[type[np.generic], int, list[str]]]:
    """Feature to (type, length, names) of the numeric columns of an export."""
    chunk, replan, dim = spec.chunk, spec.replan, spec.action_dim
    columns: dict[str, tuple[type[np.generic], int, list[str]]] = {
        STATE: (np.float32, spec.proprio_dim, [f"{i}" for i in range(spec.proprio_dim)]),
        ACTION: (np.float32, replan * dim, [f"step{s}.{d}" for s in range(replan) for d in range(dim)]),
        REWARD: (np.float32, 1, ["sum"]),
        DONE: (np.bool_, 1, ["done"]),
        SUCCESS: (np.bool_, 1, ["success"]),
        TOKENS: (np.int16, chunk * dim, [f"step{s}.{d}" for s in range(chunk) for d in range(dim)]),
        LOG_PROBS: (np.float32, chunk * dim, [f"step{s}.{d}" for s in range(chunk) for d in range(dim)]),
        VALID: (np.bool_, chunk, [f"step{s}" for s in range(chunk)]),
        VALUE: (np.float32, 1, ["value"]),
        MADE_BY: (np.int32, 1, ["version"]),
    }
    return {name: column for name, column in columns.items() if column[1]}


def features_of(spec: RecordSpec, fps: int, *, lossless: bool) -> dict[str, Any]:
    """The ``features`` of info.json."""
    features: dict[str, Any] = {}
    for camera, (height, width) in spec.cameras.items():
        feature = {"shape": [height, width, 3], "names": ["height", "width", "channels"]}
        features[CAMERA + camera] = (
            {"dtype": "image", **feature} if lossless else {"dtype": "video", **feature, "info": _video_info(height, width, fps)}
        )  # fmt: skip
    for name, (kind, length, names) in columns_of(spec).items():
        features[name] = {"dtype": np.dtype(kind).name, "shape": [length], "names": names}
    for name, dtype in COUNTERS.items():
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    return features


def _video_info(height: int, width: int, fps: int) -> dict[str, Any]:
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": "h264",
        "video.pix_fmt": "yuv420p",
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": 3,
        "has_audio": False,
    }


def arrow_column(rows: NDArray[Any]) -> Any:
    """``[N]`` or ``[N, L]`` numbers as an Arrow column; ``L`` of 1 is a plain column, as LeRobot reads it."""
    import pyarrow

    flat = pyarrow.array(np.ascontiguousarray(rows).reshape(-1))
    length = rows.shape[1] if rows.ndim > 1 else 1
    return flat if length == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, length)


def tasks_table(tasks: list[str]) -> Any:
    """``meta/tasks.parquet``: a pandas frame with the tasks as its index, written without pandas."""
    import json

    import pyarrow

    column = {"metadata": None, "numpy_type": "int64", "pandas_type": "int64"}
    described = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {**column, "name": "task_index", "field_name": "task_index"},
            {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", "metadata": None},
        ],
        "creator": {"library": "pyarrow", "version": pyarrow.__version__},
        "pandas_version": "2.2.0",
    }  # fmt: skip
    table = pyarrow.table(
        {"task_index": pyarrow.array(range(len(tasks)), pyarrow.int64()), "task": pyarrow.array(tasks, pyarrow.string())}
    )  # fmt: skip
    return table.replace_schema_metadata({"pandas": json.dumps(described)})
