"""The files of a LeRobot dataset, read in order and checked: metadata, tables, frames."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.exchange import lerobot_layout as layout
from buffers.exchange.packages import exchange_package
from buffers.exchange.video import VideoReader
from configs.errors import DataError

Rows = dict[str, Any]


@dataclass(frozen=True)
class Episode:
    """One row of the episodes' table."""

    index: int
    length: int
    places: Rows
    """The row itself: chunk and file of data and videos, timestamps."""


class LeRobotFiles:
    """A dataset folder of version 3."""

    def __init__(self, folder: Path) -> None:
        """DataError when it is of another version, lacks a file, or is torn."""
        self.folder = folder
        self.info = self._read_info()
        try:
            self.fps = float(self.info["fps"])
            self.features: dict[str, dict[str, Any]] = dict(self.info["features"])
            self._templates = {
                "data": str(self.info["data_path"]),
                "video": str(self.info.get("video_path") or ""),
            }
            self.tasks = self._read_tasks()
            self.episodes = self._read_episodes()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self.torn(layout.INFO, f"lacks what it should have ({error!r})") from error
        self._table_name = ""
        self._table: Any = None

    def _read_info(self) -> dict[str, Any]:
        path = self.folder / layout.INFO
        try:
            info = json.loads(path.read_bytes())
        except ValueError as error:
            raise self.torn(layout.INFO, f"is not JSON ({error})") from error
        version = info.get("codebase_version") if isinstance(info, dict) else None
        if not str(version).startswith("v3."):
            raise DataError(
                f"LeRobot dataset of version {version}, v3.0 is read", where=str(self.folder),
                remedy="convert it with python -m lerobot.datasets.v30.convert_dataset_v21_to_v30",
            )  # fmt: skip
        return dict(info)

    def _read_tasks(self) -> dict[int, str]:
        table = self.read_table(layout.TASKS).to_pydict()
        # The tasks are the frame's index: its name differs between the releases that wrote it.
        names = next(table[name] for name in ("task", "__index_level_0__") if name in table)
        return {int(index): str(name) for index, name in zip(table["task_index"], names, strict=True)}

    def _read_episodes(self) -> list[Episode]:
        paths = sorted((self.folder / "meta" / "episodes").glob("*/*.parquet"))
        if not paths:
            raise self.torn("meta/episodes", "has no table")
        rows: list[Rows] = []
        for path in paths:
            table = self.read_table(str(path.relative_to(self.folder)))
            kept = [name for name in table.column_names if not name.startswith("stats/")]
            rows += table.select(kept).to_pylist()
        rows.sort(key=lambda row: int(row["episode_index"]))
        return [Episode(int(row["episode_index"]), int(row["length"]), row) for row in rows]

    def read_table(self, name: str, columns: list[str] | None = None) -> Any:
        """The Arrow table of file ``name``; DataError when it is missing, torn or lacks a column."""
        parquet, arrow = exchange_package("pyarrow.parquet"), exchange_package("pyarrow")
        path = self.folder / name
        if not path.is_file():
            raise self.torn(name, "is missing")
        try:
            return parquet.read_table(path, columns=columns, partitioning=None)
        except (arrow.ArrowException, OSError) as error:
            raise self.torn(name, f"is torn ({error})") from error

    def cameras(self) -> dict[str, str]:
        """Camera name to feature."""
        keys = [key for key, feature in self.features.items() if feature.get("dtype") in ("video", "image")]
        return {key.removeprefix(layout.CAMERA).removeprefix("observation."): key for key in keys}

    def camera_size(self, key: str) -> tuple[int, int]:
        """(height, width) of a camera's frames. Some datasets put the channels first."""
        feature = self.features[key]
        shape, fps = [int(size) for size in feature["shape"]], (feature.get("info") or {}).get("video.fps")
        if fps is not None and float(fps) != self.fps:
            raise self.torn(layout.INFO, f"gives {key} {fps} frames a second and the dataset {self.fps:g}")
        if len(shape) != 3 or 3 not in (shape[0], shape[2]):
            raise DataError(
                f"{key} has shape {shape}", where=str(self.folder), remedy="only colour images are read; see cameras="
            )  # fmt: skip
        return (shape[0], shape[1]) if shape[2] == 3 else (shape[1], shape[2])

    def width(self, key: str) -> int:
        """Numbers in one row of a feature; 0 where there is no such feature."""
        return int(np.prod(self.features[key]["shape"])) if key in self.features else 0

    def rows(self, episode: Episode, wanted: list[str]) -> Any:
        """An episode's rows as an Arrow table with the columns ``wanted``."""
        name = self._path("data", episode, "data")
        if name != self._table_name:
            self._table = self.read_table(name)
            self._table_name = name
            missing = {*wanted, "episode_index"} - set(self._table.column_names)
            if missing:
                raise self.torn(name, f"lacks {sorted(missing)}")
        table = self._table
        found = np.flatnonzero(table["episode_index"].to_numpy() == episode.index)
        if len(found) != episode.length or np.any(np.diff(found) != 1):
            raise self.torn(
                name, f"has {len(found)} rows of episode {episode.index}, not {episode.length} in a row"
            )
        return table.slice(int(found[0]), episode.length).select(wanted)

    def video(self, episode: Episode, key: str) -> tuple[Path, int]:
        """File and first frame of an episode's video."""
        name = self._path("video", episode, f"videos/{key}", video_key=key)
        start = float(episode.places[f"videos/{key}/from_timestamp"])
        return self.folder / name, round(start * self.fps)

    def _path(self, template: str, episode: Episode, prefix: str, **words: str) -> str:
        try:
            place = {name: int(episode.places[f"{prefix}/{name}"]) for name in ("chunk_index", "file_index")}
            name = self._templates[template].format(**place, **words)
        except (KeyError, TypeError, ValueError) as error:
            raise self.torn("meta/episodes", f"does not say where {prefix} lies ({error!r})") from error
        if not (self.folder / name).resolve().is_relative_to(self.folder.resolve()):
            raise self.torn(layout.INFO, f"points outside of the folder ({name})")
        return name

    def torn(self, name: str, what: str) -> DataError:
        """The error of a broken file."""
        return DataError(
            f"{name} {what}", where=str(self.folder), remedy="copy or download the dataset again"
        )


