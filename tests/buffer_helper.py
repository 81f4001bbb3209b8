"""Small replay buffers for the tests."""

from __future__ import annotations

from typing import Any

from buffers.memory import MemoryBuffer
from buffers.shelf import bytes_per_row
from configs.system import BufferConfig
from tests.records_helper import make_record, make_spec

SPEC = make_spec()


def make_buffer(
    rows: int = 1000, *, held_out: float = 0.0, reuse_limit: int = 1, seed: int = 0
) -> MemoryBuffer:
    config = BufferConfig(max_bytes=rows * bytes_per_row(SPEC), reuse_limit=reuse_limit, held_out=held_out)
    return MemoryBuffer(SPEC, config, seed=seed, name="real")


def fill(buffer: MemoryBuffer, lengths: list[int], **facts: Any) -> list[int]:
    """Record number i has length ``lengths[i]``."""
    return buffer.extend([make_record(SPEC, i, length, **facts) for i, length in enumerate(lengths)])
