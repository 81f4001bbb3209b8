"""A Gymnasium environment that writes every step of a training episode into a file: what no death of a process can take back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

FILE = "REVERIE_TEST_STEPS"
"""Environment variable that names the file; one byte per step."""
FIRST_TRAINING_SEED = 10_000_000


def counted() -> int:
    """Steps so far."""
    path = Path(os.environ[FILE])
    return path.stat().st_size if path.exists() else 0


class Counted(gymnasium.Env[Any, Any]):
    """A point that the action moves; it succeeds where the sum of what it saw is large."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self._counts = False
        self._place = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._counts = (seed or 0) >= FIRST_TRAINING_SEED
        self._place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._place.copy(), {}

    def step(self, action: Any) -> Any:
        if self._counts:
            with open(os.environ[FILE], "ab", buffering=0) as file:
                file.write(b".")
        self._place += 0.3 * np.asarray(action, np.float32)
        success = bool(self._place[0] > 0.8)
        return self._place.copy(), float(success), success, False, {"is_success": success}

    def render(self) -> Any:
        return np.full((32, 32, 3), int(np.clip(127 + 60 * self._place[0], 0, 255)), np.uint8)


gymnasium.register("Counted-v0", entry_point=Counted)