class Films:
    """Frames of one camera, episode after episode: video files are decoded once, from front to back."""

    def __init__(self, files: LeRobotFiles, key: str) -> None:
        self._files, self._key = files, key
        self._in_table = files.features[key]["dtype"] == "image"
        self._path: Path | None = None
        self._reader: VideoReader | None = None

    def frames(self, episode: Episode, table: Any) -> Iterator[NDArray[np.uint8]]:
        """An episode's frames ``[H, W, 3]``; ``table`` holds its rows."""
        if self._in_table:
            return self._decoded(episode, table)
        path, first = self._files.video(episode, self._key)
        if self._reader is None or path != self._path or self._reader.position > first:
            self.close()
            self._path, self._reader = path, VideoReader(path)
        return self._reader.read(first, episode.length)

    def _decoded(self, episode: Episode, table: Any) -> Iterator[NDArray[np.uint8]]:
        from PIL import Image, UnidentifiedImageError

        for row, picture in enumerate(table[self._key].to_pylist()):
            try:
                yield np.asarray(Image.open(io.BytesIO(picture["bytes"])).convert("RGB"))
            except (TypeError, KeyError, OSError, UnidentifiedImageError) as error:
                raise self._files.torn(f"episode {episode.index}", f"has no image in row {row}") from error

    def close(self) -> None:
        """End the decoder."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def numbers(table: Any, name: str) -> NDArray[Any]:
    """A column as ``[N]``, or ``[N, L]`` where its rows are lists (flattened)."""
    import pyarrow

    column = table[name].combine_chunks()
    if isinstance(column, pyarrow.ChunkedArray):
        column = pyarrow.concat_arrays(column.chunks)
    nested = False
    while pyarrow.types.is_nested(column.type):
        column, nested = column.flatten(), True
    flat: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return flat.reshape(len(table), -1) if nested else flat
