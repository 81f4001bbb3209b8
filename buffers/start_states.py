"""Which stored decisions imagination starts from: kinds of states behind one registry, mixed by shares.

Everything here is arithmetic on lengths and outcomes, so that buffers of any kind draw alike: a *choice* names records and
decisions, and the buffer finds their frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from buffers.index import Kind, Split
from buffers.rows import Rows
from configs.starts import StartsConfig

if TYPE_CHECKING:
    from buffers.shelf import Item

UNIFORM_STARTS = StartsConfig(first=0.0, recent=0.0, uniform=1.0)
Weights = Callable[[StartsConfig, int, bool], NDArray[np.float64]]
"""Relative probability ``[length]`` of each decision of a record: of how many decisions, and whether it succeeded."""


def recent_weights(_config: StartsConfig, length: int, _success: bool) -> NDArray[np.float64]:
    """All alike."""
    return np.ones(length)


def late_weights(config: StartsConfig, length: int, success: bool) -> NDArray[np.float64]:
    """The last ``late_decisions`` of a successful record, which ends with its success."""
    weights = np.zeros(length)
    weights[max(0, length - config.late_decisions) :] = float(success)
    return weights


def failure_weights(config: StartsConfig, length: int, success: bool) -> NDArray[np.float64]:
    """``failure_weight`` in a failed record, 1 in a successful one."""
    return np.full(length, 1.0 if success else config.failure_weight)


WEIGHTS: dict[str, Weights] = {"recent": recent_weights, "late": late_weights, "failures": failure_weights}
"""Kinds that look at the newest records, and how each weighs their decisions."""
INDEXED: dict[str, Kind] = {"first": "first", "uniform": "decision"}
"""Kinds that look at all records, and what a buffer's index calls such rows."""


@dataclass(frozen=True)
class Choice:
    """Decisions of stored records."""

    items: list[Item]
    """``[n]``: the record of each."""
    t: Rows
    """``[n]``: the decision in it."""


def choose_starts(
    newest: Sequence[Item], kind: str, config: StartsConfig, count: int, generator: np.random.Generator
) -> Choice:
    """``count`` decisions of a kind of ``WEIGHTS`` among the ``newest`` records, of which one has such a decision."""
    weigh = WEIGHTS[kind]
    weights = np.concatenate([weigh(config, item.length, item.facts.success) for item in newest])
    ends = np.cumsum(weights)
    # The bound keeps a draw that rounds up to the total inside, a decision of weight 0 is never at a right edge.
    places = np.searchsorted(ends, generator.random(count) * ends[-1], side="right")
    places = np.minimum(places, np.flatnonzero(weights)[-1])
    borders = np.cumsum([item.length for item in newest])
    which = np.searchsorted(borders, places, side="right")
    firsts = borders - np.array([item.length for item in newest])
    return Choice([newest[i] for i in which.tolist()], places - firsts[which])


def start_counts(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """``total`` dealt out in the ratios of ``shares``, which keep their order: each gets its part rounded down, the largest
    remainders one more (of equal ones the first).
    """
    whole = sum(shares.values())
    exact = {kind: share / whole * total for kind, share in shares.items()}
    counts = {kind: math.floor(part + 1e-9) for kind, part in exact.items()}
    by_remainder = sorted(exact, key=lambda kind: counts[kind] - exact[kind])
    for kind in by_remainder[: total - sum(counts.values())]:
        counts[kind] += 1
    return {kind: count for kind, count in counts.items() if count}


def plan_starts(
    config: StartsConfig, newest: Sequence[Item], total: int, *, any_first: bool
) -> dict[str, int]:
    """How many of ``total`` starts are of which kind, in the order of the config: its shares of the kinds that have a state
    stored, ``uniform`` alone where none has.

    ``newest``: the split's records that count as such; ``any_first``: one of all its records begins an episode.
    """
    there = {
        "first": any_first,
        "late": any(item.facts.success for item in newest),
        "recent": bool(newest),
        "failures": bool(newest),
    }
    shares = {kind: share for kind, share in config.shares().items() if share and there.get(kind, True)}
    return start_counts(shares or {"uniform": 1.0}, total)


def newest_items(items: dict[int, Item], split: Split, config: StartsConfig) -> list[Item]:
    """The split's newest records, the newest first; ``items`` lie in the order of storing."""
    return list(islice((item for item in reversed(items.values()) if item.split == split), config.episodes))
