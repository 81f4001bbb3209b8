"""LIBERO as Gymnasium environments; importing this module registers ``reverie/Libero-v0``.

    gymnasium.make("platform.envs.libero:reverie/Libero-v0", suite="libero_object", tasks=[0])
    gymnasium.make_vec("platform.envs.libero:reverie/Libero-v0", num_envs=8, suite="libero_spatial", processes=4)

``reset(seed=7)`` places the objects anew, ``reset(options={"task": 3, "trial": 12})`` starts task 3 (an index into the
chosen tasks) from init state 12 of its file. Every env step is drawn; a decision environment draws less.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from configs.errors import EnvError
from configs.libero import LiberoConfig

from .base import EnvSpec, Observation
from .libero_env import LiberoDecisionEnv, make_libero, trial_seed
from .libero_suites import libero_spec

ENV_ID = "reverie/Libero-v0"
FPS = 20
_ONLY = np.zeros(1, np.int64)

Info = dict[str, Any]
Seen = dict[str, Any]


def observation_space(spec: EnvSpec) -> spaces.Dict:
    """``images`` {camera: uint8 ``[H, W, 3]``}, ``proprio`` ``[8]``, ``instruction``."""
    images: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(0, 255, (*size, 3), np.uint8) for name, size in spec.cameras.items()
    }
    longest = max(len(text) for text in spec.instructions)
    return spaces.Dict(
        {
            "images": spaces.Dict(images),
            "proprio": spaces.Box(-np.inf, np.inf, (spec.proprio_dim,), np.float32),
            "instruction": spaces.Text(longest, charset=string.ascii_lowercase + string.digits + " ,.'-"),
        }
    )


def action_space(spec: EnvSpec) -> spaces.Space[NDArray[np.float32]]:
    """Change of the gripper's pose (6) and closing it (1), in [-1, 1]."""
    return spaces.Box(-1, 1, (spec.action_dim,), np.float32)


def chosen_start(
    spec: EnvSpec, options: dict[str, Any] | None, row: int = 0
) -> tuple[str | None, int | None]:
    """Task name and seed that ``options`` ask for; both may be sequences with one entry per world.

    Raises:
        EnvError: a task that is not there.
    """

    def entry(name: str) -> int | None:
        value = (options or {}).get(name)
        if value is None:
            return None
        return int(value) if np.ndim(value) == 0 else int(value[row])

    task, trial = entry("task"), entry("trial")
    if task is not None and not 0 <= task < len(spec.tasks):
        raise EnvError(
            f"{spec.name} has no task {task} here", where="options", remedy=f"give 0 to {len(spec.tasks) - 1}"
        )
    if trial is not None and trial < 0:
        raise EnvError(f"trial {trial}", where="options", remedy="trials begin at 0")
    return (None if task is None else spec.tasks[task]), (None if trial is None else trial_seed(trial))


class LiberoEnv(gymnasium.Env[Seen, NDArray[np.float32]]):
    """One LIBERO simulator in this process."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 (Gymnasium's own convention)

    def __init__(
        self, config: LiberoConfig | None = None, *, render_mode: str | None = None, **fields: Any
    ) -> None:
        self.config = LiberoConfig(**fields) if config is None else config
        self.render_mode = render_mode
        self._env = LiberoDecisionEnv(self.config, 1, chunk=1, replan=1)
        self.observation_space = observation_space(self._env.spec)
        self.action_space = action_space(self._env.spec)
        self._last: Observation | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, Info]:
        """Start an episode; without seed and trial the generator draws a start."""
        super().reset(seed=seed, options=options)
        task, start = chosen_start(self._env.spec, options)
        if start is None:
            start = int(self.np_random.integers(2**31)) if seed is None else seed
        tasks = None if task is None else [task]
        self._last = self._env.reset(_ONLY, np.array([start], np.int64), tasks)
        return _single(self._last, 0), self._info(success=False)

    def step(self, action: NDArray[np.float32]) -> tuple[Seen, float, bool, bool, Info]:
        """One env step with ``action`` ``[7]``."""
        actions = np.asarray(action, np.float32).reshape(1, 1, -1)
        result = self._env.step(_ONLY, actions)
        self._last = result.observation
        success = bool(result.terminated[0])
        reward, late = float(result.rewards[0, 0]), bool(result.truncated[0])
        return _single(self._last, 0), reward, success, late, self._info(success=success)

    def render(self) -> Any:
        """The first camera's newest frame under ``rgb_array``, else None."""
        if self.render_mode is None or self._last is None:
            return None
        return next(iter(self._last.images.values()))[0]

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()

    def _info(self, *, success: bool) -> Info:
        return {"is_success": success, "task": self._env.tasks(_ONLY)[0]}


