"""What every folder of episodes offers, whatever its format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from buffers.exchange.trajectory import Trajectory
from configs.errors import DataError

Success = Literal["recorded", "all", "none"]


@dataclass(frozen=True)
class Choices:
    """What the user says where a format leaves it open."""

    success: Success = "recorded"
    """Which episodes succeeded, where the dataset does not record it."""
    cameras: dict[str, str] = field(default_factory=dict)
    """Our name to the dataset's; empty takes all under their own names."""
    camera_size: int | None = None
    """Height and width to which frames are resized; None keeps theirs."""


@dataclass(frozen=True)
class Contents:
    """What a folder says of its episodes."""

    format: str
    episodes: int
    env_steps: int
    cameras: dict[str, tuple[int, int]]
    """As the choices name and size them."""
    proprio_dim: int
    action_dim: int
    instructions: tuple[str, ...]
    longest: int
    """Env steps of the longest episode."""
    fps: float | None
    """Env steps per second, where the format says it."""


class Source(Protocol):
    """A folder of episodes that another program wrote."""

    contents: Contents

    def actions(self) -> Iterator[NDArray[np.float32]]:
        """``[n, D]`` of every episode, without its frames."""
        ...

    def trajectories(self) -> Iterator[Trajectory]:
        """Every episode, one at a time. DataError for a torn one, naming it."""
        ...


class Cameras:
    """Which of a dataset's cameras are taken, under which names, and how large."""

    def __init__(self, found: dict[str, tuple[int, int]], choices: Choices, *, where: Path) -> None:
        """Args:
            found: The dataset's cameras, name to (height, width).
            choices: The user's.
            where: The folder, for errors.

        Raises:
            DataError: a chosen camera is not there.
        """
        self.theirs = choices.cameras or {name: name for name in found}
        """Our name to theirs."""
        for name in self.theirs.values():
            if name not in found:
                raise DataError(
                    f"there is no camera {name!r}", where=str(where),
                    remedy=f"choose among {', '.join(sorted(found)) or 'none: it has no camera'}",
                )  # fmt: skip
        self._size = choices.camera_size
        self.sizes = {ours: self._sized(found[name]) for ours, name in self.theirs.items()}
        """Our name to (height, width)."""

    def _sized(self, size: tuple[int, int]) -> tuple[int, int]:
        return size if self._size is None else (self._size, self._size)

    def fit(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A frame ``[H, W, 3]`` in the chosen size; pixels are averaged, aspect is not kept."""
        if self._size is None or frame.shape[:2] == (self._size, self._size):
            return frame
        from PIL import Image

        return np.asarray(Image.fromarray(frame).resize((self._size, self._size), Image.Resampling.BILINEAR))


def outcome(recorded: bool | None, choices: Choices) -> bool | None:
    """Whether an episode succeeded: as the user says or, by default, as recorded; None where neither tells."""
    return recorded if choices.success == "recorded" else choices.success == "all"
