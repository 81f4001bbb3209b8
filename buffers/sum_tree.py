"""Draws in proportion to weights, in time logarithmic in their number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from buffers.rows import Rows


class SumTree:
    """Weights of ``capacity`` rows, 0 at first. Inner nodes are sums of their two children, the leaves come last."""

    BYTES_PER_ROW = 16

    def __init__(self, capacity: int) -> None:
        self._capacity = max(2, capacity)
        self._nodes = np.zeros(2 * self._capacity)

    @property
    def nbytes(self) -> int:
        """Bytes of the nodes."""
        return self._nodes.nbytes

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._nodes[1])

    def get(self, rows: Rows) -> NDArray[np.float64]:
        """Weights of ``rows``."""
        weights: NDArray[np.float64] = self._nodes[rows + self._capacity]
        return weights

    def set(self, rows: Rows, weights: NDArray[np.float64] | float) -> None:
        """Give ``rows`` (each at most once) new weights; sums are made anew, so no error builds up."""
        nodes = rows + self._capacity
        self._nodes[nodes] = weights
        while len(nodes := np.unique(nodes >> 1)) and nodes[-1] > 0:
            nodes = nodes[nodes > 0]
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def clear(self) -> None:
        """All weights are 0."""
        self._nodes[:] = 0.0

    def draw(self, count: int, generator: np.random.Generator) -> Rows:
        """``count`` rows with replacement. There must be a weight above 0; rows with weight 0 are never drawn."""
        assert self.total > 0
        nodes = np.ones(count, np.int64)
        rest = generator.random(count) * self.total
        while (inner := nodes < self._capacity).any():
            left = 2 * nodes[inner]
            weight = self._nodes[left]
            # Where rounding left a remainder, a subtree without weight is still never entered.
            right = (rest[inner] >= weight) & (self._nodes[left + 1] > 0)
            rest[inner] -= np.where(right, weight, 0.0)
            nodes[inner] = left + right
        return nodes - self._capacity
