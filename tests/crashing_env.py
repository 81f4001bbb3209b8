"""A Gymnasium environment that breaks after a while."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np

CRASH_AT = 40


class Crash(gymnasium.Env[Any, Any]):
    """Forty good steps, then an error."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps > CRASH_AT:
            raise RuntimeError("the simulator fell over")
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self) -> Any:
        return np.zeros((32, 32, 3), np.uint8)


gymnasium.register("Crash-v0", entry_point=Crash)
