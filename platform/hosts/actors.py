"""What runs inside a Ray actor: a role with its own loop, or a passive service."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from ..acceleration import denormals_flushed
from ..metrics import BusyClock
from ..role import CanCutShort, Role, State, WaitsForWork
from .base import Health
from .seat import Seat

FIRST_IDLE_S = 0.005
LONGEST_IDLE_S = 0.1
"""Pause of a loop that found nothing to do; it doubles while nothing comes. Every look costs a few calls to the
services: five roles that looked every 5 ms would burn a core."""

LOOK_S = 1.0
"""How often a waiting request looks whether the loop that should answer it has failed."""


class ServiceActor:
    """A passive object behind one method."""

    def __init__(self, build: Callable[[], Any], seat: Seat) -> None:
        seat.take()
        self._service = build()

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the service."""
        return getattr(self._service, method)(*args, **kwargs)

    def ready(self) -> int:
        """Id of the process, once the service is built."""
        return os.getpid()


class RankActor(ServiceActor):
    """A rank of a role: a service that computes, and whose errors the host looks for.

    Its caller cannot tell of them: it waits for this rank's part of a sum.
    """

    def __init__(self, build: Callable[[], Any], seat: Seat) -> None:
        super().__init__(build, seat)
        self._error: tuple[str, str] | None = None

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the rank."""
        try:
            with denormals_flushed():
                return super().call(method, *args, **kwargs)
        except Exception as error:
            self._error = (f"{type(error).__name__}: {error}", traceback.format_exc())
            raise

    def error(self) -> tuple[str, str] | None:
        """The first exception with its traceback."""
        return self._error


@dataclass(frozen=True)
class StoredBuild:
    """How a role is built, in Ray's object store: it may hold weights, and a restarted actor builds again.

    A large argument of an actor is in the store too, but Ray lets go of it once the first process has it, and the second finds
    nothing. An object whose reference was pickled by hand stays until Ray ends.
    """

    reference: bytes

    @classmethod
    def of(cls, build: Callable[[], Role]) -> StoredBuild:
        """Put ``build`` into the store."""
        import ray

        # Ray's types say nothing of its pickling.
        pickling: Any = ray.cloudpickle
        return cls(pickling.dumps(ray.put(build)))

    def __call__(self) -> Role:
        """Fetch and build."""
        import ray

        return cast(Role, ray.get(ray.cloudpickle.loads(self.reference))())


class RoleActor:
    """A role and the thread that lets it work."""

    def __init__(self, name: str, build: Callable[[], Role], seat: Seat) -> None:
        seat.take()
        self._name = name
        self._role = build()
        self._rest = self._role.wait_for_work if isinstance(self._role, WaitsForWork) else time.sleep
        self._clock = BusyClock()
        self._progress = 0
        self._step_began: float | None = None
        self._error: tuple[str, str] | None = None
        self._running = threading.Event()
        self._still = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def ready(self) -> int:
        """Id of the process, once the role is built."""
        return os.getpid()

    def _loop(self) -> None:
        idle_s = FIRST_IDLE_S
        while self._error is None:
            self._running.wait()
            with self._still:
                worked = self._step() if self._running.is_set() else True
            if worked:
                idle_s = FIRST_IDLE_S
            else:
                self._rest(idle_s)
                idle_s = min(2 * idle_s, LONGEST_IDLE_S)

    def _step(self) -> bool:
        self._step_began = time.monotonic()
        worked = False
        self._clock.begin()
        try:
            with denormals_flushed():
                worked = self._role.step()
        except Exception as error:  # noqa: BLE001  whatever a role raises is told by the runner, in its own process
            self._error = (f"{type(error).__name__}: {error}", traceback.format_exc())
            return False
        finally:
            self._step_began = None
            self._clock.end(worked=worked)
        self._progress += worked
        return worked

    def resume(self, process: int) -> int:
        """Let the loop work if this is ``process``: a later one has not been given yet what its predecessor kept. Id of the
        process that this is.
        """
        if process == os.getpid():
            self._running.set()
        return os.getpid()

    def pause(self, haste: bool = False) -> bool:
        """Hold the loop; answers when it stands between two steps. ``haste``: a step that can be cut short is."""
        self._running.clear()
        if haste and isinstance(self._role, CanCutShort):
            self._role.cut_short()
        with self._still:
            return True

    def state(self) -> tuple[int, State]:
        """The process that tells it, and the role's."""
        with self._still:
            return os.getpid(), self._role.state()

    def load(self, state: State) -> None:
        """Into the role."""
        with self._still:
            self._role.load(state)

    def metrics(self) -> dict[str, float]:
        """The role's, with its clock."""
        busy, wall = self._clock.take()
        return {**self._role.metrics(), "busy_s": busy, "wall_s": wall}

    def health(self) -> tuple[Health, tuple[str, str] | None]:
        """Progress, and the first exception with its traceback."""
        began = self._step_began
        return Health(
            self._name, self._progress, 0.0 if began is None else time.monotonic() - began, os.getpid()
        ), self._error

    def infer(self, observation: Any) -> Any:
        """For the inference service: ask and wait in this call's own thread, through a pause of the loop too."""
        service: Any = self._role
        ticket = service.submit(observation)
        while (answer := service.wait_for(ticket, LOOK_S)) is None:
            if self._error is not None:
                raise RuntimeError(f"{self._name} failed: {self._error[0]}")
        return answer
