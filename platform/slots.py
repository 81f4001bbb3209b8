"""What a rollout worker knows of its slots: what each one waits for, and how busy all of them were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from buffers.samples import Admitted

from .inference import Decisions

Slots = NDArray[np.int64]


@dataclass
class Request:
    """Decisions asked for."""

    ticket: object
    slots: Slots
    asked: float
    """On the monotonic clock; only for the time it took."""


@dataclass
class Start:
    """An episode whose environment is being reset."""

    sample: Admitted
    seed: int
    began: float


@dataclass
class Stepping:
    """A decision that a slot executes: row ``row`` of ``decisions``."""

    decisions: Decisions
    row: int
    began: float


class Occupancy:
    """Share of slot time with an episode in it. Times are given, so that it can be checked by hand."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._busy, self._slots = 0, 0
        self._busy_s, self._slot_s = 0.0, 0.0

    def note(self, now: float, busy: int, slots: int) -> None:
        """From ``now`` on ``busy`` of ``slots`` slots have an episode."""
        if self._since is not None:
            self._busy_s += self._busy * (now - self._since)
            self._slot_s += self._slots * (now - self._since)
        self._since, self._busy, self._slots = now, busy, slots

    def take(self, now: float) -> float | None:
        """The share since the last call, in [0, 1]; None when no time has passed."""
        self.note(now, self._busy, self._slots)
        # Metrics are read from another thread than the one that notes: rounding must not lead above 1.
        share = min(1.0, self._busy_s / self._slot_s) if self._slot_s > 0 else None
        self._busy_s, self._slot_s = 0.0, 0.0
        return share
