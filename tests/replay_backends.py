"""Replay buffers of both backends for tests that hold either to the contract.

One Reverb server serves them all: each buffer has tables of its own there, under a name that no other takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest

from buffers.memory import MemoryBuffer
from buffers.replay import ReplayBuffer
from buffers.reverb_tables import stored_row_bytes, table_specs
from buffers.shelf import bytes_per_row
from configs.replay import PrioritySamplingConfig, ReverbConfig
from configs.system import BufferConfig
from tests.records_helper import make_record, make_spec

SPEC = make_spec()
LONGEST = SPEC.max_decisions + 1
BACKENDS = [
    "memory",
    pytest.param(
        "reverb", marks=pytest.mark.skipif(find_spec("reverb") is None, reason="dm-reverb is not installed")
    ),
]
PLACES = {"small": 4, "large": 40}
"""Records of the greatest length that fit, by size."""
REACH = ReverbConfig(history=3, steps=4, chunk=2, timeout_s=20.0)


class Make(Protocol):
    """Makes a buffer of the backend under test."""

    def __call__(
        self, size: str = "large", *, twin: ReplayBuffer | None = None, **settings: Any
    ) -> ReplayBuffer: ...


def buffer_config(backend: str, size: str, **settings: Any) -> BufferConfig:
    settings = {"held_out": 0.0, "reuse_limit": 1} | settings
    sampling = settings.get("sampling", BufferConfig().sampling)
    row = bytes_per_row(SPEC, sampling) if backend == "memory" else stored_row_bytes(SPEC)
    return BufferConfig(max_bytes=PLACES[size] * LONGEST * row, **settings)


def _kind(size: str, config: BufferConfig) -> str:
    weighted = isinstance(config.sampling, PrioritySamplingConfig)
    return f"{size}-{'weighted' if weighted else 'uniform'}-{config.held_out}"


KINDS: list[tuple[str, dict[str, Any], int]] = [
    ("small", {}, 12),
    ("large", {}, 32),
    ("large", {"held_out": 0.3}, 4),
    ("large", {"sampling": PrioritySamplingConfig(exponent=1.0)}, 6),
]
"""Size, settings, and how many buffers of the kind tests may make."""


@contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """Address of a server with tables for as many buffers as ``KINDS`` says."""
    from buffers.reverb_process import ServerProcess

    tables = []
    for size, settings, count in KINDS:
        config = buffer_config("reverb", size, **settings)
        for number in range(count):
            name = f"{_kind(size, config)}-{number}"
            tables += table_specs(SPEC, config, name=name, modelled=True)
    server = ServerProcess(tables, folder, port=0, checkpoint=None)
    try:
        yield f"localhost:{server.port}"
    finally:
        server.stop()


class Maker:
    """Hands out buffers and closes them."""

    def __init__(self, backend: str, address: str | None) -> None:
        self.backend, self._address = backend, address
        self._made: list[ReplayBuffer] = []

    numbers: dict[str, itertools.count[int]] = {}  # noqa: RUF012  shared by all: names are the server's

    def __call__(
        self, size: str = "large", *, twin: ReplayBuffer | None = None, **settings: Any
    ) -> ReplayBuffer:
        """``twin``: another buffer whose tables it shares, where it has any."""
        config = buffer_config(self.backend, size, **settings)
        buffer: ReplayBuffer
        if self.backend == "memory":
            buffer = MemoryBuffer(SPEC, config, seed=0, name="real")
        else:
            from buffers.reverb_buffer import ReverbBuffer

            kind = _kind(size, config)
            number = next(self.numbers.setdefault(kind, itertools.count()))
            name = twin.name if twin is not None else f"{kind}-{number}"
            reach = ReverbConfig(
                history=REACH.history, steps=REACH.steps, chunk=REACH.chunk, timeout_s=REACH.timeout_s, address=self._address
            )  # fmt: skip
            buffer = ReverbBuffer(SPEC, config, reach, seed=0, name=name)
        self._made.append(buffer)
        return buffer

    def shared(self) -> ReplayBuffer:
        """One for tests that leave nothing behind."""
        if self.backend not in self.kept:
            self.kept[self.backend] = self()
            self._made.remove(self.kept[self.backend])
        return self.kept[self.backend]

    kept: dict[str, ReplayBuffer] = {}  # noqa: RUF012  shared by all

    def close(self) -> None:
        for buffer in self._made:
            buffer.close()


def fill(buffer: ReplayBuffer, lengths: list[int], **facts: Any) -> list[int]:
    """Store a record of each length."""
    return buffer.extend([make_record(SPEC, i, length, **facts) for i, length in enumerate(lengths)])