class LiberoVectorEnv(VectorEnv[Seen, NDArray[np.float32], NDArray[Any]]):
    """N simulators in ``config.processes`` processes. A world that ended starts anew at the next step."""

    def __init__(
        self,
        num_envs: int = 1,
        config: LiberoConfig | None = None,
        *,
        render_mode: str | None = None,
        **fields: Any,
    ) -> None:
        self.config = LiberoConfig(**fields) if config is None else config
        self.num_envs, self.render_mode = num_envs, render_mode
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": FPS,
            "autoreset_mode": AutoresetMode.NEXT_STEP,
        }
        self.spec_offered = libero_spec(self.config)
        self._env = make_libero(self.config, num_envs, chunk=1, replan=1)
        self.single_observation_space = observation_space(self.spec_offered)
        self.single_action_space = action_space(self.spec_offered)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seen: list[Observation | None] = [None] * num_envs
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, Info]:
        """Start an episode in every world; world i takes ``seed + i``, or the i-th entry of what is a sequence."""
        seeds: Sequence[int | None] = [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            super().reset(seed=int(seed))
            seeds = [int(seed) + row for row in range(self.num_envs)]
        elif seed is not None:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise EnvError(f"{len(seeds)} seeds for {self.num_envs} worlds", remedy="give one seed per world")
        self._start(np.arange(self.num_envs), seeds, options)
        return self._observation(), self._info(np.zeros(self.num_envs, np.bool_))

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[Seen, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """One env step in every world with ``actions`` ``[N, 7]``."""
        going, again = np.flatnonzero(~self._ended), np.flatnonzero(self._ended)
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        if len(again):
            self._start(again, [None] * len(again), None)
        if len(going):
            result = self._env.step(going, np.asarray(actions, np.float32)[going, None])
            rewards[going] = result.rewards[:, 0]
            terminated[going], truncated[going] = result.terminated, result.truncated
            self._remember(going, result.observation)
        self._ended = terminated | truncated
        return self._observation(), rewards, terminated, truncated, self._info(terminated)

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """The first camera's newest frame per world under ``rgb_array``, else None."""
        if self.render_mode is None:
            return None
        return tuple(next(iter(seen.images.values()))[0] for seen in self._seen if seen is not None)

    def close_extras(self, **kwargs: Any) -> None:
        """End the processes."""
        self._env.close()

    def _start(
        self, rows: NDArray[np.int64], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        starts, tasks = [], []
        for row, seed in zip(rows, seeds, strict=True):
            task, start = chosen_start(self.spec_offered, options, int(row))
            drawn = int(self.np_random.integers(2**31)) if seed is None else int(seed)
            starts.append(drawn if start is None else start)
            tasks.append(task or self.spec_offered.tasks[starts[-1] % len(self.spec_offered.tasks)])
        self._remember(rows, self._env.reset(rows, np.array(starts, np.int64), tasks))
        self._ended[rows] = False

    def _remember(self, rows: NDArray[np.int64], observation: Observation) -> None:
        for index, row in enumerate(rows):
            self._seen[row] = observation.take(np.array([index]))

    def _observation(self) -> Seen:
        rows = [_single(seen, 0) for seen in self._seen if seen is not None]
        return {
            "images": {name: np.stack([row["images"][name] for row in rows]) for name in rows[0]["images"]},
            "proprio": np.stack([row["proprio"] for row in rows]),
            "instruction": tuple(row["instruction"] for row in rows),
        }

    def _info(self, success: NDArray[np.bool_]) -> Info:
        everywhere = np.ones(self.num_envs, np.bool_)
        return {"is_success": success.copy(), "_is_success": everywhere}


def _single(observation: Observation, row: int) -> Seen:
    return {
        "images": {name: frames[row] for name, frames in observation.images.items()},
        "proprio": observation.proprio[row],
        "instruction": observation.instructions[row],
    }


if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        ENV_ID,
        entry_point="platform.envs.libero:LiberoEnv",
        vector_entry_point="platform.envs.libero:LiberoVectorEnv",
    )
