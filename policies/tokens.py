"""Action tokens: uniform bins over the range of each action dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataError


@dataclass(frozen=True)
class ActionTokenizer:
    """Token ``i`` of dimension ``d`` stands for the i-th of ``bins`` equal parts of ``[low[d], high[d]]``.

    Raises DataError for a range that is empty or not finite.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    bins: int

    def __init__(self, low: Sequence[float], high: Sequence[float], bins: int) -> None:
        object.__setattr__(self, "low", tuple(float(x) for x in low))
        object.__setattr__(self, "high", tuple(float(x) for x in high))
        object.__setattr__(self, "bins", int(bins))
        assert len(self.low) == len(self.high), "low and high differ in length"
        assert 2 <= self.bins <= np.iinfo(np.int16).max, f"bins={self.bins}"
        for dimension, (bottom, top) in enumerate(zip(self.low, self.high, strict=True)):
            if not (np.isfinite(bottom) and np.isfinite(top) and bottom < top):
                raise DataError(
                    f"action dimension {dimension} has the range [{bottom}, {top}]",
                    where="action space",
                    remedy="give a finite range with low < high",
                )

    @property
    def action_dim(self) -> int:
        """D."""
        return len(self.low)

    @property
    def parts(self) -> int:
        """Equal parts of the range that tokens stand for."""
        return self.bins

    @property
    def bin_width(self) -> NDArray[np.float32]:
        """``[D]``, env units; decoding errs by at most half of it inside the range."""
        return (self._bounds()[1] - self._bounds()[0]) / np.float32(self.bins)

    def encode(self, actions: NDArray[np.floating[Any]]) -> NDArray[np.int16]:
        """Tokens ``[..., D]`` of ``actions`` ``[..., D]`` (env units); values outside the range are clipped."""
        low, _ = self._bounds()
        scaled = (np.asarray(actions, dtype=np.float32) - low) / self.bin_width
        tokens: NDArray[np.int16] = np.clip(np.floor(scaled), 0, self.bins - 1).astype(np.int16)
        return tokens

    def decode(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Bin centres ``[..., D]`` float32 (env units) of ``tokens`` ``[..., D]``."""
        assert tokens.size == 0 or (tokens.min() >= 0 and tokens.max() < self.bins), "token outside the bins"
        low, _ = self._bounds()
        return (low + (tokens.astype(np.float32) + np.float32(0.5)) * self.bin_width).astype(np.float32)

    def to_json(self) -> dict[str, object]:
        """As JSON types; ``from_json`` is the inverse."""
        return {"low": list(self.low), "high": list(self.high), "bins": self.bins}

    @staticmethod
    def from_json(data: dict[str, object]) -> ActionTokenizer:
        """Read what ``to_json`` wrote."""
        return ActionTokenizer(**data)  # type: ignore[arg-type]

    def _bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return np.asarray(self.low, dtype=np.float32), np.asarray(self.high, dtype=np.float32)
