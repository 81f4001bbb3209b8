"""A Gymnasium environment whose steps wait for a gate, fail or end their process when a test says so."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

import gymnasium
import numpy as np

HELD_SEED = 7
"""An episode with this seed waits for ``gate`` in every step; all others go on."""
gate = threading.Event()


class Gated(gymnasium.Env[Any, Any]):
    """A counter; the action is added. ``mode``: what a step above 0.5 does."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None, mode: str = "count") -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self._mode = mode
        self._seed, self._sum, self._count = 0, 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._seed, self._sum, self._count = seed or 0, float(self.np_random.uniform()), 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        if self._seed == HELD_SEED:
            assert gate.wait(60)
        if self._mode == "raise" and action[0] > 0.5:
            raise RuntimeError("the simulator fell over")
        if self._mode == "exit" and action[0] > 0.5:
            os._exit(7)
        self._sum += float(action[0])
        self._count += 1
        return self._observe(), float(action[1]), self._sum > 3, False, {"is_success": self._sum > 3}

    def _observe(self) -> Any:
        return np.array([self._sum, self._count], np.float32)

    def render(self) -> Any:
        return np.full((8, 8, 3), self._count, np.uint8)


gymnasium.register("Gated-v0", entry_point=Gated)
