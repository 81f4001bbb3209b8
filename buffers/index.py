"""Which rows of a RowStore can be drawn for what, by split."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from buffers.rows import Rows, RowSet
from configs.errors import ReplayError

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")
Kind = Literal["decision", "first", "success", "failure"]

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 1 << 64


def is_held_out(episode_id: int, share: float) -> bool:
    """Whether an episode belongs to the held-out split, by its id alone.

    Multiples of the golden ratio modulo 1 spread evenly, so consecutive ids give the share almost exactly and in no
    rhythm with round-robin tasks or noise levels. All segments of an episode fall in the same split, in every run.
    """
    # Half a turn ahead, so that id 0 is trained on.
    return (episode_id * _GOLDEN + _WORD // 2) % _WORD < share * _WORD


class RowIndex:
    """A RowSet for each kind of row and split.

    Kinds: ``decision`` (rows a window may start at), ``first`` (those of an episode's decision 0), ``success``
    (last observation of a successful record), ``failure`` (every other observation).
    """

    KINDS: tuple[Kind, ...] = ("decision", "first", "success", "failure")
    BYTES_PER_ROW = len(KINDS) * len(SPLITS) * RowSet.BYTES_PER_ROW

    def __init__(self, capacity: int) -> None:
        self._sets = {(kind, split): RowSet(capacity) for kind in self.KINDS for split in SPLITS}

    @property
    def nbytes(self) -> int:
        """Bytes of all sets."""
        return sum(rows.nbytes for rows in self._sets.values())

    def add(self, split: Split, start: int, length: int, *, success: bool, is_first: bool) -> None:
        """Insert a record's rows."""
        for kind, rows in _rows_of(start, length, success=success, is_first=is_first).items():
            self._sets[kind, split].add(rows)

    def remove(self, split: Split, start: int, length: int, *, success: bool, is_first: bool) -> None:
        """Remove a record's rows."""
        for kind, rows in _rows_of(start, length, success=success, is_first=is_first).items():
            self._sets[kind, split].remove(rows)

    def count(self, kind: Kind, split: Split) -> int:
        """Rows of a kind."""
        return len(self._sets[kind, split])

    def rows(self, kind: Kind, split: Split) -> Rows:
        """Rows of a kind, in no particular order."""
        return self._sets[kind, split].state().astype(np.int64)

    def require(self, kind: Kind, split: Split) -> None:
        """ReplayError when there is no row of that kind."""
        if not self.count(kind, split):
            raise ReplayError(
                f"there is no {kind} row in the {split} split",
                where="replay buffer",
                remedy="add such episodes first (held_out sets the held-out share)",
            )

    def draw(self, kind: Kind, split: Split, count: int, generator: np.random.Generator) -> Rows:
        """``count`` uniform rows; ReplayError when there are none of that kind."""
        if not count:
            return np.empty(0, np.int64)
        self.require(kind, split)
        return self._sets[kind, split].draw(count, generator)

    def draw_outcomes(
        self, split: Split, count: int, generator: np.random.Generator, *, balance: bool
    ) -> tuple[Rows, int]:
        """Success rows first, then failure rows, and how many are successes: half with ``balance``, else by chance."""
        successes = count // 2
        if not balance:
            share = self.count("success", split)
            total = share + self.count("failure", split)
            successes = int(generator.binomial(count, share / total)) if total else 0
        won = self.draw("success", split, successes, generator)
        lost = self.draw("failure", split, count - successes, generator)
        return np.concatenate([won, lost]), successes

    def state(self) -> dict[str, Any]:
        """Every set's rows in their order."""
        return {f"{kind}/{split}": rows.state() for (kind, split), rows in self._sets.items()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        for (kind, split), rows in self._sets.items():
            rows.load(state[f"{kind}/{split}"])


def _rows_of(start: int, length: int, *, success: bool, is_first: bool) -> dict[Kind, Rows]:
    rows = np.arange(start, start + length + 1)
    return {
        "decision": rows[:-1],
        "first": rows[: int(is_first)],
        "success": rows[length:] if success else rows[:0],
        "failure": rows[:length] if success else rows,
    }
