"""The Ray host's actors as threads of one process: real concurrency at a thousandth of the cost of a call."""

from __future__ import annotations

import os
from collections.abc import Callable
from platform.hosts.actors import RoleActor
from platform.hosts.base import ANSWER_S, Health
from platform.hosts.seat import Seat
from platform.ranks import Colleague, RankWorker
from platform.role import Role, State
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadHost:
    """Every role a thread; what it raises is raised by ``pump``."""

    exact = False

    def __init__(self) -> None:
        self._actors: dict[str, RoleActor] = {}

    def place_service(
        self, name: str, build: Callable[[], T], *, calls_at_once: int = 1, answer_s: float = ANSWER_S
    ) -> T:
        """Here."""
        return build()

    def place_role(
        self,
        name: str,
        build: Callable[[], Role],
        *,
        serves: bool = False,
        own_gpu: bool = False,
        recover: Callable[[], State | None] | None = None,
    ) -> Any:
        """A thread."""
        self._actors[name] = RoleActor(name, build, Seat(threads=1))

    def place_rank(self, name: str, build: Callable[[], RankWorker], *, own_gpu: bool) -> Colleague:
        """A rank needs a process of its own."""
        raise AssertionError(f"{name}: threads are no ranks")

    def start(self) -> None:
        """Built already."""

    def resume(self) -> None:
        """Let every loop work."""
        for actor in self._actors.values():
            actor.resume(os.getpid())

    def pump(self) -> None:
        """Raise what a role raised."""
        for actor in self._actors.values():
            failure = actor.health()[1]
            if failure is not None:
                raise AssertionError(failure[1])

    def pause(self, timeout_s: float, *, haste: bool = False) -> list[str]:
        """Hold every loop."""
        for actor in self._actors.values():
            actor.pause(haste)
        return []

    def is_spare(self, name: str) -> bool:
        """None is: threads do not die alone."""
        return False

    def restarts(self) -> dict[str, int]:
        """None."""
        return {}

    def states(self, skip: list[str]) -> dict[str, State]:
        """Nothing to keep."""
        return {}

    def load(self, states: dict[str, State]) -> None:
        """Nothing to keep."""

    def metrics(self) -> dict[str, dict[str, float]]:
        """Of every role."""
        return {name: actor.metrics() for name, actor in self._actors.items()}

    def health(self) -> list[Health]:
        """Of every role."""
        return [actor.health()[0] for actor in self._actors.values()]

    def close(self) -> None:
        """A loop that is held goes on being held: its thread is a daemon."""
        self.pause(0.0)
