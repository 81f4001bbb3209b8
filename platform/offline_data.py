"""A dataset as what the model learners draw from, with a random state of its own that a checkpoint can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from buffers.batches import OutcomeBatch, WindowBatch
from buffers.index import Split
from buffers.memory import MemoryBuffer

from .context import Context


class OfflineData:
    """The draws of ``Modelling`` that pretraining needs. A buffer's own generator would start anew when a fit resumes."""

    def __init__(self, context: Context, data: MemoryBuffer) -> None:
        self._data = data
        self._generator = np.random.default_rng(context.seed + 11)

    def windows(self, batch: int, history: int, steps: int, *, split: Split = "train") -> WindowBatch:
        """Windows of consecutive decisions."""
        return self._data.windows(batch, history, steps, split=split, generator=self._generator)

    def outcomes(self, batch: int, *, split: Split, balance: bool) -> OutcomeBatch:
        """Frames labelled by success."""
        return self._data.outcomes(batch, split=split, balance=balance, generator=self._generator)

    def stats(self) -> dict[str, Any]:
        """Counts."""
        return self._data.stats()

    def state(self) -> dict[str, Any]:
        """Where the draws stand."""
        return {"generator": self._generator.bit_generator.state}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._generator.bit_generator.state = state["generator"]
