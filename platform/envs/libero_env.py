"""LIBERO as a decision environment: chunks in, one frame out, physics in between."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import EnvError
from configs.libero import LiberoConfig

from .base import EnvSpec, Immediate, Observation, StepResult
from .groups import grouped_env
from .lanes import OverlappedEnv
from .libero_package import choose_graphics
from .libero_sim import LiberoSim
from .libero_suites import LiberoTask, chosen_tasks, init_states, libero_spec

Rows = NDArray[np.int64]


def trial_seed(trial: int) -> int:
    """The seed that asks for init state ``trial``: negative, so that it is nobody's seed of a sampled start."""
    return -1 - trial


def most_trials(config: LiberoConfig) -> int:
    """Init states that every task of the config has. DataError when a file of them is missing or torn."""
    return min(len(init_states(task)) for task in chosen_tasks(config))


class LiberoDecisionEnv(Immediate):
    """N slots in this process, stepped one after the other; only the frame after a chunk is drawn.

    A seed of −1−k starts from init state k. Success is the only reward: 1 at the env step that brings it.

    Raises:
        EnvError: LIBERO is missing, or has no such suite or task.
        ResourceError: nothing can draw here.
    """

    def __init__(self, config: LiberoConfig, num_slots: int, *, chunk: int, replan: int) -> None:
        assert 1 <= replan <= chunk, f"replan={replan}, chunk={chunk}"
        super().__init__()
        self.spec = libero_spec(config)
        choose_graphics(config.renderer)
        self.num_slots = num_slots
        self.chunk = chunk
        self.replan = replan
        self._config = config
        self._tasks = {task.name: task for task in chosen_tasks(config)}
        self._slots = [_Slot(config, self.spec.max_episode_steps) for _ in range(num_slots)]

    def reset(self, slots: Rows, seeds: NDArray[np.int64], tasks: list[str] | None = None) -> Observation:
        """Start an episode in each of ``slots``; without ``tasks`` the seed draws one."""
        assert len(slots) == len(seeds)
        names = [self._drawn(int(seed)) for seed in seeds] if tasks is None else tasks
        for slot, seed, name in zip(slots, seeds, names, strict=True):
            self._slots[slot].start(self._tasks[name], int(seed))
        return self.observe(slots)

    def step(self, slots: Rows, actions: NDArray[np.float32]) -> StepResult:
        """Execute a chunk ``[n, K, 7]`` in each of ``slots``; a row stops where its episode ends."""
        n = len(slots)
        assert actions.shape == (n, self.chunk, self.spec.action_dim), actions.shape
        rewards = np.zeros((n, self.chunk), np.float32)
        valid = np.zeros((n, self.chunk), np.bool_)
        terminated, truncated = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        clipped = np.clip(actions, -1, 1)
        for row, slot in enumerate(slots):
            state = self._slots[slot]
            assert state.running, "a slot was stepped after its episode ended"
            for step in range(self.replan):
                success = state.step(clipped[row, step])
                rewards[row, step], valid[row, step] = float(success), True
                terminated[row], truncated[row] = success, state.late and not success
                if not state.running:
                    break
        return StepResult(self.observe(slots), rewards, valid, terminated, truncated, terminated.copy())

    def observe(self, slots: Rows) -> Observation:
        """What the policy sees in ``slots`` now."""
        simulators = [self._slots[slot].simulator for slot in slots]
        drawn = [simulator.draw() for simulator in simulators]
        frames = {
            name: np.stack([each[name] for each in drawn]) if drawn else np.zeros((0, *size, 3), np.uint8)
            for name, size in self.spec.cameras.items()
        }
        proprio = np.zeros((len(slots), self.spec.proprio_dim), np.float32)
        for row, simulator in enumerate(simulators):
            proprio[row] = simulator.proprio()
        return Observation(frames, proprio, [simulator.task.instruction for simulator in simulators])

    def simulator(self, slot: int) -> LiberoSim:
        """What runs in ``slot``, for a demonstrator, who sees more than a policy."""
        return self._slots[slot].simulator

    def tasks(self, slots: Rows) -> list[str]:
        """Task of the running episode in each slot."""
        return [self._slots[slot].simulator.task.name for slot in slots]

    def state(self) -> dict[str, Any]:
        """Everything that ``load`` continues from bit for bit."""
        return {"slots": [slot.state() for slot in self._slots]}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        for slot, held in zip(self._slots, state["slots"], strict=True):
            slot.load(self._tasks, held)

    def close(self) -> None:
        """Close every simulator."""
        for slot in self._slots:
            slot.close()

    def _drawn(self, seed: int) -> str:
        names = list(self._tasks)
        return names[int(np.random.default_rng(abs(seed)).integers(len(names)))]


