"""LeRobot datasets as episodes: anybody's env step by env step, our own exports record by record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.columns import IMAGE_PREFIX, Arrays, Facts, join_record
from buffers.exchange import lerobot_layout as layout
from buffers.exchange.lerobot_files import Episode, Films, LeRobotFiles, numbers
from buffers.exchange.source import Cameras, Choices, Contents, outcome
from buffers.exchange.trajectory import Trajectory
from buffers.records import Images, Record, RecordSpec


def is_lerobot(folder: Path) -> bool:
    """Whether ``folder`` looks like a LeRobot dataset of any version."""
    return (folder / layout.INFO).is_file()


def is_export(folder: Path) -> bool:
    """Whether ``folder`` is a LeRobot dataset that we exported."""
    return is_lerobot(folder) and (folder / layout.SIDECAR).is_file()


class LeRobotSource:
    """Anybody's dataset. Its rows are env steps; the last observation of an episode, for lack of one after the last
    action, is that of the last row, whose action is left out.
    """

    def __init__(self, folder: Path, choices: Choices) -> None:
        """DataError when it is no dataset of version 3, torn, or has no actions."""
        self._files = files = LeRobotFiles(folder)
        if layout.TOKENS in files.features:
            raise files.torn("reverie/", "is missing: the rows are decisions of an export, not env steps")
        if layout.ACTION not in files.features:
            raise files.torn(layout.INFO, "has no feature 'action'")
        self._choices, self._keys = choices, files.cameras()
        sizes = {name: files.camera_size(key) for name, key in self._keys.items()}
        self._cameras = Cameras(sizes, choices, where=folder)
        self.contents = Contents(
            format="lerobot",
            episodes=len(files.episodes),
            env_steps=sum(episode.length - 1 for episode in files.episodes),
            cameras=self._cameras.sizes,
            proprio_dim=files.width(layout.STATE),
            action_dim=files.width(layout.ACTION),
            instructions=tuple(files.tasks[index] for index in sorted(files.tasks)),
            longest=max((episode.length - 1 for episode in files.episodes), default=0),
            fps=files.fps,
        )

    def actions(self) -> Iterator[NDArray[np.float32]]:
        """``[n, D]`` of every episode."""
        for episode in self._files.episodes:
            rows = numbers(self._files.rows(episode, [layout.ACTION]), layout.ACTION)
            yield rows.reshape(episode.length, -1).astype(np.float32)

    def trajectories(self) -> Iterator[Trajectory]:
        """Every episode, in order."""
        films = {ours: Films(self._files, self._keys[name]) for ours, name in self._cameras.theirs.items()}
        optional = [layout.STATE, layout.REWARD, layout.SUCCESS, "next.terminated", "task_index"]
        pictures = [self._keys[name] for name in self._cameras.theirs.values()]
        stored = [key for key in pictures if self._files.features[key]["dtype"] == "image"]
        wanted = [layout.ACTION, *(name for name in optional if name in self._files.features), *stored]
        try:
            for episode in self._files.episodes:
                table = self._files.rows(episode, wanted)
                images = {
                    ours: np.stack([self._cameras.fit(frame) for frame in film.frames(episode, table)])
                    for ours, film in films.items()
                }
                yield self._trajectory(episode, table, images)
        finally:
            for film in films.values():
                film.close()

    def _trajectory(self, episode: Episode, table: Any, images: Images) -> Trajectory:
        where = f"episode {episode.index} of {self._files.folder}"
        steps = episode.length - 1

        def column(name: str) -> NDArray[Any] | None:
            return numbers(table, name) if name in table.column_names else None

        succeeded, ended = column(layout.SUCCESS), column("next.terminated")
        success = outcome(None if succeeded is None else bool(succeeded.any()), self._choices)
        task = (
            self._files.tasks[int(table["task_index"][0].as_py())]
            if "task_index" in table.column_names
            else ""
        )
        state, rewards = column(layout.STATE), column(layout.REWARD)
        if rewards is None:
            rewards = np.zeros(episode.length)
            rewards[-1] = bool(success)
        # What the left out action earned is owed to the step before.
        earned = np.append(rewards[: max(steps - 1, 0)], rewards[max(steps - 1, 0) :].sum())[:steps]
        return Trajectory(
            images=images,
            proprio=(np.zeros((episode.length, 0)) if state is None else state.reshape(episode.length, -1)).astype(np.float32),
            actions=numbers(table, layout.ACTION).reshape(episode.length, -1)[:steps].astype(np.float32),
            rewards=earned.astype(np.float32),
            instruction=task,
            task=task,
            success=success,
            terminated=bool(success) if ended is None else bool(ended.any()),
            where=where,
        )  # fmt: skip


class ExportedRecords:
    """A dataset that we exported: the records that it was made of, exact but for what video coding took."""

    def __init__(self, folder: Path) -> None:
        """DataError when it is torn or was changed since."""
        self._files = LeRobotFiles(folder)
        sidecar = self._read_sidecar(folder / layout.SIDECAR)
        try:
            self.spec = RecordSpec.from_json(sidecar["spec"])
            self.info: dict[str, Any] = dict(sidecar["info"])
            self._facts = [dict(facts) for facts in sidecar["episodes"]]
            lengths = [facts.pop("length") for facts in self._facts]
        except (KeyError, TypeError, ValueError) as error:
            raise self._files.torn(layout.SIDECAR, f"lacks what it should have ({error!r})") from error
        if lengths != [episode.length for episode in self._files.episodes]:
            raise self._files.torn(layout.SIDECAR, "is of other episodes: they were edited since the export")
        if set(layout.features_of(self.spec, 1, lossless=True)) != set(self._files.features):
            raise self._files.torn(layout.INFO, "has other features than the export")

    def _read_sidecar(self, path: Path) -> dict[str, Any]:
        try:
            data = json.loads(path.read_bytes())
        except ValueError as error:
            raise self._files.torn(layout.SIDECAR, f"is not JSON ({error})") from error
        if not isinstance(data, dict) or data.get("version") != layout.SIDECAR_VERSION:
            raise self._files.torn(layout.SIDECAR, f"is not of version {layout.SIDECAR_VERSION}")
        return data

    def __len__(self) -> int:
        return len(self._files.episodes)

    def records(self) -> Iterator[Record]:
        """Every record, in order."""
        films = {name: Films(self._files, layout.CAMERA + name) for name in self.spec.cameras}
        group, last, row = -1, {}, 0
        try:
            for episode, facts in zip(self._files.episodes, self._facts, strict=True):
                number = int(episode.places["data/chunk_index"]) * layout.FILES_PER_CHUNK
                number += int(episode.places["data/file_index"])
                if number != group:
                    group, last, row = number, self._read_last(number), 0
                yield self._record(episode, facts, films, {name: rows[row] for name, rows in last.items()})
                row += 1
        finally:
            for film in films.values():
                film.close()

    def _read_last(self, group: int) -> Arrays:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        name = layout.LAST.format(group=group)
        try:
            return load_file(self._files.folder / name)
        except (FileNotFoundError, SafetensorError) as error:
            raise self._files.torn(name, "is missing or torn") from error

    def _record(
        self, episode: Episode, facts: dict[str, Any], films: dict[str, Films], last: Arrays
    ) -> Record:
        T, spec = episode.length, self.spec
        stored = [
            layout.CAMERA + name
            for name in films
            if self._files.features[layout.CAMERA + name]["dtype"] == "image"
        ]
        columns = list(layout.columns_of(spec))
        table = self._files.rows(episode, [*columns, *stored])
        rows: Arrays = {
            name: numbers(table, name).astype(layout.columns_of(spec)[name][0]) for name in columns
        }
        state = rows.get(layout.STATE, np.zeros((T, 0), np.float32))
        arrays: Arrays = {
            "proprio": np.concatenate([state.reshape(T, -1), last[layout.STATE][None]]),
            "tokens": rows[layout.TOKENS].reshape(T, spec.chunk, spec.action_dim),
            "log_probs": rows[layout.LOG_PROBS].reshape(T, spec.chunk, spec.action_dim),
            "valid": rows[layout.VALID].reshape(T, spec.chunk),
            "rewards": rows[layout.REWARD],
            "values": rows[layout.VALUE],
            "version": rows[layout.MADE_BY],
        }
        for name, film in films.items():
            arrays[IMAGE_PREFIX + name] = np.concatenate(
                [np.stack(list(film.frames(episode, table))), last[name][None]]
            )
        try:
            record = join_record(arrays, Facts(**facts))
        except TypeError as error:
            raise self._files.torn(layout.SIDECAR, f"has other facts ({error})") from error
        record.check(spec, where=f"episode {episode.index} of {self._files.folder}")
        return record
