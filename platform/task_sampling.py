"""Which task an episode gets. Pure: no generator, no clock; the same outcomes and seed give the same task."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEMORY = 32
"""Outcomes of a task that count as recent."""
_DOMAIN = 0x7A5C
"""Keeps these draws apart from other uses of the same seeds."""


class TaskSampler:
    """Probability of a task proportional to 1 + its recent failures (AcceRL): a task that is solved is still seen."""

    def __init__(self, tasks: Sequence[str]) -> None:
        assert tasks
        self._failed: dict[str, deque[bool]] = {task: deque(maxlen=MEMORY) for task in tasks}

    def record(self, task: str, *, success: bool) -> None:
        """An episode of ``task`` ended."""
        self._failed[task].append(not success)

    def probabilities(self) -> NDArray[np.float64]:
        """Of each task, in the order they were given."""
        weights = np.array([1 + sum(failed) for failed in self._failed.values()], np.float64)
        share: NDArray[np.float64] = weights / weights.sum()
        return share

    def choose(self, seeds: NDArray[np.int64]) -> list[str]:
        """One task per seed."""
        borders = np.cumsum(self.probabilities())
        draws = [np.random.default_rng([_DOMAIN, int(seed)]).random() for seed in seeds]
        names = list(self._failed)
        return [
            names[min(int(place), len(names) - 1)] for place in np.searchsorted(borders, draws, side="right")
        ]

    def state(self) -> dict[str, Any]:
        """Recent outcomes by task."""
        return {task: list(failed) for task, failed in self._failed.items()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; tasks that the run no longer has are left out."""
        for task, failed in self._failed.items():
            failed.clear()
            failed.extend(state.get(task, []))
