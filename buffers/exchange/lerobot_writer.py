"""Records written as a LeRobot dataset; ``lerobot_layout`` says what lies where."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.columns import Arrays, split_record
from buffers.exchange import lerobot_layout as layout
from buffers.exchange.packages import exchange_package
from buffers.exchange.statistics import ColourCount, Statistics, of_numbers
from buffers.exchange.video import VideoWriter
from buffers.records import Images, Record, RecordSpec
from configs.errors import DataError

GROUP_BYTES = 256_000_000
"""A file ends when its episodes' frames reach this size, uncoded: bounds the writer's memory."""

Decode = Callable[[NDArray[np.int16]], NDArray[np.float32]]
"""Tokens ``[..., D]`` to actions ``[..., D]`` in env units."""


@dataclass
class _Group:
    """The episodes of one data file, and what is still to be written of them."""

    number: int
    first_row: int
    columns: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    pictures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """camera: encoded frames, where they are stored in the table"""
    videos: dict[str, VideoWriter] = field(default_factory=dict)
    last: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0


class LeRobotWriter:
    """Writes into a folder that exists and is empty; ``close`` completes it. Memory is bounded by one data file."""

    def __init__(
        self, folder: Path, spec: RecordSpec, info: dict[str, Any], decode: Decode, *, env_fps: int, lossless: bool
    ) -> None:  # fmt: skip
        """Args:
            folder: Where to write.
            spec: Of every record.
            info: What the records' dataset says of itself; kept for the way back.
            decode: Actions of tokens.
            env_fps: Env steps per second.
            lossless: Frames as PNG in the tables instead of video.

        Raises:
            DataError: the rate of decisions is no whole number, or video cannot hold the frames' size.
            ResourceError: a package is missing.
        """
        exchange_package("pyarrow")
        if env_fps % spec.replan:
            raise DataError(
                f"{env_fps} env steps a second at {spec.replan} to a decision are no whole number of frames a second",
                where="fps", remedy=f"give a multiple of {spec.replan}",
            )  # fmt: skip
        for camera, (height, width) in spec.cameras.items():
            if not lossless and (height % 2 or width % 2):
                raise DataError(
                    f"{height}x{width} frames fit no yuv420p video", where=f"camera {camera}", remedy="give lossless=true"
                )  # fmt: skip
        # A frame a decision: what lies between them has no place in such a dataset.
        self._folder, self._spec = folder, replace(spec, between=False)
        self._info, self._decode = info, decode
        self._fps, self._lossless = env_fps // spec.replan, lossless
        self._group = _Group(0, 0)
        self._tasks: list[str] = []
        self._episodes: list[dict[str, Any]] = []
        self._facts: list[dict[str, Any]] = []
        self._numbers: dict[str, list[NDArray[Any]]] = {}
        self._colours = {camera: ColourCount() for camera in spec.cameras}

    @property
    def episodes(self) -> int:
        """Added so far."""
        return len(self._episodes)

    def add(self, record: Record) -> None:
        """Append an episode.

        Raises:
            DataError: it is imagined or only a segment, or does not fit the spec.
        """
        where, record = f"episode {len(self._episodes)}", record.without_between()
        record.check(self._spec, where=where)
        if record.source == "imagined" or not (record.is_first and record.is_last):
            what = "imagined" if record.source == "imagined" else "a segment of an episode"
            raise DataError(
                f"the record is {what}", where=where, remedy="export a dataset of whole real episodes"
            )
        if record.instruction not in self._tasks:
            self._tasks.append(record.instruction)
        columns = self._columns(record)
        self._note(record, columns)
        group = self._group
        for name, rows in columns.items():
            group.columns.setdefault(name, []).append(rows)
            if name not in layout.COUNTERS:
                self._numbers.setdefault(name, []).append(rows)
        self._write_frames({camera: frames[:-1] for camera, frames in record.images.items()})
        observed: Arrays = {**record.images, layout.STATE: record.proprio}
        for name, array in observed.items():
            group.last.setdefault(name, []).append(array[-1])
        group.rows += record.length
        group.bytes += sum(frames.nbytes for frames in record.images.values())
        if group.bytes >= GROUP_BYTES:
            self._finish_group()

    def _columns(self, record: Record) -> dict[str, NDArray[Any]]:
        """Column ``[T]`` or ``[T, L]`` of each feature that is no image."""
        T, index = record.length, np.arange(record.length)
        done = index == T - 1
        first = self._group.first_row + self._group.rows
        values: dict[str, NDArray[Any]] = {
            layout.STATE: record.proprio[:-1],
            layout.ACTION: self._decode(record.tokens[:, : self._spec.replan]).reshape(T, -1),
            layout.REWARD: record.rewards,
            layout.DONE: done,
            layout.SUCCESS: done & record.success,
            layout.TOKENS: record.tokens.reshape(T, -1),
            layout.LOG_PROBS: record.log_probs.reshape(T, -1),
            layout.VALID: record.valid,
            layout.VALUE: record.values,
            layout.MADE_BY: record.version,
            "timestamp": (index / self._fps).astype(np.float32),
            "frame_index": index,
            "episode_index": np.full(T, len(self._episodes)),
            "index": first + index,
            "task_index": np.full(T, self._tasks.index(record.instruction)),
        }
        wanted = {*layout.columns_of(self._spec), *layout.COUNTERS}
        return {name: rows for name, rows in values.items() if name in wanted}

    def _note(self, record: Record, columns: dict[str, NDArray[Any]]) -> None:
        """Remember where the episode lies, what it is and its statistics."""
        group, place = self._group, layout.position(self._group.number)
        row: dict[str, Any] = {
            "episode_index": len(self._episodes),
            "tasks": [record.instruction],
            "length": record.length,
            "dataset_from_index": group.first_row + group.rows,
            "dataset_to_index": group.first_row + group.rows + record.length,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
            **{f"data/{key}": value for key, value in place.items()},
        }
        statistics: dict[str, Statistics] = {name: of_numbers(rows) for name, rows in columns.items()}
        for camera, frames in record.images.items():
            key = layout.CAMERA + camera
            if not self._lossless:
                row |= {f"videos/{key}/{name}": value for name, value in place.items()}
                row[f"videos/{key}/from_timestamp"] = group.rows / self._fps
                row[f"videos/{key}/to_timestamp"] = (group.rows + record.length) / self._fps
            colours = ColourCount()
            colours.add(frames[:-1])
            self._colours[camera].merge(colours)
            statistics[key] = colours.statistics()
        for name, found in statistics.items():
            row |= {f"stats/{name}/{measure}": value for measure, value in found.items()}
        self._episodes.append(row)
        self._facts.append({"length": record.length, **split_record(record)[1].to_json()})

    def _write_frames(self, images: Images) -> None:
        group = self._group
        for camera, frames in images.items():
            key = layout.CAMERA + camera
            if self._lossless:
                group.pictures.setdefault(key, []).extend({"bytes": png(f), "path": None} for f in frames)
                continue
            if camera not in group.videos:
                path = self._folder / layout.VIDEO.format(video_key=key, **layout.position(group.number))
                group.videos[camera] = VideoWriter(path, self._spec.cameras[camera], self._fps)
            group.videos[camera].write(frames)

    def _finish_group(self) -> None:
        import pyarrow
        from safetensors.numpy import save

        group = self._group
        table = {name: layout.arrow_column(np.concatenate(rows)) for name, rows in group.columns.items()}
        image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        table |= {name: pyarrow.array(rows, image) for name, rows in group.pictures.items()}
        self._write_table(layout.DATA.format(**layout.position(group.number)), pyarrow.table(table))
        for video in group.videos.values():
            video.close()
        path = self._folder / layout.LAST.format(group=group.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(save({name: np.stack(rows) for name, rows in group.last.items()}))
        self._group = _Group(group.number + 1, group.first_row + group.rows)

    def close(self) -> None:
        """Write what is pending and the metadata. DataError when nothing was added."""
        import pyarrow

        if not self._episodes:
            raise DataError(
                "there is no episode to export", where=str(self._folder), remedy="record some first"
            )
        if self._group.rows:
            self._finish_group()
        episodes = {name: [row[name] for row in self._episodes] for name in self._episodes[0]}
        self._write_table(layout.EPISODES.format(chunk_index=0, file_index=0), pyarrow.table(episodes))
        self._write_table(layout.TASKS, layout.tasks_table(self._tasks))
        statistics = {name: of_numbers(np.concatenate(rows)) for name, rows in self._numbers.items()}
        statistics |= {layout.CAMERA + name: count.statistics() for name, count in self._colours.items()}
        self._write_json(layout.STATS, statistics)
        self._write_json(layout.INFO, self._description())
        sidecar = {
            "format": layout.SIDECAR_FORMAT,
            "version": layout.SIDECAR_VERSION,
            "spec": self._spec.to_json(),
        }
        self._write_json(layout.SIDECAR, {**sidecar, "info": self._info, "episodes": self._facts})

    def abort(self) -> None:
        """End the encoders; what they wrote is the caller's to remove."""
        for video in self._group.videos.values():
            video.abort()

    def _description(self) -> dict[str, Any]:
        return {
            "codebase_version": layout.VERSION,
            "robot_type": None,
            "total_episodes": len(self._episodes),
            "total_frames": self._group.first_row,
            "total_tasks": len(self._tasks),
            "chunks_size": layout.FILES_PER_CHUNK,
            "data_files_size_in_mb": layout.DATA_MB,
            "video_files_size_in_mb": layout.VIDEO_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": layout.DATA,
            "video_path": None if self._lossless else layout.VIDEO,
            "features": layout.features_of(self._spec, self._fps, lossless=self._lossless),
        }

    def _write_table(self, name: str, table: Any) -> None:
        parquet = exchange_package("pyarrow.parquet")
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, path)

    def _write_json(self, name: str, value: Any) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1))


def png(frame: NDArray[np.uint8]) -> bytes:
    """``[H, W, 3]`` as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="png")
    return buffer.getvalue()
