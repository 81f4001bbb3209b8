"""OpenVLA's action tokens: 256 ids at the end of the vocabulary, counted from the end, for 255 bins of the statistics' range.

``np.digitize`` over 256 edges from -1 to 1 numbers an action 1 to 256, and id ``vocabulary - number`` stands for it. The
256th token only stands for the upper end itself and decodes as the 255th does. Token ``i`` here is number ``i + 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from policies.tokens import ActionTokenizer


@dataclass(frozen=True, init=False)
class OpenVLATokenizer(ActionTokenizer):
    """``low`` and ``high``: q01 and q99 of the statistics, or -1 and 1 in dimensions that these leave alone."""

    libero_gripper: bool
    scheme: ClassVar[str] = "openvla"
    """How a dataset says that its tokens are these."""

    def __init__(
        self, low: Sequence[float], high: Sequence[float], bins: int, *, libero_gripper: bool = False
    ) -> None:
        super().__init__(low, high, bins)
        object.__setattr__(self, "libero_gripper", libero_gripper)

    def to_json(self) -> dict[str, object]:
        """As JSON types; tells these tokens from equal parts of a range."""
        return {**super().to_json(), "scheme": self.scheme, "libero_gripper": self.libero_gripper}

    @property
    def parts(self) -> int:
        """One less than there are tokens: the last two stand for the same."""
        return self.bins - 1

    @property
    def bin_width(self) -> NDArray[np.float32]:
        """``[D]``, in the checkpoint's units."""
        low, high = self._bounds()
        return (high - low) / np.float32(self.bins - 1)

    def encode(self, actions: NDArray[np.floating[Any]]) -> NDArray[np.int16]:
        """Tokens ``[..., D]`` of env actions ``[..., D]``; values outside the range are clipped."""
        low, high = (bound.astype(np.float64) for bound in self._bounds())
        raw = np.asarray(actions, dtype=np.float64)
        if self.libero_gripper:
            raw = np.concatenate([raw[..., :-1], (1 - np.sign(raw[..., -1:])) / 2], axis=-1)
        scaled = np.clip(2 * (raw - low) / (high - low) - 1, -1, 1)
        tokens: NDArray[np.int16] = (np.digitize(scaled, np.linspace(-1, 1, self.bins)) - 1).astype(np.int16)
        return tokens

    def decode(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Env actions ``[..., D]`` float32 of ``tokens`` ``[..., D]``: bin centres, un-normalised."""
        assert tokens.size == 0 or (tokens.min() >= 0 and tokens.max() < self.bins), "token outside the bins"
        low, high = (bound.astype(np.float64) for bound in self._bounds())
        edges = np.linspace(-1, 1, self.bins)
        centres = (edges[:-1] + edges[1:]) / 2
        scaled = centres[np.clip(tokens, 0, self.bins - 2)]
        actions = 0.5 * (scaled + 1) * (high - low) + low
        if self.libero_gripper:
            actions[..., -1] = -np.sign(2 * actions[..., -1] - 1)
        decoded: NDArray[np.float32] = actions.astype(np.float32)
        return decoded
