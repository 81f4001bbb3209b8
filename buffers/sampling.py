"""How the decisions that begin a window are drawn: every kind of sampling behind one protocol."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from buffers.index import SPLITS, RowIndex, Split
from buffers.rows import FREE, Rows, RowStore
from buffers.sum_tree import SumTree
from configs.errors import DataError, ReplayError
from configs.replay import (
    PrioritySamplingConfig,
    RecencySamplingConfig,
    SamplingConfig,
    UniformSamplingConfig,
)

FIRST_PRIORITY = 1.0
"""Of a decision in a buffer that was never told of another; later ones get the largest known."""

Probabilities = NDArray[np.float64]


class Sampling(Protocol):
    """Told of every decision that comes and goes; draws among them."""

    def add(self, split: Split, rows: Rows) -> None:
        """Decisions were stored."""
        ...

    def remove(self, split: Split, rows: Rows) -> None:
        """Decisions left."""
        ...

    def draw(
        self, split: Split, count: int, generator: np.random.Generator
    ) -> tuple[Rows, Probabilities | None]:
        """``count`` rows and, if they are drawn by priority, each one's probability. ReplayError when the split is empty."""
        ...

    def prioritise(self, split: Split, rows: Rows, priorities: Probabilities) -> None:
        """Give decisions new priorities."""
        ...

    def state(self) -> dict[str, Any]:
        """Arrays and JSON types from which ``load`` continues."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; the index is loaded already."""
        ...


