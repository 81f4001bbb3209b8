"""The tabletop as Gymnasium environments; importing this module registers ``reverie/Tabletop-v0``.

    gymnasium.make("platform.envs.tabletop:reverie/Tabletop-v0", tasks=["push"], camera_size=64)
    gymnasium.make_vec("platform.envs.tabletop:reverie/Tabletop-v0", num_envs=64)

Actions are (dx, dy, grip) in [-1, 1]: a move in units of ``arm_speed`` (x right, y down in the picture), and closing the
gripper (or lowering the pusher) where grip is above 0. See ``tabletop_tasks`` for the tasks.
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

from configs.env import TabletopConfig
from configs.errors import EnvError

from .decision import start_keys
from .tabletop_tasks import all_instructions, mix
from .tabletop_world import TabletopWorlds

ENV_ID = "reverie/Tabletop-v0"
FPS = 12

Info = dict[str, Any]
SingleObservation = dict[str, Any]
BatchObservation = dict[str, Any]


def observation_space(config: TabletopConfig) -> spaces.Dict:
    """Of one world: ``image`` uint8 ``[H, W, 3]``, ``proprio`` (x, y, opening) in [0, 1], ``instruction``."""
    size = config.camera_size
    longest = max(len(text) for text in all_instructions(config.tasks))
    return spaces.Dict(
        {
            "image": spaces.Box(0, 255, (size, size, 3), np.uint8),
            "proprio": spaces.Box(0, 1, (3,), np.float32),
            "instruction": spaces.Text(longest, charset=string.ascii_lowercase + " "),
        }
    )


def action_space() -> spaces.Space[NDArray[np.float32]]:
    """Of one world."""
    return spaces.Box(-1, 1, (3,), np.float32)


class TabletopVectorEnv(VectorEnv[BatchObservation, NDArray[np.float32], NDArray[Any]]):
    """N tabletops stepped together with array operations.

    World i draws its starts from ``seed + i`` (or the i-th of a list), and every later start from its own earlier one.

    Args:
        num_envs: Worlds.
        config: The scene and its tasks; alternatively its fields by name.
        autoreset_mode: Gymnasium's three modes.
        render_mode: ``rgb_array`` lets ``render`` return the frames.
    """

    def __init__(
        self,
        num_envs: int = 1,
        config: TabletopConfig | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **fields: Any,
    ) -> None:
        self.config = _one_config(config, fields)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": FPS,
            "autoreset_mode": self.autoreset_mode,
        }
        self.single_observation_space = observation_space(self.config)
        self.single_action_space = action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.worlds = TabletopWorlds(self.config, num_envs)
        self._seeded = np.zeros(num_envs, np.bool_)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[BatchObservation, Info]:
        """Start an episode in every world, or in those of ``options["reset_mask"]`` (bool ``[N]``).

        Raises:
            EnvError: a list of seeds or a mask of another length.
        """
        if isinstance(seed, (int, np.integer)):
            super().reset(seed=int(seed))
            seeds: Sequence[int | None] = [int(seed) + world for world in range(self.num_envs)]
        else:
            seeds = [None] * self.num_envs if seed is None else seed
        if len(seeds) != self.num_envs:
            raise EnvError(f"{len(seeds)} seeds for {self.num_envs} worlds", remedy="give one seed per world")
        rows = np.flatnonzero(self._reset_mask(options))
        self._restart(rows, [seeds[int(row)] for row in rows])
        return self._observation(), self._info(rows, np.zeros(len(rows), np.bool_))

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """One env step in every world with ``actions`` ``[N, 3]``; a world that ended resets by the autoreset mode.

        Raises:
            EnvError: an action has another shape or is not finite; a world that ended was not reset (DISABLED).
        """
        actions = np.asarray(actions, np.float32)
        if actions.shape != (self.num_envs, 3) or not np.isfinite(actions).all():
            raise EnvError(
                f"actions of shape {actions.shape}, or not finite", remedy=f"give finite [{self.num_envs}, 3]"
            )
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise EnvError(
                f"world {int(self._ended.argmax())} has ended",
                remedy='call reset(options={"reset_mask": terminated | truncated}) first',
            )
        again = np.flatnonzero(self._ended)
        going = np.flatnonzero(~self._ended)
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        self._restart(again, [None] * len(again))
        outcome = self.worlds.step(going, actions[going])
        rewards[going] = outcome.reward
        terminated[going], truncated[going] = outcome.terminated, outcome.truncated
        everywhere = np.arange(self.num_envs)
        self._ended = terminated | truncated
        ended = np.flatnonzero(self._ended)
        if self.autoreset_mode is not AutoresetMode.SAME_STEP or not len(ended):
            return self._observation(), rewards, terminated, truncated, self._info(everywhere, terminated)
        final = self._final(ended, terminated)
        self._restart(ended, [None] * len(ended))
        info = {**self._info(everywhere, np.zeros(self.num_envs, np.bool_)), **final}
        return self._observation(), rewards, terminated, truncated, info

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """One frame per world under ``rgb_array``, else None."""
        if self.render_mode is None:
            return None
        return tuple(self.worlds.draw(np.arange(self.num_envs)))

    def state(self) -> dict[str, Any]:
        """Arrays that ``load`` continues from bit for bit (generators of unseeded worlds apart)."""
        return {"worlds": self.worlds.state(), "ended": self._ended.copy(), "seeded": self._seeded.copy()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; DataError when it is another environment's."""
        self.worlds.load(state["worlds"])
        self._ended[:] = state["ended"]
        self._seeded[:] = state["seeded"]

    def _reset_mask(self, options: dict[str, Any] | None) -> NDArray[np.bool_]:
        if options is None or "reset_mask" not in options:
            return np.ones(self.num_envs, np.bool_)
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise EnvError(
                "reset_mask has another type or shape", remedy=f"give a bool array [{self.num_envs}]"
            )
        if not mask.any():
            raise EnvError("reset_mask selects no world", remedy="set at least one entry")
        return mask

    def _restart(self, rows: NDArray[np.int64], seeds: list[int | None]) -> None:
        """A seed gives a world its start; without one its last start gives the next; the first comes from np_random."""
        if not len(rows):
            return
        keys = mix(self.worlds.key[rows], 1)
        fresh = np.flatnonzero(~self._seeded[rows])
        if len(fresh):
            keys[fresh] = start_keys(self.np_random.integers(2**62, size=len(fresh)))
        given = [i for i, seed in enumerate(seeds) if seed is not None]
        keys[given] = start_keys(np.array([seed for seed in seeds if seed is not None], np.int64))
        self._seeded[rows] = True
        self._ended[rows] = False
        self.worlds.reset(rows, keys)

    def _observation(self) -> BatchObservation:
        rows = np.arange(self.num_envs)
        return {
            "image": self.worlds.draw(rows),
            "proprio": self.worlds.proprio(rows),
            "instruction": tuple(self.worlds.instructions(rows)),
        }

    def _info(self, rows: NDArray[np.int64], success: NDArray[np.bool_]) -> Info:
        """Gymnasium's vector infos: arrays over all worlds, and under ``_key`` which worlds have them."""
        present = np.zeros(self.num_envs, np.bool_)
        present[rows] = True
        flags = np.zeros(self.num_envs, np.bool_)
        flags[rows] = success
        tasks = np.full(self.num_envs, None, object)
        tasks[rows] = self.worlds.task_names(rows)
        return {"is_success": flags, "_is_success": present, "task": tasks, "_task": present.copy()}

    def _final(self, ended: NDArray[np.int64], terminated: NDArray[np.bool_]) -> Info:
        """The true last observation and info of the worlds that are about to restart."""
        frames, proprio = self.worlds.draw(ended), self.worlds.proprio(ended)
        words = self.worlds.instructions(ended)
        final = np.full(self.num_envs, None, object)
        for index, row in enumerate(ended):
            final[row] = {"image": frames[index], "proprio": proprio[index], "instruction": words[index]}
        return {
            "final_obs": final,
            "_final_obs": self._ended.copy(),
            "final_info": self._info(ended, terminated[ended]),
            "_final_info": self._ended.copy(),
        }


