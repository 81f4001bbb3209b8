"""One imagined world as a Gymnasium environment, for code that knows no vector environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from configs.errors import EnvError
from world_models.imagined_vector_env import FPS, ImaginedVectorEnv, Info

Observation = dict[str, NDArray[Any]]


class ImaginedEnv(gymnasium.Env[Observation, NDArray[Any]]):
    """The only world of ``worlds``: a world at a time costs nearly as much as many, so train in the vector environment."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 (Gymnasium's own convention)

    def __init__(self, worlds: ImaginedVectorEnv, *, render_mode: str | None = None) -> None:
        """``worlds``: a vector environment of one world in ``DISABLED`` mode."""
        assert worlds.num_envs == 1
        assert worlds.autoreset_mode is AutoresetMode.DISABLED
        self.worlds, self.render_mode = worlds, render_mode
        self.worlds.render_mode = render_mode
        self.observation_space = worlds.single_observation_space
        self.action_space = worlds.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode. ``options`` as in ``ImaginedVectorEnv.reset``."""
        super().reset(seed=seed)
        # A draw of this environment's own generator, so that an unseeded reset goes on where the seeded one was.
        observation, info = self.worlds.reset(seed=int(self.np_random.integers(2**62)), options=options)
        return _only(observation), _only(info)

    def step(self, action: NDArray[Any]) -> tuple[Observation, float, bool, bool, Info]:
        """One decision with ``action`` ``[R * D]``.

        Raises:
            EnvError: the action lies outside the space, or the episode has ended.
        """
        if not self.worlds.running.all():
            raise EnvError("the episode has ended, or none has begun", remedy="call reset() first")
        observation, reward, terminated, truncated, info = self.worlds.step(np.asarray(action)[None])
        return (
            _only(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _only(info),
        )  # fmt: skip

    def render(self) -> Any:
        """The frame under ``rgb_array``, else None."""
        frames = self.worlds.render()
        return None if frames is None else frames[0]


def _only(batch: dict[str, Any]) -> dict[str, Any]:
    """The first row of every array; Gymnasium's masks of a vector's infos say nothing of one world."""
    return {name: values[0] for name, values in batch.items() if not name.startswith("_")}
