"""Dataset folders: episodes on disk, in a layout that needs no pickle and notices every torn file.

<folder>/dataset.json                 layout version, RecordSpec, info, counts, sha256 of every other file
<folder>/episodes-00000.safetensors   columns of many records, concatenated, and their decision offsets
<folder>/episodes-00000.json          facts of the same records: strings, flags, seeds
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from buffers.columns import Arrays, Facts, columns, join_record, split_record
from buffers.records import Record, RecordSpec
from configs.errors import DataError, ResourceError

FORMAT = "reverie-dataset"
LAYOUT_VERSION = 1
INDEX = "dataset.json"
OFFSETS = "decision_offsets"
SHARD_BYTES = 64_000_000
"""A shard is written when its records reach this size: bounds the writer's memory to about three times it."""

_REMEDIES = {
    errno.ENOSPC: "free some space on that disk or choose another folder",
    errno.EDQUOT: "free some of the quota or choose another folder",
    errno.EACCES: "choose a folder that this user may use, or change its permissions",
    errno.EPERM: "choose a folder that this user may use, or change its permissions",
    errno.EROFS: "choose a folder on a disk that is not read-only",
}


@dataclass
class Dataset:
    """What ``read_dataset`` returns."""

    spec: RecordSpec
    info: dict[str, Any]
    """What the writer was given: env, noise levels, instructions."""
    records: list[Record]


