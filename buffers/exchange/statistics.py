"""Statistics of a dataset's features in LeRobot's form: what its trainers normalise by."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

Statistics = dict[str, list[Any]]
"""``min``, ``max``, ``mean``, ``std`` and the quantiles, per dimension or per channel ``[3, 1, 1]``; ``count`` ``[1]``."""


def of_numbers(rows: NDArray[Any]) -> Statistics:
    """Of ``[N, ...]`` numbers or truth values, per dimension."""
    values = rows.reshape(len(rows), -1).astype(np.float64)
    found = {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        **{name: np.quantile(values, share, axis=0) for name, share in QUANTILES.items()},
    }
    return {name: value.tolist() for name, value in found.items()} | {"count": [len(rows)]}


class ColourCount:
    """How often each of 256 levels occurs in each of three channels: everything that LeRobot asks of images, exactly."""

    def __init__(self) -> None:
        self._levels = np.zeros((3, 256), np.int64)
        self.frames = 0

    def add(self, frames: NDArray[np.uint8]) -> None:
        """Count ``[n, H, W, 3]``."""
        for channel in range(3):
            self._levels[channel] += np.bincount(frames[..., channel].ravel(), minlength=256)
        self.frames += len(frames)

    def merge(self, other: ColourCount) -> None:
        """Count what ``other`` counted."""
        self._levels += other._levels
        self.frames += other.frames

    def statistics(self) -> Statistics:
        """Per channel ``[3, 1, 1]``, of levels divided by 255."""
        levels = np.arange(256) / 255
        total = self._levels.sum(axis=1)
        cumulative = self._levels.cumsum(axis=1)
        mean = self._levels @ levels / total
        found = {
            "min": levels[(self._levels > 0).argmax(axis=1)],
            "max": levels[255 - (self._levels[:, ::-1] > 0).argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt(np.maximum(self._levels @ levels**2 / total - mean**2, 0)),
            **{
                name: levels[(cumulative >= share * total[:, None]).argmax(axis=1)]
                for name, share in QUANTILES.items()
            },
        }
        return {name: value.reshape(3, 1, 1).tolist() for name, value in found.items()} | {
            "count": [self.frames]
        }
