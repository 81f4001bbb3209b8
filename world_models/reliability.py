"""Whether probabilities mean what they say: of the frames called 70 %, do 70 % show success?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 10


@dataclass(frozen=True)
class Reliability:
    """Of success probabilities on frames whose outcome is known."""

    error: float
    """Expected calibration error (Naeini et al. 2015; Guo et al. 2017): mean over frames of the difference between a
    bin's mean probability and its share of successes, in ``BINS`` bins of equal width."""
    brier: float
    """Mean squared difference of probability and outcome (Brier 1950)."""
    said: list[float]
    """Mean probability of each bin that holds any frame, lowest first."""
    happened: list[float]
    """Share of successes in these bins."""
    frames: list[int]
    """Frames in them."""


def reliability(
    probabilities: NDArray[np.floating[Any]], success: NDArray[np.bool_], bins: int = BINS
) -> Reliability:
    """``probabilities`` and ``success`` are ``[n]``, n at least 1."""
    assert len(probabilities) == len(success) > 0
    values, outcome = probabilities.astype(np.float64), success.astype(np.float64)
    of_bin = np.minimum((values * bins).astype(np.int64), bins - 1)
    filled = np.unique(of_bin)
    said = [float(values[of_bin == each].mean()) for each in filled]
    happened = [float(outcome[of_bin == each].mean()) for each in filled]
    frames = [int((of_bin == each).sum()) for each in filled]
    error = sum(n * abs(s - h) for n, s, h in zip(frames, said, happened, strict=True)) / len(values)
    return Reliability(error, float(np.mean((values - outcome) ** 2)), said, happened, frames)
