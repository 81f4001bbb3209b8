"""The serial host: all roles round robin in this process, in the order they were placed. Deterministic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from configs.errors import ReverieError, RoleFailure

from ..acceleration import denormals_flushed
from ..metrics import BusyClock
from ..ranks import Colleague, RankWorker
from ..role import Role, State
from .base import ANSWER_S, Health

T = TypeVar("T")


class SerialHost:
    """No concurrency, no clock in any decision: two runs with one seed are equal bit for bit."""

    exact = True

    def __init__(self) -> None:
        self._services: dict[str, Any] = {}
        self._roles: dict[str, Role] = {}
        self._clocks: dict[str, BusyClock] = {}
        self._progress: dict[str, int] = {}
        self._recover: dict[str, Callable[[], State | None]] = {}

    def place_service(
        self, name: str, build: Callable[[], T], *, calls_at_once: int = 1, answer_s: float = ANSWER_S
    ) -> T:
        """Build it here."""
        service = build()
        self._services[name] = service
        return service

    def place_role(
        self,
        name: str,
        build: Callable[[], Role],
        *,
        serves: bool = False,
        own_gpu: bool = False,
        recover: Callable[[], State | None] | None = None,
    ) -> Any:
        """Build it here; its place in the round is the order of the calls."""
        role = build()
        if recover is not None:
            self._recover[name] = recover
        self._roles[name] = role
        self._clocks[name] = BusyClock()
        self._progress[name] = 0
        return role

    def place_rank(self, name: str, build: Callable[[], RankWorker], *, own_gpu: bool) -> Colleague:
        """The config refuses more than one rank here: ranks work at the same time, and this host has one process."""
        raise AssertionError(f"{name}: the serial host has one process")

    def start(self) -> None:
        """Everything is built already."""

    def resume(self) -> None:
        """Roles only work inside ``pump``."""

    def pump(self) -> None:
        """One step of each role."""
        for name, role in self._roles.items():
            worked = False
            self._clocks[name].begin()
            try:
                with denormals_flushed():
                    worked = role.step()
            except ReverieError:
                raise
            except Exception as error:
                raise RoleFailure(f"{name} failed: {type(error).__name__}: {error}", where=name) from error
            finally:
                self._clocks[name].end(worked=worked)
            self._progress[name] += worked

    def pause(self, timeout_s: float, *, haste: bool = False) -> list[str]:
        """Roles are always between two steps here."""
        return []

    def is_spare(self, name: str) -> bool:
        """Whether a checkpoint can do without ``name``."""
        return name in self._recover

    def restarts(self) -> dict[str, int]:
        """None: a role that dies takes this process with it."""
        return {}

    def states(self, skip: list[str]) -> dict[str, State]:
        """Of services and roles."""
        return {
            name: part.state() for name, part in (self._services | self._roles).items() if name not in skip
        }

    def load(self, states: dict[str, State]) -> None:
        """Services first: roles look into them."""
        for name, part in (self._services | self._roles).items():
            # A run on Ray may have been between two lives of a spare role.
            missing = name not in states and name in self._recover
            state = self._recover[name]() if missing else states[name]
            if state is not None:
                part.load(state)

    def metrics(self) -> dict[str, dict[str, float]]:
        """Each role's metrics and clock."""
        rows = {}
        for name, role in self._roles.items():
            busy, wall = self._clocks[name].take()
            rows[name] = {**role.metrics(), "busy_s": busy, "wall_s": wall}
        return rows

    def health(self) -> list[Health]:
        """A hanging step hangs this process: nobody else could tell."""
        return [Health(name, progress, 0.0) for name, progress in self._progress.items()]

    def close(self) -> None:
        """Close roles, then services."""
        for part in [*self._roles.values(), *self._services.values()]:
            close = getattr(part, "close", None)
            if close is not None:
                close()
