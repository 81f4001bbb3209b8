"""The files of replay buffers in a checkpoint.

A small buffer lies in one tree with everything else of it. The rows of a large one lie in *shards*, files named by the hash
of what they hold: records never change, so most shards of a checkpoint are those of the one before, and are linked, not
written again::

    buffers/
      state.json  state.safetensors    B_real and B_img without the rows of large ones
      shards/<hash>.safetensors        all columns of up to RECORDS_PER_SHARD records
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .storage import file_sha256, load_arrays_file, load_tree, manifest_hashes, save_arrays_file, save_tree

LARGE_BYTES = 64_000_000
"""Rows of a smaller buffer are written whole each time: fewer files, and no more than a second of work."""
RECORDS_PER_SHARD = 64
SHARDS = "shards"

Arrays = dict[str, Any]


def save_buffers(folder: Path, states: dict[str, Any], previous: Path | None) -> None:
    """Write into the new ``folder``; ``previous``: the same folder of the checkpoint before."""
    (folder / SHARDS).mkdir()
    known = {} if previous is None else manifest_hashes(previous.parent)
    trees = {}
    for name, state in states.items():
        trees[name] = state
        if _row_bytes(state) >= LARGE_BYTES:
            shelf = dict(state["shelf"])
            columns, items = shelf.pop("columns"), shelf["items"]
            shelf["shards"] = [
                _save_shard(folder, {key: column[rows] for key, column in columns.items()}, previous, known)
                for rows in _blocks(items)
            ]
            trees[name] = {**state, "shelf": shelf}
    save_tree(folder, "state", trees)


def load_buffers(folder: Path) -> dict[str, Any]:
    """What ``save_buffers`` wrote; the folder's hashes were verified."""
    states: dict[str, Any] = load_tree(folder, "state")
    for state in states.values():
        shards = state.get("shelf", {}).pop("shards", None)
        if shards is not None:
            parts = [load_arrays_file(folder / SHARDS / name) for name in shards]
            state["shelf"]["columns"] = _joined(parts, _blocks(state["shelf"]["items"]))
    return states


def _row_bytes(state: dict[str, Any]) -> int:
    columns = state.get("shelf", {}).get("columns", {})
    return sum(column.nbytes for column in columns.values())


def _blocks(items: list[dict[str, Any]]) -> list[Any]:
    """Rows of each shard, among those of all ``items``, which lie one behind the other. An item is always in the same."""
    rows = np.cumsum([0, *(item["length"] + 1 for item in items)])
    blocks: dict[int, list[Any]] = {}
    for item, begin, end in zip(items, rows[:-1], rows[1:], strict=True):
        blocks.setdefault(item["id"] // RECORDS_PER_SHARD, []).append(np.arange(begin, end))
    return [np.concatenate(spans) for spans in blocks.values()]


def _joined(parts: list[Arrays], blocks: list[Any]) -> Arrays:
    total = sum(len(rows) for rows in blocks)
    columns = {
        key: np.empty((total, *array.shape[1:]), array.dtype)
        for key, array in (parts[0] if parts else {}).items()
    }
    for part, rows in zip(parts, blocks, strict=True):
        for key, column in columns.items():
            column[rows] = part[key]
    return columns


def _save_shard(folder: Path, arrays: Arrays, previous: Path | None, known: dict[str, str]) -> str:
    """The file's name."""
    name = f"{_content_hash(arrays)}.safetensors"
    target = folder / SHARDS / name
    if target.exists():
        return name
    digest = known.get(f"{folder.name}/{SHARDS}/{name}")
    if previous is not None and digest is not None:
        before = previous / SHARDS / name
        # One that decayed on the disk must not be passed on under a new, matching hash.
        if before.is_file() and file_sha256(before) == digest:
            # Some file systems know no links, or no more of them to this file: the shard is written again there.
            with suppress(OSError):
                os.link(before, target)
                return name
    save_arrays_file(target, arrays)
    return name


def _content_hash(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]
