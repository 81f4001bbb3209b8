"""Imagined worlds as a Gymnasium vector environment: one step is one decision in every world.

The imagination role steps it, and so can any algorithm that trains on vector environments. ``platform.envs.imagined`` makes
one from folders and registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from configs.errors import EnvError
from world_models.base import ModelSpec
from world_models.imagined_actions import Actions
from world_models.imagined_env import ImaginedObservation, ImaginedStep, ImaginedWorlds, Rows, Starts

Info = dict[str, Any]
BatchObservation = dict[str, Any]
Stepped = tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]

PROPRIO, INSTRUCTION = "proprio", "instruction"
"""Keys of an observation beside the cameras' names."""
FPS = 6


StartSource = Callable[[int, np.random.Generator], Starts]
"""Draws as many starts as it is asked for, with that generator."""


def observation_space(spec: ModelSpec) -> spaces.Dict:
    """Of one world: each camera uint8 ``[H, W, 3]``, ``proprio`` ``[P]``, word ids of the ``instruction`` ``[W]``."""
    parts: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(0, 255, (*size, 3), np.uint8) for name, size in spec.cameras.items()
    }
    parts[PROPRIO] = spaces.Box(-np.inf, np.inf, (spec.proprio_dim,), np.float32)
    parts[INSTRUCTION] = spaces.MultiDiscrete([spec.num_words] * spec.instruction_length)
    return spaces.Dict(parts)


