"""Columns of which the rows beyond a bound lie in a memory-mapped file instead of memory."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from configs.errors import ResourceError


class SpilledColumn:
    """An array over rows, the first ``in_memory`` of them in memory and the rest in a file.

    The file has no name: it is gone with the process, however that ends. All its blocks are taken when it is made, so a
    full disk is an error then and not a fault later. Takes the indices that a RowStore uses: slices and integer arrays.
    """

    def __init__(
        self, rows: int, shape: tuple[int, ...], dtype: DTypeLike, *, in_memory: int, folder: Path
    ) -> None:
        """ResourceError when the folder cannot hold the file."""
        self.shape = (rows, *shape)
        self.dtype = np.dtype(dtype)
        self._bound = in_memory
        self._memory: NDArray[Any] = np.empty((in_memory, *shape), dtype)
        self._disk = _map((rows - in_memory, *shape), self.dtype, folder)

    @property
    def nbytes(self) -> int:
        """Bytes in memory and on disk."""
        return self._memory.nbytes + self._disk.nbytes

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory."""
        return self._memory.nbytes

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        index = self._rows(rows)
        here = index < self._bound
        out = np.empty((*index.shape, *self.shape[1:]), self.dtype)
        out[here] = self._memory[index[here]]
        out[~here] = self._disk[index[~here] - self._bound]
        return out

    def __setitem__(self, rows: Any, values: Any) -> None:
        index = self._rows(rows)
        here = index < self._bound
        values = np.broadcast_to(values, (*index.shape, *self.shape[1:]))
        self._memory[index[here]] = values[here]
        self._disk[index[~here] - self._bound] = values[~here]

    def _rows(self, rows: Any) -> NDArray[np.int64]:
        if isinstance(rows, slice):
            return np.arange(*rows.indices(self.shape[0]))
        return np.asarray(rows, np.int64)


def _map(shape: tuple[int, ...], dtype: np.dtype[Any], folder: Path) -> NDArray[Any]:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            buffer = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise ResourceError(
            f"{size / 1e9:.2f} GB of frames cannot spill to disk: {error.strerror}",
            where=str(folder),
            remedy="free space there, set buffers.spill_dir to another folder, or lower max_bytes",
        ) from error
    return np.frombuffer(buffer, dtype).reshape(shape)


def spill_folder(configured: str | None) -> Path:
    """Where spilled frames lie."""
    return Path(configured or tempfile.gettempdir())


def free_bytes(folder: Path) -> int:
    """Free bytes of the disk that ``folder`` is, or will be, on."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free
