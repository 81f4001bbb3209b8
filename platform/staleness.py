"""How old a decision may be when it trains: pure functions, no I/O, no clock.

How far collectors may run ahead is the lifecycle table's matter: ``buffers.lifecycle.Lifecycle.room``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Lag:
    """Lags of the decisions of one batch, in versions."""

    mean: float
    p95: float
    maximum: int
    over_bound: int
    """Decisions beyond the bound; they are masked."""


def lag_mask(
    version: NDArray[np.int32], present: NDArray[np.bool_], current: int, bound: int
) -> NDArray[np.bool_]:
    """Decisions ``[..]`` that may train: present and at most ``bound`` versions old. A negative lag is a broken
    invariant.
    """
    lag = current - version
    assert not (lag[present] < 0).any(), "a decision was made by a version that was never published"
    mask: NDArray[np.bool_] = present & (lag <= bound)
    return mask


def lag_statistics(version: NDArray[np.int32], present: NDArray[np.bool_], current: int, bound: int) -> Lag:
    """Distribution of the lag over the present decisions."""
    lag = (current - version)[present]
    if lag.size == 0:
        return Lag(0.0, 0.0, 0, 0)
    return Lag(float(lag.mean()), float(np.percentile(lag, 95)), int(lag.max()), int((lag > bound).sum()))