class ImaginedVectorEnv(VectorEnv[BatchObservation, NDArray[Any], NDArray[Any]]):
    """N imagined worlds. Success terminates an episode; the horizon, numbers that are not finite, and draws that disagree
    truncate it, the last two before the step that they spoil.

    Starts and the models' noise come from one generator, so the same seed and actions give the same episodes in all
    worlds together; no world's episodes depend on its own seed alone. In ``DISABLED`` mode a world that has ended stays
    where it is, without reward, until it is reset: the others may go on.
    """

    def __init__(
        self,
        worlds: ImaginedWorlds,
        num_envs: int,
        *,
        horizon: int,
        actions: Actions,
        starts: StartSource | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        """``horizon``: decisions after which an episode is truncated. Without ``starts`` each reset brings its own."""
        spec = worlds.obs_model.spec
        self.worlds, self.num_envs, self.horizon = worlds, num_envs, horizon
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {
            "render_modes": ["rgb_array"], "render_fps": FPS, "autoreset_mode": self.autoreset_mode,
        }  # fmt: skip
        self.single_observation_space = observation_space(spec)
        self.single_action_space = actions.space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._actions, self._starts = actions, starts
        self._age = np.zeros(num_envs, np.int64)
        """Decisions since each world's start."""
        self._terminated, self._truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self._begun = False

    @property
    def running(self) -> NDArray[np.bool_]:
        """``[N]``: worlds whose episodes go on."""
        return self.worlds.running

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[BatchObservation, Info]:
        """Start an episode in every world, or in those of ``options["reset_mask"]`` (bool ``[N]``).

        ``options["starts"]`` gives real observations to start from, one per such world in their order;
        ``options["horizon"]`` another horizon from now on.

        Raises:
            EnvError: a mask of another shape, a mask before the first whole reset, or no starts where there is no source.
            DataError: starts whose shapes are not the models'.
        """
        options = options or {}
        if seed is not None:
            self._reseed(seed)
        self.horizon = int(options.get("horizon", self.horizon))
        rows = np.flatnonzero(self._reset_mask(options))
        self._begin(rows, options.get("starts"))
        return self._observed(self.worlds.observe()), self._info(None, rows)

    def step(self, actions: NDArray[Any]) -> Stepped:
        """One decision in every world with ``actions`` ``[N, R * D]``; a world that ended starts anew by the autoreset mode.

        Raises:
            EnvError: an action lies outside the space, or nothing was reset yet.
        """
        self._require(actions)
        ended = np.flatnonzero(self._terminated | self._truncated)
        happened = self.worlds.step(self._actions.tokens(actions))
        self._age += happened.stepped
        # Where nothing was stepped an episode has ended before: it says so until it starts anew.
        self._terminated |= happened.terminated
        self._truncated |= happened.failed | happened.uncertain | (self._age >= self.horizon)
        self._truncated &= ~self._terminated
        self.worlds.stop(np.flatnonzero(self._truncated))
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            return self._after_ended(happened, ended)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            return self._without_ended(happened)
        return self._outcome(happened, self._info(happened, np.arange(self.num_envs)))

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """A frame of the first camera per world under ``rgb_array``, else None."""
        if self.render_mode is None or not self._begun:
            return None
        images = self.worlds.observe().images
        return tuple(images[next(iter(self.worlds.obs_model.spec.cameras))])

    def state(self) -> dict[str, Any]:
        """Random state of the models; episodes are not part of it."""
        return self.worlds.state()

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; every world has to be reset."""
        self.worlds.load(state)
        self._begun = False

    def _after_ended(self, happened: ImaginedStep, ended: Rows) -> Stepped:
        """Worlds that had ended before this step are where their next episodes start; their actions went nowhere."""
        if len(ended):
            self._begin(ended, None)
            happened.observation = self.worlds.observe()
        info = self._info(happened, np.setdiff1d(np.arange(self.num_envs), ended))
        return self._outcome(happened, info)

    def _without_ended(self, happened: ImaginedStep) -> Stepped:
        """Worlds that end in this step start anew in it; their last observation is in the info."""
        ended = np.flatnonzero(self._terminated | self._truncated)
        terminated, truncated = self._terminated.copy(), self._truncated.copy()
        info = self._info(happened, np.arange(self.num_envs))
        if len(ended):
            last, present = self._observed(happened.observation), np.zeros(self.num_envs, np.bool_)
            present[ended] = True
            final = np.full(self.num_envs, None, object)
            for row in ended:
                final[row] = {name: part[row] for name, part in last.items()}
            self._begin(ended, None)
            happened.observation = self.worlds.observe()
            info = {
                **self._info(happened, np.flatnonzero(~present)),
                "final_obs": final, "_final_obs": present,
                "final_info": self._info(happened, ended), "_final_info": present.copy(),
            }  # fmt: skip
        return (
            self._observed(happened.observation),
            happened.rewards.astype(np.float64),
            terminated,
            truncated,
            info,
        )

    def _outcome(self, happened: ImaginedStep, info: Info) -> Stepped:
        return (
            self._observed(happened.observation),
            happened.rewards.astype(np.float64),
            self._terminated.copy(),
            self._truncated.copy(),
            info,
        )

    def _begin(self, rows: Rows, starts: Starts | None) -> None:
        if starts is None:
            if self._starts is None:
                raise EnvError(
                    "these worlds have no source of starts",
                    remedy='give them as reset(options={"starts": …})',
                )
            starts = self._starts(len(rows), self.np_random)
        if len(starts.instructions) != len(rows):
            raise EnvError(
                f"{len(starts.instructions)} starts for {len(rows)} worlds", remedy="give one start per world"
            )
        if len(rows) == self.num_envs:
            self.worlds.reset(starts)
            self._begun = True
        else:
            self.worlds.restart(rows, starts)
        self._age[rows] = 0
        self._terminated[rows] = self._truncated[rows] = False

    def _reseed(self, seed: int | Sequence[int]) -> None:
        noise, first = (int(word) for word in np.random.SeedSequence(seed).generate_state(2))
        super().reset(seed=first)
        self.worlds.reseed(noise)

    def _reset_mask(self, options: dict[str, Any]) -> NDArray[np.bool_]:
        mask = options.get("reset_mask", np.ones(self.num_envs, np.bool_))
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise EnvError(
                "reset_mask has another type or shape", remedy=f"give a bool array [{self.num_envs}]"
            )
        if not mask.any():
            raise EnvError("reset_mask selects no world", remedy="set at least one entry")
        if not self._begun and not mask.all():
            raise EnvError("worlds that never started cannot be left out", remedy="reset all of them first")
        return mask

    def _require(self, actions: NDArray[Any]) -> None:
        if not self._begun:
            raise EnvError("nothing was reset yet", remedy="call reset() first")
        if np.shape(actions) != self.action_space.shape or not self._actions.fit(np.asarray(actions)):
            raise EnvError(
                f"actions of shape {np.shape(actions)}, or outside {self.single_action_space}",
                remedy=f"give {list(self.action_space.shape or ())} from action_space",
            )

    def _observed(self, observation: ImaginedObservation) -> BatchObservation:
        return {**observation.images, PROPRIO: observation.proprio, INSTRUCTION: self.worlds.words}

    def _info(self, happened: ImaginedStep | None, rows: Rows) -> Info:
        """Gymnasium's vector infos: arrays over all worlds, and under ``_key`` which worlds have them."""
        present = np.zeros(self.num_envs, np.bool_)
        present[rows] = True
        nowhere, none = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.int64)
        facts = {
            "is_success": self._terminated if happened is None else happened.terminated,
            "stepped": nowhere if happened is None else happened.stepped,
            "failed": nowhere if happened is None else happened.failed,
            "uncertain": nowhere if happened is None else happened.uncertain,
            "executed": none if happened is None else happened.executed,
            "success_probability": self.worlds.probabilities if happened is None else happened.probabilities,
        }
        info: Info = {}
        for name, values in facts.items():
            info[name], info[f"_{name}"] = np.where(present, values, values.dtype.type(0)), present.copy()
        return info
