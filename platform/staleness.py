"""How far collectors may run ahead and how old a decision may be: pure functions, no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Stock:
    """What a buffer holds for the policy learner, in decisions, and what is on its way."""

    available: int
    """Decisions of samples that may still be leased."""
    leased: int
    """Decisions of samples that the learner holds now."""
    running: int
    """Samples admitted but not finished."""
    mean_length: float
    """Decisions per finished sample."""


def admissible(stock: Stock, needed: int, budget: float) -> int:
    """Samples that may be started now.

    ``needed`` decisions make one version (design §5: N). Collectors may fill ``floor((1 + budget) * needed)``
    decisions, less what is carried over (available) and under way; with ``budget`` 0 what the learner is training on
    counts too, so nothing starts until it has published. Never deadlocks: whenever the stock cannot serve the learner
    and nothing is running, at least one sample is admissible.
    """
    length = max(stock.mean_length, 1.0)
    ceiling = floor((1.0 + budget) * needed)
    held = stock.available + (stock.leased if budget == 0 else 0) + stock.running * length
    room = (ceiling - held) / length
    return max(0, ceil(room - 1e-9))


@dataclass(frozen=True)
class Lag:
    """Lags of the decisions of one batch, in versions."""

    mean: float
    p95: float
    maximum: int
    over_bound: int
    """Decisions beyond the bound; they are masked."""


def lag_mask(version: NDArray[np.int32], present: NDArray[np.bool_], current: int, bound: int) -> NDArray[np.bool_]:
    """Decisions ``[..]`` that may train: present and at most ``bound`` versions old. A negative lag is a broken
    invariant."""
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