class TabletopEnv(gymnasium.Env[SingleObservation, NDArray[np.float32]]):
    """One tabletop. The same seed gives the same start as in a vector environment."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 (Gymnasium's own convention)

    def __init__(
        self, config: TabletopConfig | None = None, *, render_mode: str | None = None, **fields: Any
    ) -> None:
        self.config = _one_config(config, fields)
        self.render_mode = render_mode
        self.observation_space = observation_space(self.config)
        self.action_space = action_space()
        self.worlds = TabletopWorlds(self.config, 1)
        self._row = np.zeros(1, np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[SingleObservation, Info]:
        """Start an episode; without a seed the generator draws one."""
        super().reset(seed=seed, options=options)
        start = self.np_random.integers(2**62) if seed is None else seed
        self.worlds.reset(self._row, start_keys(np.array([start], np.int64)))
        return self._observation(), self._info(success=False)

    def step(self, action: NDArray[np.float32]) -> tuple[SingleObservation, float, bool, bool, Info]:
        """One env step with ``action`` ``[3]``; EnvError when it has another shape or is not finite."""
        action = np.asarray(action, np.float32)
        if action.shape != (3,) or not np.isfinite(action).all():
            raise EnvError(f"action of shape {action.shape}, or not finite", remedy="give 3 finite numbers")
        outcome = self.worlds.step(self._row, action[None])
        success = bool(outcome.terminated[0])
        return (
            self._observation(),
            float(outcome.reward[0]),
            success,
            bool(outcome.truncated[0]),
            self._info(success=success),
        )

    def render(self) -> Any:
        """The frame under ``rgb_array``, else None."""
        return None if self.render_mode is None else self.worlds.draw(self._row)[0]

    def _observation(self) -> SingleObservation:
        return {
            "image": self.worlds.draw(self._row)[0],
            "proprio": self.worlds.proprio(self._row)[0],
            "instruction": self.worlds.instructions(self._row)[0],
        }

    def _info(self, *, success: bool) -> Info:
        return {"is_success": success, "task": self.worlds.task_names(self._row)[0]}


def _one_config(config: TabletopConfig | None, fields: dict[str, Any]) -> TabletopConfig:
    if config is not None and fields:
        raise EnvError("both a config and its fields", where=", ".join(fields), remedy="give one of them")
    return TabletopConfig(**fields) if config is None else config


if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        ENV_ID,
        entry_point="platform.envs.tabletop:TabletopEnv",
        vector_entry_point="platform.envs.tabletop:TabletopVectorEnv",
    )