class DatasetWriter:
    """Writes a dataset folder as a whole or not at all: it appears under its name only when closed.

    Use as a context manager, or call ``close`` (or ``abort``). Memory is bounded by the size of one shard.
    """

    def __init__(self, folder: str | Path, spec: RecordSpec, info: dict[str, Any]) -> None:
        """``info`` is any JSON. DataError when the folder exists, ResourceError when it cannot be made."""
        self.folder = Path(folder)
        self.partial = self.folder.with_name(self.folder.name + ".partial")
        self._spec = spec
        self._info = json.loads(json.dumps(info))
        self._pending: list[tuple[Arrays, Facts]] = []
        self._pending_bytes = 0
        self._shards = 0
        self._files: dict[str, dict[str, Any]] = {}
        self._counts = {"episodes": 0, "decisions": 0, "env_steps": 0, "successes": 0}
        if self.folder.exists():
            raise DataError(
                f"{self.folder} exists already",
                where="dataset folder",
                remedy="choose another folder or delete it",
            )
        if self.partial.exists():
            raise DataError(
                f"{self.partial} is left from a run that was killed, or another run is writing it",
                where="dataset folder",
                remedy="delete it if no run is writing it",
            )
        with _resource_errors(self.partial):
            self.partial.mkdir(parents=True)

    def add(self, record: Record) -> None:
        """Append one record (copied when its shard is written). DataError when it does not fit the spec."""
        record.check(self._spec, where=f"episode {self._counts['episodes']} of {self.folder}")
        arrays, facts = split_record(record)
        self._pending.append((arrays, facts))
        self._pending_bytes += sum(array.nbytes for array in arrays.values())
        self._counts["episodes"] += 1
        self._counts["decisions"] += record.length
        self._counts["env_steps"] += record.env_steps
        self._counts["successes"] += int(facts.success)
        if self._pending_bytes >= SHARD_BYTES:
            self._write_shard()

    def close(self) -> None:
        """Write what is pending and give the folder its name. DataError when nothing was added."""
        if not self._counts["episodes"]:
            self.abort()
            raise DataError(
                "no episode was added", where=str(self.folder), remedy="write at least one episode"
            )
        self._write_shard()
        index = {
            "format": FORMAT,
            "version": LAYOUT_VERSION,
            "spec": self._spec.to_json(),
            "info": self._info,
            "counts": self._counts,
            "shards": self._shards,
            "files": self._files,
        }
        self._write(INDEX, json.dumps(index, indent=1).encode())
        with self._abort_on_error(), _resource_errors(self.folder):
            self.partial.rename(self.folder)

    def abort(self) -> None:
        """Remove everything that was written."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _write_shard(self) -> None:
        from safetensors.numpy import save

        if not self._pending:
            return
        tensors: Arrays = {
            column.name: np.concatenate([arrays[column.name] for arrays, _ in self._pending])
            for column in columns(self._spec)
        }
        lengths = [len(arrays["tokens"]) for arrays, _ in self._pending]
        tensors[OFFSETS] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        facts = [facts.to_json() for _, facts in self._pending]
        stem = _stem(self._shards)
        self._write(f"{stem}.safetensors", save(tensors))
        self._write(f"{stem}.json", json.dumps(facts).encode())
        self._shards += 1
        self._pending = []
        self._pending_bytes = 0

    def _write(self, name: str, data: bytes) -> None:
        path = self.partial / name
        with self._abort_on_error(), _resource_errors(path), path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}

    @contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.abort()
            raise


def read_dataset(folder: str | Path, *, between: bool = False) -> Dataset:
    """Read and verify a dataset folder; ``between``: with what lies between decisions, where that was recorded.

    DataError (missing, empty, torn, of another layout) and ResourceError (not readable) tell the remedy.
    """
    folder = Path(folder)
    spec, info, shards, files = _read_header(folder)
    spec = replace(spec, between=spec.between and between)
    records: list[Record] = []
    for shard in range(shards):
        records.extend(_read_shard(folder, _stem(shard), spec, files))
    if not records:
        raise DataError("the dataset has no episodes", where=str(folder), remedy="write it again")
    return Dataset(spec, info, records)


def peek_dataset(folder: str | Path) -> Dataset:
    """What a dataset folder says of itself, without its records; errors as in ``read_dataset``."""
    spec, info, _, _ = _read_header(Path(folder))
    return Dataset(spec, info, [])


def _read_header(folder: Path) -> tuple[RecordSpec, dict[str, Any], int, dict[str, Any]]:
    """Spec, info, number of shards, and what is known of every file."""
    index = _read_index(folder)
    try:
        return (
            RecordSpec.from_json(index["spec"]),
            dict(index["info"]),
            int(index["shards"]),
            dict(index["files"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _torn(folder / INDEX, f"lacks what it should have ({error!r})") from error


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    if not folder.is_dir() or not path.is_file():
        what = f"no {INDEX} in it" if folder.is_dir() else "no such folder"
        foreign = (folder / "meta" / "info.json").is_file() or any(folder.glob("*.hdf5"))
        remedy = "give a folder written by python -m platform.demos"
        raise DataError(what, where=str(folder), remedy=f"{remedy} import" if foreign else remedy)
    with _resource_errors(path):
        data = path.read_bytes()
    index = _parse_json(path, data)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise DataError(f"{INDEX} is not of a {FORMAT}", where=str(path), remedy="give a dataset folder")
    if index.get("version") != LAYOUT_VERSION:
        raise DataError(
            f"dataset layout version is {index.get('version')}, this Reverie reads {LAYOUT_VERSION}",
            where=str(path),
            remedy="write the dataset again, or use the Reverie that wrote it",
        )
    return index


def _read_shard(folder: Path, stem: str, spec: RecordSpec, files: dict[str, Any]) -> list[Record]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = folder / f"{stem}.safetensors"
    facts_path = folder / f"{stem}.json"
    try:
        tensors: Arrays = load(_read_verified(path, files))
    except SafetensorError as error:
        raise _torn(path, f"is not safetensors ({error})") from error
    all_facts = _parse_json(facts_path, _read_verified(facts_path, files))
    wanted = columns(spec)
    missing = {column.name for column in wanted} | {OFFSETS}
    missing -= set(tensors)
    if missing:
        raise _torn(path, f"lacks {sorted(missing)}")
    offsets = tensors[OFFSETS].tolist()
    if len(offsets) != len(all_facts) + 1:
        raise _torn(path, f"has {len(offsets) - 1} episodes, {facts_path.name} has {len(all_facts)}")
    records = []
    for number, (first, last, facts) in enumerate(zip(offsets, offsets[1:], all_facts, strict=False)):
        arrays = {
            c.name: tensors[c.name][first + number : last + number + 1]
            if c.observed
            else tensors[c.name][first:last]
            for c in wanted
        }
        try:
            record = join_record(arrays, Facts(**facts))
        except TypeError as error:
            raise _torn(facts_path, f"has other fields ({error})") from error
        record.check(spec, where=f"episode {number} of {path}")
        records.append(record)
    return records


def _read_verified(path: Path, files: dict[str, Any]) -> bytes:
    if path.name not in files:
        raise _torn(path, f"is not listed in {INDEX}")
    if not path.is_file():
        raise _torn(path, "is missing")
    with _resource_errors(path):
        data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != files[path.name]["sha256"]:
        raise _torn(path, "is torn or was changed: its sha256 differs")
    return data


def _parse_json(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise _torn(path, f"is not JSON ({error})") from error


def _stem(shard: int) -> str:
    return f"episodes-{shard:05d}"


def _torn(path: Path, what: str) -> DataError:
    return DataError(f"{path.name} {what}", where=str(path.parent), remedy="copy or write the dataset again")


@contextmanager
def _resource_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "choose another folder")
        raise ResourceError(f"{error.strerror or error}", where=str(path), remedy=remedy) from error
