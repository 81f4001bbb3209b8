"""A measurement on a GPU, or on a CPU that rehearses it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True)
class Row:
    """One line of the table: a measurement, or what could not be run and why."""

    part: str
    what: str
    batch: int = 0
    milliseconds: float | None = None
    """Median of a call."""
    gigabytes: float | None = None
    """Peak of the allocator during the calls; of weights alone, what they take."""
    note: str = ""


@dataclass(frozen=True)
class Machine:
    """Where to measure, and how large."""

    device: str
    rehearsal: bool

    def synchronize(self) -> None:
        """Wait for what was launched."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, part: str, what: str, batch: int, work: Callable[[], object], repeats: int = 10) -> Row:
        """Median over ``repeats`` calls after two to warm up, and the peak of memory."""
        repeats = 1 if self.rehearsal else repeats
        on_gpu = self.device == "cuda"
        for _ in range(1 if self.rehearsal else 2):
            work()
        self.synchronize()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        taken = []
        for _ in range(repeats):
            began = time.perf_counter()
            work()
            self.synchronize()
            taken.append(time.perf_counter() - began)
        peak = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else None
        return Row(part, what, batch, 1e3 * median(taken), peak)

    def precision(self) -> AbstractContextManager[object]:
        """Autocast to bfloat16, as policies with frozen bfloat16 weights run."""
        return torch.autocast(self.device, dtype=torch.bfloat16)
