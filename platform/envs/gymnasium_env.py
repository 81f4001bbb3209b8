"""Any Gymnasium environment with a ``Box`` action space as a decision environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from configs.env import GymnasiumConfig
from configs.errors import EnvError

from .base import EnvSpec, Immediate, Observation, StepResult

if TYPE_CHECKING:
    import gymnasium

    Env = gymnasium.Env[Any, Any]

CAMERA = "camera"
Rows = NDArray[np.int64]


def gymnasium_spec(config: GymnasiumConfig) -> EnvSpec:
    """What the environment offers; it is made once to look at its spaces, and closed.

    Raises:
        EnvError: as ``GymnasiumDecisionEnv``.
    """
    env = _make(config)
    try:
        return _spec(config, env)
    finally:
        env.close()


class GymnasiumDecisionEnv(Immediate):
    """N separate environments, stepped one after the other. ``spec`` saves looking at the environment once more.

    Raises:
        EnvError: the id is unknown or its package missing, the action space is no ``Box`` or has no bounds, or there is
            no image.
    """

    def __init__(
        self, config: GymnasiumConfig, num_slots: int, *, chunk: int, replan: int, spec: EnvSpec | None = None
    ) -> None:
        assert 1 <= replan <= chunk, f"replan={replan}, chunk={chunk}"
        super().__init__()
        self.config = config
        self.num_slots = num_slots
        self.chunk = chunk
        self.replan = replan
        self.spec = gymnasium_spec(config) if spec is None else spec
        self._envs = [_make(config) for _ in range(num_slots)]
        self._reader = _Reader(config, self.spec)
        self._steps = np.zeros(num_slots, np.int64)
        self._running = np.zeros(num_slots, np.bool_)

    def reset(self, slots: Rows, seeds: NDArray[np.int64], tasks: list[str] | None = None) -> Observation:
        """Start an episode in each of ``slots``. There is one task, so there is nothing to choose."""
        assert len(slots) == len(seeds)
        rows = []
        for slot, seed in zip(slots, seeds, strict=True):
            # Gymnasium's own generators take any non-negative integer, several environments only 32 bits.
            observation, _ = self._envs[slot].reset(seed=int(seed) % 2**32)
            rows.append(self._reader.read(self._envs[slot], observation))
        self._steps[slots] = 0
        self._running[slots] = True
        return self._batch(rows)

    def step(self, slots: Rows, actions: NDArray[np.float32]) -> StepResult:
        """Execute the first ``replan`` actions of each chunk ``[n, K, D]``; a row stops where its episode ends."""
        n = len(slots)
        assert actions.shape == (n, self.chunk, self.spec.action_dim), actions.shape
        assert self._running[slots].all(), "a slot was stepped after its episode ended"
        result = StepResult(
            observation=Observation({}, np.zeros((0, 0), np.float32), []),
            rewards=np.zeros((n, self.chunk), np.float32),
            valid=np.zeros((n, self.chunk), np.bool_),
            terminated=np.zeros(n, np.bool_),
            truncated=np.zeros(n, np.bool_),
            success=np.zeros(n, np.bool_),
        )
        rows = [self._step_one(int(slot), row, actions[row], result) for row, slot in enumerate(slots)]
        result.observation = self._batch(rows)
        self._running[slots] = ~(result.terminated | result.truncated)
        return result

    def _step_one(self, slot: int, row: int, actions: NDArray[np.float32], result: StepResult) -> _Seen:
        env, space = self._envs[slot], self._envs[slot].action_space
        assert space.shape is not None
        observation: Any = None
        for step in range(self.replan):
            action = np.clip(actions[step], self.spec.action_low, self.spec.action_high)
            observation, reward, terminated, truncated, info = env.step(
                action.reshape(space.shape).astype(space.dtype)
            )
            if not np.isfinite(float(reward)):
                raise EnvError(f"reward {reward}", where=self.config.id, remedy="repair the environment")
            self._steps[slot] += 1
            result.rewards[row, step] = float(reward)
            result.valid[row, step] = True
            result.success[row] |= self._reader.success(info, bool(terminated), float(reward))
            result.terminated[row] = bool(terminated)
            late = bool(truncated) or self._steps[slot] >= self.config.max_episode_steps
            result.truncated[row] = late and not terminated
            if terminated or late:
                break
        return self._reader.read(env, observation)

    def tasks(self, slots: Rows) -> list[str]:
        """The id, in each slot."""
        return [self.spec.name] * len(slots)

    def state(self) -> dict[str, Any] | None:
        """None: Gymnasium has no way to save an environment."""
        return None

    def load(self, state: dict[str, Any]) -> None:
        """Never possible; EnvError."""
        raise EnvError(
            f"cannot restore {len(state)} values", where=self.config.id, remedy="restart the episodes"
        )

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _batch(self, rows: list[_Seen]) -> Observation:
        size, count = self.config.camera_size, len(rows)
        frames = np.stack([row.frame for row in rows]) if rows else np.zeros((0, size, size, 3), np.uint8)
        proprio = np.zeros((count, self.spec.proprio_dim), np.float32)
        for index, row in enumerate(rows):
            proprio[index] = row.proprio
        return Observation({CAMERA: frames}, proprio, [self.config.instruction] * count)


@dataclass(frozen=True)
class _Seen:
    frame: NDArray[np.uint8]
    proprio: NDArray[np.float32]


class _Reader:
    """Takes the frame, the proprioception and success out of what an environment answers."""

    def __init__(self, config: GymnasiumConfig, spec: EnvSpec) -> None:
        self._config = config
        self._spec = spec

    def read(self, env: Env, observation: Any) -> _Seen:
        """The frame, resized, and proprio of one observation."""
        from_render = self._config.image == "render"
        frame = env.render() if from_render else _at(observation, self._config.image_key)
        proprio = _proprio(self._config, observation)
        if not np.isfinite(proprio).all():
            raise EnvError(
                "proprioception is not finite", where=self._config.id, remedy="repair the environment"
            )
        return _Seen(resize_area(_as_frame(self._config, frame), self._config.camera_size), proprio)

    def success(self, info: dict[str, Any], terminated: bool, reward: float) -> bool:
        """``info[success_key]`` where the environment tells it, else termination with a positive reward."""
        key = self._config.success_key
        return bool(info[key]) if key in info else terminated and reward > 0


def resize_area(frame: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """``[H, W, 3]`` to ``[size, size, 3]``; each new pixel is the mean of the area that it covers."""
    if frame.shape[:2] == (size, size):
        return np.ascontiguousarray(frame)
    rows, columns = _area_weights(frame.shape[0], size), _area_weights(frame.shape[1], size)
    mean: NDArray[np.float32] = np.einsum(
        "ih,hwc,jw->ijc", rows, frame.astype(np.float32), columns, optimize=True
    )
    rounded: NDArray[np.uint8] = (mean + 0.5).clip(0, 255).astype(np.uint8)
    return rounded


def _area_weights(old: int, new: int) -> NDArray[np.float32]:
    """``[new, old]``: share of each old pixel in each new one."""
    edges = np.linspace(0, old, new + 1)
    pixel = np.arange(old)
    covered: NDArray[np.float64] = np.minimum(edges[1:, None], pixel + 1) - np.maximum(
        edges[:-1, None], pixel
    )
    weights: NDArray[np.float64] = np.clip(covered, 0, None)
    total: NDArray[np.float64] = weights.sum(axis=1, keepdims=True)
    return (weights / total).astype(np.float32)


def _make(config: GymnasiumConfig) -> Env:
    import gymnasium

    if not config.id:
        raise EnvError(
            "no environment is named", where="env.id", remedy="set env.id=<registered Gymnasium id>"
        )
    mode = {"render_mode": "rgb_array"} if config.image == "render" else {}
    try:
        return gymnasium.make(config.id, **{**mode, **config.kwargs})
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise EnvError(
            f"cannot make {config.id!r}: {error}",
            where="env.id",
            remedy="install and name its package as package:Id-v0, and check env.kwargs",
        ) from error


def _spec(config: GymnasiumConfig, env: Env) -> EnvSpec:
    from gymnasium import spaces

    space = env.action_space
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype or np.int8, np.floating):
        raise EnvError(
            f"the action space of {config.id} is {space}",
            where="env.id",
            remedy="choose an environment with a continuous Box action space",
        )
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise EnvError(
            f"the action space of {config.id} has no bounds",
            where="env.id",
            remedy="wrap it in gymnasium.wrappers.RescaleAction, or choose one with finite bounds",
        )
    observation, _ = env.reset(seed=0)
    frame = env.render() if config.image == "render" else _at(observation, config.image_key)
    _as_frame(config, frame)
    return EnvSpec(
        name=config.id,
        cameras={CAMERA: (config.camera_size, config.camera_size)},
        proprio_dim=len(_proprio(config, observation)),
        action_dim=len(low),
        action_low=tuple(float(x) for x in low),
        action_high=tuple(float(x) for x in high),
        tasks=(config.id,),
        instructions=(config.instruction,),
        max_episode_steps=config.max_episode_steps,
    )


def _at(observation: Any, key: str) -> Any:
    """Entry ``key`` of a dictionary observation (dots descend), the observation itself for an empty key."""
    for part in key.split(".") if key else []:
        if not isinstance(observation, dict) or part not in observation:
            known = ", ".join(observation) if isinstance(observation, dict) else "no keys"
            raise EnvError(
                f"the observation has no {key!r}",
                where="env.image_key, env.proprio_key",
                remedy=f"it has {known}",
            )
        observation = observation[part]
    return observation


def _as_frame(config: GymnasiumConfig, frame: Any) -> NDArray[np.uint8]:
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        shape = f"{frame.dtype}{list(frame.shape)}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise EnvError(
            f"{config.id} gives no image from {config.image}: {shape}, expected uint8[H, W, 3]",
            where="env.image",
            remedy="set env.image to render or observation, env.image_key to the image's key, or env.kwargs",
        )
    return frame


def _proprio(config: GymnasiumConfig, observation: Any) -> NDArray[np.float32]:
    """``[P]``: the entry of ``proprio_key``, else a flat array observation; P is 0 where there is neither."""
    numbers = _at(observation, config.proprio_key) if config.proprio_key else observation
    if not config.proprio_key and not (isinstance(numbers, np.ndarray) and numbers.ndim == 1):
        return np.zeros(0, np.float32)
    return np.asarray(numbers, np.float32).reshape(-1)
