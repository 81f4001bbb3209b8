"""The tabletop as a decision environment: whole chunks in, one frame out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.env import TabletopConfig

from .base import EnvSpec, Immediate, Observation, StepResult
from .tabletop_tasks import TASK_NAMES, all_instructions, mix
from .tabletop_world import Rows, TabletopWorlds

CAMERA = "top"
TASK_NUMBERS: dict[str, int] = {name: number for number, name in enumerate(TASK_NAMES)}
SEED_DOMAIN = np.uint64(0x7AB1E709)
"""Keeps the keys of starts apart from other uses of the same seeds."""


def tabletop_spec(config: TabletopConfig) -> EnvSpec:
    """What a tabletop of this config offers."""
    return EnvSpec(
        name="tabletop",
        cameras={CAMERA: (config.camera_size, config.camera_size)},
        proprio_dim=3,
        action_dim=3,
        action_low=(-1.0, -1.0, -1.0),
        action_high=(1.0, 1.0, 1.0),
        tasks=tuple(config.tasks),
        instructions=all_instructions(config.tasks),
        max_episode_steps=config.max_episode_steps,
    )


def start_keys(seeds: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Key ``[n]`` of the start that each seed gives."""
    return mix(np.asarray(seeds).astype(np.uint64) ^ SEED_DOMAIN, 0)


class TabletopDecisionEnv(Immediate):
    """N tabletops stepped by decisions: the first ``replan`` actions of a chunk, up to the episode's end.

    Nothing resets by itself. Only the rows asked for are stepped, and only the frame after the chunk is drawn.
    """

    def __init__(self, config: TabletopConfig, num_slots: int, *, chunk: int, replan: int) -> None:
        assert 1 <= replan <= chunk, f"replan={replan}, chunk={chunk}"
        super().__init__()
        self.spec = tabletop_spec(config)
        self.num_slots = num_slots
        self.chunk = chunk
        self.replan = replan
        self.worlds = TabletopWorlds(config, num_slots)
        self._running = np.zeros(num_slots, np.bool_)

    def reset(self, slots: Rows, seeds: NDArray[np.int64], tasks: list[str] | None = None) -> Observation:
        """Start an episode in each of ``slots``."""
        assert len(slots) == len(seeds)
        chosen = None if tasks is None else np.array([TASK_NUMBERS[name] for name in tasks], np.int64)
        self.worlds.reset(slots, start_keys(seeds), chosen)
        self._running[slots] = True
        return self.observe(slots)

    def step(self, slots: Rows, actions: NDArray[np.float32]) -> StepResult:
        """Execute a chunk ``[n, K, 3]`` in each of ``slots``; a row stops where its episode ends."""
        n = len(slots)
        assert actions.shape == (n, self.chunk, self.spec.action_dim), actions.shape
        assert self._running[slots].all(), "a slot was stepped after its episode ended"
        rewards = np.zeros((n, self.chunk), np.float32)
        valid = np.zeros((n, self.chunk), np.bool_)
        terminated, truncated = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        active = np.arange(n)
        for step in range(self.replan):
            outcome = self.worlds.step(slots[active], actions[active, step])
            rewards[active, step] = outcome.reward
            valid[active, step] = True
            terminated[active] = outcome.terminated
            truncated[active] = outcome.truncated
            active = active[~(outcome.terminated | outcome.truncated)]
            if not len(active):
                break
        self._running[slots] = ~(terminated | truncated)
        return StepResult(self.observe(slots), rewards, valid, terminated, truncated, terminated.copy())

    def observe(self, slots: Rows) -> Observation:
        """What the policy sees in ``slots`` now."""
        frames = self.worlds.draw(slots)
        return Observation({CAMERA: frames}, self.worlds.proprio(slots), self.worlds.instructions(slots))

    def tasks(self, slots: Rows) -> list[str]:
        """Task of the episode in each slot."""
        return self.worlds.task_names(slots)

    def state(self) -> dict[str, Any]:
        """Every array that ``load`` continues from bit for bit."""
        return {"worlds": self.worlds.state(), "running": self._running.copy()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; DataError when it is another environment's."""
        self.worlds.load(state["worlds"])
        self._running[:] = state["running"]

    def close(self) -> None:
        """Nothing is held."""
