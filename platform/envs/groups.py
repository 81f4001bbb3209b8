"""Slots that share processes: a process holds several of them and steps one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import DecisionEnv, EnvSpec, Immediate, Observation, StepResult
from .lanes import OverlappedEnv
from .remote import RemoteEnv

Rows = NDArray[np.int64]


def grouped_env(
    build: Callable[[int], Callable[[], DecisionEnv]],
    spec: EnvSpec,
    num_slots: int,
    processes: int,
    *,
    chunk: int,
) -> OverlappedEnv:
    """``num_slots`` slots over at most ``processes`` processes; ``build(n)()`` makes what holds n slots of one.

    Raises:
        EnvError: as ``build``.
        RoleFailure: ``build`` failed otherwise.
    """
    count = min(processes, num_slots)
    sizes = [num_slots // count + (index < num_slots % count) for index in range(count)]
    groups = [_Group(build(size), spec, size) for size in sizes]
    # Dealt out in turn, so that few busy slots are spread over all processes.
    seats = iter(
        [group.seat(place) for place in range(max(sizes)) for group in groups if place < group.num_slots]
    )
    return OverlappedEnv(_Handout(seats), spec, num_slots, chunk=chunk)


class _Handout:
    """Gives each lane a seat; lanes come for theirs from threads of their own."""

    def __init__(self, seats: Iterator[_Seat]) -> None:
        self._seats, self._lock = seats, threading.Lock()

    def __call__(self) -> DecisionEnv:
        with self._lock:
            seat = next(self._seats)
        seat.group.open()
        return seat


class _Group:
    """One process, started by the first lane that comes and ended by the last one that goes."""

    def __init__(self, build: Callable[[], DecisionEnv], spec: EnvSpec, num_slots: int) -> None:
        self.spec, self.num_slots = spec, num_slots
        self._build = build
        self._env: RemoteEnv | None = None
        self._lock = threading.Lock()
        self._users = 0

    def seat(self, slot: int) -> _Seat:
        """One slot."""
        return _Seat(self, slot)

    def open(self) -> None:
        """Start the process unless it runs."""
        with self._lock:
            if self._env is None:
                self._env = RemoteEnv(self._build, self.spec, self.num_slots)
            self._users += 1

    def call(self, method: str, *arguments: Any) -> Any:
        """One call at a time."""
        with self._lock:
            assert self._env is not None
            return getattr(self._env, method)(*arguments)

    def leave(self) -> None:
        """One lane less."""
        with self._lock:
            self._users -= 1
            if not self._users and self._env is not None:
                self._env.close()
                self._env = None


class _Seat(Immediate):
    """One slot of a group, as an environment of one slot."""

    num_slots = 1

    def __init__(self, group: _Group, slot: int) -> None:
        super().__init__()
        self.group, self.spec = group, group.spec
        self._slot = np.array([slot], np.int64)

    def reset(self, slots: Rows, seeds: NDArray[np.int64], tasks: list[str] | None = None) -> Observation:
        """Start an episode."""
        observation: Observation = self.group.call("reset", self._slot, seeds, tasks)
        return observation

    def step(self, slots: Rows, actions: NDArray[np.float32]) -> StepResult:
        """Execute a chunk."""
        result: StepResult = self.group.call("step", self._slot, actions)
        return result

    def tasks(self, slots: Rows) -> list[str]:
        """Task of the running episode."""
        names: list[str] = self.group.call("tasks", self._slot)
        return names

    def state(self) -> dict[str, Any] | None:
        """None: the process's other slots stand at other points."""
        return None

    def load(self, state: dict[str, Any]) -> None:
        """Never asked: ``state`` gives nothing."""
        raise AssertionError("a seat has no state")

    def close(self) -> None:
        """Leave the process."""
        self.group.leave()