class UniformSampling:
    """Constant time."""

    def __init__(self, _config: UniformSamplingConfig, index: RowIndex, _store: RowStore) -> None:
        self._index = index

    def add(self, split: Split, rows: Rows) -> None:
        """The index knows."""

    def remove(self, split: Split, rows: Rows) -> None:
        """The index knows."""

    def draw(
        self, split: Split, count: int, generator: np.random.Generator
    ) -> tuple[Rows, Probabilities | None]:
        """All alike."""
        return self._index.draw("decision", split, count, generator), None

    def prioritise(self, split: Split, rows: Rows, priorities: Probabilities) -> None:
        """Always ReplayError: nothing would come of it."""
        raise _no_priorities()

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing."""


class RecencySampling:
    """An age from a truncated geometric distribution, and again where no decision of the split has that age.

    Ages count rows behind the newest record, around the ring.
    """

    BLOCK = 4
    """Candidates drawn per decision that is still missing."""
    ROUNDS = 8
    """What is missing after as many is drawn from the exact distribution over all decisions, in linear time."""

    def __init__(self, config: RecencySamplingConfig, index: RowIndex, store: RowStore) -> None:
        self._rate = np.log(2.0) / config.half_life
        self._index, self._store = index, store
        self._split = np.full(store.capacity, FREE, np.int8)
        """Number of the split whose decision a row is."""
        self._newest = 0
        self._wrapped = False

    def add(self, split: Split, rows: Rows) -> None:
        """Rows can be drawn."""
        self._split[rows] = SPLITS.index(split)
        self._wrapped |= bool(rows[0] < self._newest)
        self._newest = int(rows[-1])

    def remove(self, split: Split, rows: Rows) -> None:
        """Rows cannot be drawn any more."""
        self._split[rows] = FREE

    def draw(
        self, split: Split, count: int, generator: np.random.Generator
    ) -> tuple[Rows, Probabilities | None]:
        """Newer ones more often."""
        self._index.require("decision", split)
        found = [np.empty(0, np.int64)]
        missing = count
        for _ in range(self.ROUNDS):
            rows = self._row_of(self._ages(missing * self.BLOCK, generator))
            rows = rows[self._split[rows] == SPLITS.index(split)][:missing]
            found.append(rows)
            missing -= len(rows)
            if not missing:
                break
        if missing:
            rows = np.flatnonzero(self._split == SPLITS.index(split))
            weights = np.exp(-self._rate * (self._age_of(rows) - self._age_of(rows).min()))
            found.append(generator.choice(rows, missing, p=weights / weights.sum()))
        return np.concatenate(found), None

    def _ages(self, count: int, generator: np.random.Generator) -> Rows:
        span = self._store.capacity if self._wrapped else self._store.head
        reach = -np.expm1(-self._rate * span)
        ages: Rows = np.floor(-np.log1p(-generator.random(count) * reach) / self._rate).astype(np.int64)
        return np.minimum(ages, span - 1)

    def _row_of(self, ages: Rows) -> Rows:
        return (self._store.head - 1 - ages) % self._store.capacity

    def _age_of(self, rows: Rows) -> Rows:
        return (self._store.head - 1 - rows) % self._store.capacity

    def prioritise(self, split: Split, rows: Rows, priorities: Probabilities) -> None:
        """Always ReplayError: nothing would come of it."""
        raise _no_priorities()

    def state(self) -> dict[str, Any]:
        """What the index does not hold."""
        return {"newest": self._newest, "wrapped": self._wrapped}

    def load(self, state: dict[str, Any]) -> None:
        """The rows from the index."""
        self._split[:] = FREE
        for split in SPLITS:
            self._split[self._index.rows("decision", split)] = SPLITS.index(split)
        self._newest, self._wrapped = state["newest"], state["wrapped"]


class PrioritySampling:
    """In proportion to ``priority ** exponent``. A new decision has the largest priority that was ever given."""

    def __init__(self, config: PrioritySamplingConfig, index: RowIndex, store: RowStore) -> None:
        self._exponent = config.exponent
        self._index = index
        self._trees = {split: SumTree(store.capacity) for split in SPLITS}
        self._largest = FIRST_PRIORITY

    def add(self, split: Split, rows: Rows) -> None:
        """With the largest priority."""
        self._trees[split].set(rows, self._largest**self._exponent)

    def remove(self, split: Split, rows: Rows) -> None:
        """Never drawn again."""
        self._trees[split].set(rows, 0.0)

    def draw(
        self, split: Split, count: int, generator: np.random.Generator
    ) -> tuple[Rows, Probabilities | None]:
        """ReplayError too where every priority is 0."""
        self._index.require("decision", split)
        tree = self._trees[split]
        if not tree.total > 0:
            raise ReplayError(
                f"every priority in the {split} split is 0", where="replay buffer", remedy="give one above 0"
            )
        rows = tree.draw(count, generator)
        return rows, tree.get(rows) / tree.total

    def prioritise(self, split: Split, rows: Rows, priorities: Probabilities) -> None:
        """For the next draws."""
        if len(rows):
            self._trees[split].set(rows, priorities**self._exponent)
            self._largest = max(self._largest, float(priorities.max()))

    def state(self) -> dict[str, Any]:
        """Weights in the order of the index."""
        weights = {
            split: tree.get(self._index.rows("decision", split)) for split, tree in self._trees.items()
        }
        return {"largest": self._largest, "weights": weights}

    def load(self, state: dict[str, Any]) -> None:
        """Weights in the order of the index."""
        self._largest = state["largest"]
        for split, tree in self._trees.items():
            tree.clear()
            tree.set(np.asarray(self._index.rows("decision", split)), state["weights"][split])


SAMPLINGS: dict[type, Any] = {
    UniformSamplingConfig: UniformSampling,
    RecencySamplingConfig: RecencySampling,
    PrioritySamplingConfig: PrioritySampling,
}
"""Class of the sampling's config to what draws."""

ROW_BYTES: dict[type, int] = {
    UniformSamplingConfig: 0,
    RecencySamplingConfig: 1,
    PrioritySamplingConfig: len(SPLITS) * SumTree.BYTES_PER_ROW,
}
"""What each takes per row of capacity."""


def make_sampling(config: SamplingConfig, index: RowIndex, store: RowStore) -> Sampling:
    """The sampling that ``config`` names."""
    sampling: Sampling = SAMPLINGS[type(config)](config, index, store)
    return sampling


def check_priorities(priorities: Probabilities, *, where: str) -> None:
    """DataError for a priority that is negative or not finite."""
    bad = ~(np.isfinite(priorities) & (priorities >= 0))
    if bad.any():
        raise DataError(
            f"priority {priorities[bad][0]} is negative or not finite",
            where=where,
            remedy="give finite priorities of 0 or more",
        )


def _no_priorities() -> ReplayError:
    return ReplayError(
        "this buffer does not draw by priority",
        where="replay buffer",
        remedy="set its sampling to priority (sampling.kind=priority)",
    )
