"""The environment of ``async_vs_sync.py``: reaching a spot, in steps that wait like a simulator in another process.

Importing this registers ``Waiting-v0``; ``env.id=waiting_env:Waiting-v0`` does so where this folder is on the path.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gymnasium
import numpy as np

SIZE = 32
REACH = 0.15
SPEED = 0.02


class Waiting(gymnasium.Env[Any, Any]):
    """A dot on a line that has to come near a spot; coming nearer is rewarded. A step waits a log-normal time and computes nothing.

    Args:
        median_s: Median of the time of a step, in seconds; 0 does not wait.
        sigma: Deviation of its logarithm; 0 makes every step alike.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None, median_s: float = 0.01, sigma: float = 0.0) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self._median_s, self._sigma = median_s, sigma
        self._dot = self._spot = np.zeros(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Dot and spot somewhere, apart from each other."""
        super().reset(seed=seed)
        self._spot = self.np_random.uniform(0.1, 0.9, 1)
        self._dot = self._spot
        while np.abs(self._dot - self._spot).max() < 2 * REACH:
            self._dot = self.np_random.uniform(0.1, 0.9, 1)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        """Wait, then move by ``action`` ``[1]``."""
        wait_s = self._median_s * float(np.exp(self._sigma * self.np_random.standard_normal()))
        time.sleep(wait_s)
        before = np.abs(self._dot - self._spot).sum()
        self._dot = np.clip(self._dot + SPEED * np.asarray(action), 0, 1)
        there = bool(np.abs(self._dot - self._spot).max() < REACH)
        reward = float(before - np.abs(self._dot - self._spot).sum()) + float(there)
        return self._observe(), reward, there, False, {"is_success": there}

    def _observe(self) -> Any:
        return np.concatenate([self._dot, self._spot - self._dot]).astype(np.float32)

    def render(self) -> Any:
        """Spot green, dot red: uint8 ``[32, 32, 3]``."""
        frame = np.zeros((SIZE, SIZE, 3), np.uint8)
        for place, half, channel in ((self._spot, 3, 1), (self._dot, 2, 0)):
            y, x = SIZE // 2, int(place[0] * (SIZE - 1))
            frame[max(0, y - half) : y + half + 1, max(0, x - half) : x + half + 1, channel] = 255
        return frame


gymnasium.register("Waiting-v0", entry_point=Waiting, disable_env_checker=True, order_enforce=False)
