"""The backends of replay buffers by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from buffers.memory import MemoryBuffer
from buffers.records import RecordSpec
from buffers.replay import ReplayBuffer
from configs.system import BufferConfig, BuffersConfig

BufferName = Literal["real", "imagined"]


def _memory(
    spec: RecordSpec, buffers: BuffersConfig, name: BufferName, *, seed: int, **_: Any
) -> ReplayBuffer:
    return MemoryBuffer(spec, _part(buffers, name), seed=seed, name=name, spill_dir=buffers.spill_dir)


def _reverb(
    spec: RecordSpec, buffers: BuffersConfig, name: BufferName, *, seed: int, folder: Path | None, keep: int
) -> ReplayBuffer:
    from buffers.reverb_buffer import ReverbBuffer

    return ReverbBuffer(
        spec, _part(buffers, name), buffers.reverb, seed=seed, name=name,
        folder=None if folder is None else folder / name, modelled=name == "real", keep=keep,
    )  # fmt: skip


BACKENDS: dict[str, Any] = {"memory": _memory, "reverb": _reverb}
"""``buffers.backend`` to what makes a buffer."""


def make_buffer(
    spec: RecordSpec, buffers: BuffersConfig, name: BufferName, *, seed: int, folder: Path | None, keep: int
) -> ReplayBuffer:
    """``B_real`` or ``B_img``. ``folder``: of the run, for what a backend keeps on disk; ``keep`` checkpoints of it."""
    make = BACKENDS[buffers.backend]
    return cast(ReplayBuffer, make(spec, buffers, name, seed=seed, folder=folder, keep=keep))


def _part(buffers: BuffersConfig, name: BufferName) -> BufferConfig:
    parts: dict[str, BufferConfig] = {"real": buffers.real, "imagined": buffers.imagined}
    return parts[name]
