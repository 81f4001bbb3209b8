"""Trees of arrays, tensors and JSON values on disk: safetensors beside JSON, hashed, never pickle, never half-written.

A *folder* written here holds files and ``manifest.json`` with the SHA-256 of each. It is made under a hidden name and
renamed when complete, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import CheckpointError, ResourceError

MANIFEST = "manifest.json"
LAYOUT = 1
_CHUNK = 1 << 20


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the disk's own refusals into one-line errors that name ``path``."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise _explain(error.errno, str(error), path) from error
    except SafetensorError as error:
        full = "No space left" in str(error) or "os error 28" in str(error)
        if not full:
            raise
        raise _explain(errno.ENOSPC, str(error), path) from error


def _explain(code: int | None, text: str, path: Path) -> ResourceError:
    known: dict[int | None, tuple[str, str]] = {
        errno.ENOSPC: (
            "the disk is full",
            "free space there, or choose another folder with run.dir= or out=",
        ),
        errno.EDQUOT: (
            "the disk quota is used up",
            "free space there, or choose another folder with run.dir= or out=",
        ),
        errno.EACCES: ("no permission to write", "choose a folder of yours with run.dir= or out="),
        errno.ENOTDIR: ("a file is in the way", "choose a folder with run.dir= or out="),
        errno.EEXIST: ("a file is in the way", "choose a folder with run.dir= or out="),
        errno.EROFS: ("the file system is read-only", "choose a writable folder with run.dir= or out="),
    }
    what, remedy = known.get(code, (f"cannot write: {text}", "check the folder and the disk"))
    return ResourceError(what, where=str(path), remedy=remedy)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden sibling to write into; on success it gets its manifest and becomes ``folder``, else it is removed.

    Raises ResourceError when the disk refuses, CheckpointError when ``folder`` exists.
    """
    if folder.exists():
        raise CheckpointError(
            "folder exists and is never overwritten", where=str(folder), remedy="choose a new name"
        )
    partial = folder.parent / f".{folder.name}.partial"
    try:
        with disk_errors(folder):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            yield partial
            _write_manifest(partial)
            os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_manifest(folder: Path) -> None:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    hashes = {str(p.relative_to(folder)): file_sha256(p) for p in files}
    (folder / MANIFEST).write_text(json.dumps({"layout": LAYOUT, "sha256": hashes}, indent=1))


def manifest_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 by file, as written when the folder was; empty where it has no manifest that can be read."""
    try:
        data = read_json(folder / MANIFEST)
    except CheckpointError:
        return {}
    return dict(data["sha256"]) if isinstance(data, dict) and data.get("layout") == LAYOUT else {}


def file_sha256(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def verify_folder(folder: Path) -> None:
    """Raise CheckpointError unless ``folder`` is complete and every file has the hash in its manifest."""
    if not folder.is_dir():
        raise CheckpointError("no such folder", where=str(folder), remedy="check the path")
    if not (folder / MANIFEST).is_file():
        raise CheckpointError(
            "manifest.json is missing", where=str(folder), remedy="it was not written by Reverie"
        )
    _verify(folder, "")


def verify_part(folder: Path) -> None:
    """The same for a folder that may be a part of a complete one (a model inside a checkpoint): then its manifest is
    the parent's. A folder without either is let through.
    """
    if (folder / MANIFEST).is_file():
        verify_folder(folder)
    elif (folder.parent / MANIFEST).is_file():
        _verify(folder.parent, f"{folder.name}/")


def read_json(path: Path) -> Any:
    """Raise CheckpointError unless the file is there and holds JSON."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError) as error:
        raise CheckpointError(
            f"{path.name} is missing or torn", where=str(path.parent), remedy="use another copy"
        ) from error


def _verify(folder: Path, prefix: str) -> None:
    """Compare the files whose names start with ``prefix``."""
    data = read_json(folder / MANIFEST)
    if not isinstance(data, dict) or data.get("layout") != LAYOUT:
        raise CheckpointError(
            f"{MANIFEST} is not of layout {LAYOUT}",
            where=str(folder),
            remedy="write it again with this version, or read it with the one that wrote it",
        )
    for name, digest in data["sha256"].items():
        path = folder / name
        if name.startswith(prefix) and (not path.is_file() or file_sha256(path) != digest):
            raise CheckpointError(f"{name} is missing or torn", where=str(folder), remedy="use another copy")


def save_arrays_file(path: Path, arrays: dict[str, Any]) -> None:
    """Write named arrays as one safetensors file."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def load_arrays_file(path: Path) -> dict[str, Any]:
    """Read what ``save_arrays_file`` wrote."""
    from safetensors.numpy import load_file

    arrays: dict[str, Any] = load_file(path)
    return arrays


def save_tree(folder: Path, name: str, tree: Any) -> None:
    """Write ``tree`` (dicts, lists, arrays, tensors, numbers, strings, None) as ``name.json`` + ``name.safetensors``."""
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}

    def strip(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[path] = value.detach().cpu().contiguous().clone()
            return {"__tensor__": path}
        if isinstance(value, np.ndarray):
            tensors[path] = torch.from_numpy(np.ascontiguousarray(value).copy()).reshape(value.shape)
            return {"__array__": path}
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, dict):
            pairs = [[key, strip(item, f"{path}/{key}")] for key, item in value.items()]
            if all(isinstance(key, str) for key in value):
                return dict(pairs)
            return {"__pairs__": pairs}
        if isinstance(value, (list, tuple)):
            return [strip(item, f"{path}/{i}") for i, item in enumerate(value)]
        assert value is None or isinstance(value, (bool, int, float, str)), (
            f"{path}: {type(value)} is no tree value"
        )
        return value

    skeleton = strip(tree, "")
    (folder / f"{name}.json").write_text(json.dumps(skeleton))
    save_file(tensors, folder / f"{name}.safetensors")


def load_tree(folder: Path, name: str) -> Any:
    """Read what ``save_tree`` wrote; arrays come back as arrays, tensors as tensors."""
    from safetensors.torch import load_file

    tensors = load_file(folder / f"{name}.safetensors")
    rebuild: dict[str, Callable[[Any], Any]] = {
        "__tensor__": lambda path: tensors[path],
        "__array__": lambda path: tensors[path].numpy(),
        "__pairs__": lambda pairs: {key: fill(item) for key, item in pairs},
    }

    def fill(value: Any) -> Any:
        if isinstance(value, list):
            return [fill(item) for item in value]
        if isinstance(value, dict):
            for mark, make in rebuild.items():
                if len(value) == 1 and mark in value:
                    return make(value[mark])
            return {key: fill(item) for key, item in value.items()}
        return value

    return fill(json.loads((folder / f"{name}.json").read_text()))
