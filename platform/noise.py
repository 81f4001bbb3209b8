"""Sampling noise that depends on what is decided, not on when or beside what: every decision draws from a stream of its own.

So the same episode is acted the same way whichever batch, replica or host its requests come to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def keyed_exponentials(seed: int, keys: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """``[n, count]`` exponential variates of mean 1; row i depends on ``seed`` and ``keys[i]`` (``[n, m]``) alone.

    SplitMix64 (Steele, Lea and Flood 2014), started from the mixed key and read at ``count`` steps.
    """
    with np.errstate(over="ignore"):
        state = np.full(len(keys), _mix(np.uint64(seed) + _GOLDEN), np.uint64)
        for column in keys.T.astype(np.uint64):
            state = _mix((state ^ column) + _GOLDEN)
        bits = _mix(state[:, None] + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    # 24 bits fill a float32's mantissa; the half keeps the logarithm finite at both ends.
    uniform = ((bits >> np.uint64(40)).astype(np.float64) + 0.5) * 2.0**-24
    noise: NDArray[np.float32] = (-np.log(uniform)).astype(np.float32)
    return noise


def decision_noise(
    seed: int, keys: NDArray[np.int64], *, chunk: int, action_dim: int, bins: int
) -> NDArray[np.float32]:
    """``[n, K, D, bins]``: what ``choose_tokens`` needs for the n decisions of ``keys``."""
    return keyed_exponentials(seed, keys, chunk * action_dim * bins).reshape(-1, chunk, action_dim, bins)


def _mix(x: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = np.asarray(x ^ (x >> np.uint64(31)))
    return mixed