class _Slot:
    """The episode of one slot, and the simulators of the tasks that it had last."""

    def __init__(self, config: LiberoConfig, budget: int) -> None:
        self._config, self._budget = config, budget
        self._kept: OrderedDict[str, LiberoSim] = OrderedDict()
        self._current: LiberoSim | None = None
        self.steps = 0
        self.running = False

    @property
    def simulator(self) -> LiberoSim:
        """Of the newest episode."""
        assert self._current is not None, "a slot was used before its first reset"
        return self._current

    @property
    def late(self) -> bool:
        """The budget is used up."""
        return self.steps >= self._budget

    def start(self, task: LiberoTask, seed: int) -> None:
        """Begin an episode."""
        self.running = False
        simulator = self._simulator_of(task)
        if seed < 0:
            simulator.reset(-1 - seed, trial=-1 - seed)
        elif self._config.starts == "init_states":
            simulator.reset(seed, trial=seed % simulator.trials)
        else:
            simulator.reset(seed)
        self.steps, self.running = 0, True

    def step(self, action: NDArray[np.float32]) -> bool:
        """One env step; whether it brought success."""
        success = self.simulator.step(action)
        self.steps += 1
        self.running = not (success or self.late)
        return success

    def _simulator_of(self, task: LiberoTask) -> LiberoSim:
        if task.name not in self._kept:
            while len(self._kept) >= self._config.kept_tasks:
                _, oldest = self._kept.popitem(last=False)
                oldest.close()
            self._kept[task.name] = LiberoSim(task, self._config)
        self._kept.move_to_end(task.name)
        self._current = self._kept[task.name]
        return self._current

    def state(self) -> dict[str, Any]:
        if self._current is None:
            return {"task": "", "steps": 0, "running": False}
        return {
            "task": self._current.task.name, "steps": self.steps, "running": self.running,
            "simulator": self._current.state(),
        }  # fmt: skip

    def load(self, tasks: dict[str, LiberoTask], held: dict[str, Any]) -> None:
        if not held["task"]:
            return
        if held["task"] not in tasks:
            raise EnvError(
                f"the state is of task {held['task']}", where=self._config.suite, remedy="set env as it was"
            )
        self._simulator_of(tasks[held["task"]]).load(held["simulator"])
        self.steps, self.running = int(held["steps"]), bool(held["running"])

    def close(self) -> None:
        for simulator in self._kept.values():
            simulator.close()
        self._kept.clear()
        self._current = None
        self.running = False


def make_libero(config: LiberoConfig, num_slots: int, *, chunk: int, replan: int) -> OverlappedEnv:
    """Slots in ``config.processes`` processes; those of different processes step beside each other.

    Raises:
        EnvError, ResourceError: as ``LiberoSim``, as far as it can be told before a task is made.
    """
    spec: EnvSpec = libero_spec(config)
    choose_graphics(config.renderer)

    def build(slots: int) -> partial[LiberoDecisionEnv]:
        return partial(LiberoDecisionEnv, config, slots, chunk=chunk, replan=replan)

    return grouped_env(build, spec, num_slots, config.processes, chunk=chunk)
