"""The backends of replay buffers by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from buffers.limiter import check_limiter
from buffers.memory import MemoryBuffer
from buffers.records import RecordSpec
from buffers.replay import ReplayBuffer
from buffers.reverb_address import require_listener
from buffers.reverb_package import require_reverb
from buffers.reverb_process import START_TIMEOUT_S, verify_checkpoint
from buffers.reverb_tables import record_capacity, stored_row_bytes, table_specs
from buffers.shelf import bytes_per_row, plan_spill
from buffers.spill import free_bytes, spill_folder
from configs.errors import ResourceError
from configs.system import BufferConfig, BuffersConfig

BufferName = Literal["real", "imagined"]
MARGIN_S = 10.0


def stored_spec(spec: RecordSpec, name: BufferName) -> RecordSpec:
    """What the buffer keeps of the run's records: what is imagined is for the policy alone, which sees decisions."""
    return spec if name == "real" else replace(spec, between=False)


def _memory(
    spec: RecordSpec, buffers: BuffersConfig, name: BufferName, *, seed: int, **_: Any
) -> ReplayBuffer:
    return MemoryBuffer(spec, _parts(buffers)[name], seed=seed, name=name, spill_dir=buffers.spill_dir)


def _reverb(
    spec: RecordSpec, buffers: BuffersConfig, name: BufferName, *, seed: int, folder: Path | None, keep: int
) -> ReplayBuffer:
    from buffers.reverb_buffer import ReverbBuffer

    return ReverbBuffer(
        spec, _parts(buffers)[name], buffers.reverb, seed=seed, name=name,
        folder=None if folder is None else folder / name, modelled=name == "real", keep=keep,
    )  # fmt: skip


def _check_memory(spec: RecordSpec, buffers: BuffersConfig) -> None:
    folder, spilled = spill_folder(buffers.spill_dir), 0
    for name, part in _parts(buffers).items():
        stored = stored_spec(spec, name)
        capacity = part.max_bytes // bytes_per_row(stored, part.sampling)
        _check_limiter(part, stored, capacity, name)
        if plan_spill(stored, part, capacity, folder=folder, name=name) is not None:
            spilled += part.max_bytes - (part.memory_bytes or 0)
    free = free_bytes(folder)
    if spilled > free:
        raise ResourceError(
            f"the buffers may spill {spilled / 1e9:.1f} GB, the disk has {free / 1e9:.1f} GB free",
            where=f"buffers.spill_dir={folder}",
            remedy="lower max_bytes, or name a folder on another disk",
        )


def _check_reverb(spec: RecordSpec, buffers: BuffersConfig) -> None:
    require_reverb()
    if buffers.reverb.address is not None:
        require_listener(buffers.reverb.address)
    for name, part in _parts(buffers).items():
        stored = stored_spec(spec, name)
        table_specs(stored, part, name=name, modelled=True)
        rows = record_capacity(stored, part, name=name) * (spec.max_decisions + 1)
        _check_limiter(part, spec, rows, name)


def _verify_memory(_state: dict[str, Any], _folder: Path) -> None:
    """All of it lies in the run's own checkpoint."""


def _verify_reverb(state: dict[str, Any], folder: Path) -> None:
    saved = state["server"]
    # What a server on another machine wrote is seen there only.
    if "address" not in saved:
        verify_checkpoint(folder / saved["path"], saved["sha256"])


def _check_limiter(part: BufferConfig, spec: RecordSpec, rows: int, name: str) -> None:
    if part.limiter is not None:
        decisions = rows * spec.max_decisions // (spec.max_decisions + 1)
        check_limiter(
            part.limiter, longest=spec.max_decisions, capacity=decisions, where=f"buffers.{name}.limiter"
        )


@dataclass(frozen=True)
class Backend:
    """What differs between backends beside the buffer itself."""

    make: Callable[..., ReplayBuffer]
    check: Callable[[RecordSpec, BuffersConfig], None]
    """Raises a one-line error for what cannot run, before anything is made."""
    row_bytes: Callable[[RecordSpec, BufferConfig], int]
    verify: Callable[[dict[str, Any], Path], None]
    """Raises CheckpointError unless all that belongs to a saved state is in the folder that the buffer was made with."""
    restart_s: float
    """How long a call may take that has to start the store again."""


BACKENDS = {
    "memory": Backend(
        _memory,
        _check_memory,
        lambda spec, part: bytes_per_row(spec, part.sampling),
        _verify_memory,
        restart_s=0.0,
    ),
    "reverb": Backend(
        _reverb,
        _check_reverb,
        lambda spec, _: stored_row_bytes(spec),
        _verify_reverb,
        restart_s=START_TIMEOUT_S,
    ),
}
"""By ``buffers.backend``."""

WAITING_CALLS = 32
"""Calls of a buffer that may be under way at once where some may wait for others: more than a run has roles."""


def check_buffers(spec: RecordSpec, buffers: BuffersConfig) -> None:
    """Raise a one-line error for settings of the buffers that cannot run."""
    BACKENDS[buffers.backend].check(spec, buffers)


def row_cost(spec: RecordSpec, buffers: BuffersConfig, part: BufferConfig) -> int:
    """Bytes of ``max_bytes`` that one row takes."""
    return BACKENDS[buffers.backend].row_bytes(spec, part)


def answer_s(buffers: BuffersConfig) -> float:
    """How long a call of a buffer may take."""
    limits = [part.limiter.timeout_s for part in (buffers.real, buffers.imagined) if part.limiter is not None]
    restart = BACKENDS[buffers.backend].restart_s
    return max([0.0, *limits]) + (restart + 2 * buffers.reverb.timeout_s if restart else 0.0) + MARGIN_S


def calls_at_once(buffers: BuffersConfig) -> int:
    """More than one where a call may wait for what another brings, or for a server."""
    waits = any(part.limiter is not None for part in (buffers.real, buffers.imagined))
    return WAITING_CALLS if waits or BACKENDS[buffers.backend].restart_s else 1


def make_buffer(
    spec: RecordSpec, buffers: BuffersConfig, name: BufferName, *, seed: int, folder: Path | None, keep: int
) -> ReplayBuffer:
    """``B_real`` or ``B_img``. ``folder``: of the run, for what a backend keeps on disk; ``keep`` checkpoints of it."""
    stored = stored_spec(spec, name)
    return BACKENDS[buffers.backend].make(stored, buffers, name, seed=seed, folder=folder, keep=keep)


def verify_saved(state: dict[str, Any], name: BufferName, folder: Path) -> None:
    """CheckpointError unless ``state``, as a buffer's ``state`` told it, can be loaded by the one that ``make_buffer`` makes
    with ``folder``. Its own arrays are not looked at.
    """
    BACKENDS[state.get("backend", "memory")].verify(state, folder / name)


def _parts(buffers: BuffersConfig) -> dict[BufferName, BufferConfig]:
    return {"real": buffers.real, "imagined": buffers.imagined}
