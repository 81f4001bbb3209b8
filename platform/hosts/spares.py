"""Roles that may die on Ray: each is built again a few times, and goes on from what it kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from configs.errors import RoleFailure

from ..role import State
from .proxies import cause, died

log = logging.getLogger(__name__)

START_TIMEOUT_S = 300.0
PROBE_S = 0.5
"""Pause after a question that a process which is being started again did not even hear."""

Recover = Callable[[], State | None]
"""Gives back what a dead role had under way; what its successor continues from (None: from nothing)."""


@dataclass
class _Away:
    """A role whose process died and is not back yet."""

    since: float
    ready: Any
    """Ray's reference to the answer of the new process."""
    ask_at: float = 0.0


class Spares:
    """Knows which roles may be built again, which are away, and how often each came back.

    Ray starts the process again and runs the role's constructor; the handle stays the same. The new role is held until
    ``welcome`` has given it what its predecessor kept.
    """

    def __init__(self, restarts: int) -> None:
        self._limit = restarts
        self._recover: dict[str, Recover] = {}
        self._actors: dict[str, Any] = {}
        self._processes: dict[str, int] = {}
        self._away: dict[str, _Away] = {}
        self.restarts: dict[str, int] = {}

    def add(self, name: str, actor: Any, recover: Recover) -> None:
        """``name`` may be built again."""
        self._actors[name], self._recover[name] = actor, recover

    def drop(self, name: str) -> None:
        """It is not coming back, and the run goes on without it."""
        for known in (self._actors, self._recover, self._away):
            known.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._recover

    @property
    def away(self) -> set[str]:
        """Those that are being built again."""
        return set(self._away)

    def started(self, name: str, process: int) -> None:
        """``name`` runs in ``process``."""
        self._processes[name] = process

    def process(self, name: str) -> int:
        """Where role ``name`` is known to run."""
        return self._processes[name]

    def recover(self, name: str) -> State | None:
        """What ``name`` had under way is free again; what to continue from."""
        return self._recover[name]()

    def lost(self, name: str, error: Exception) -> bool:
        """``name`` died; whether it is being built again."""
        if name not in self._recover or self._limit == 0:
            return False
        if name not in self._away:
            log.warning("the process of %s died: it is built again", name)
            log.debug("%s", cause(error))
            self._leave(name)
        return True

    def look(self, name: str, process: int) -> None:
        """``name`` answered from ``process``: when that is a new one, it died between two looks."""
        if name in self._recover and self._processes[name] != process:
            log.warning("the process of %s died: it was built again", name)
            self._leave(name)

    def _leave(self, name: str) -> None:
        # At once, so that others may take over what it had started.
        self.recover(name)
        self._away[name] = _Away(time.monotonic(), self._actors[name].ready.remote())

    def welcome(self) -> list[tuple[str, Exception | None]]:
        """Those that are back and continue from what was kept, still held; with its error, who will never be."""
        found: list[tuple[str, Exception | None]] = []
        for name, away in list(self._away.items()):
            back, error = self._is_back(name, away)
            if back or error is not None:
                del self._away[name]
                found.append((name, error))
        return found

    def _is_back(self, name: str, away: _Away) -> tuple[bool, Exception | None]:
        import ray

        if time.monotonic() < away.ask_at:
            return False, None
        if not ray.wait([away.ready], timeout=0)[0]:
            if time.monotonic() - away.since > START_TIMEOUT_S:
                return False, RoleFailure(
                    f"{name} did not start again within {START_TIMEOUT_S:.0f} s", where=name
                )
            return False, None
        try:
            process = int(ray.get(away.ready))
            self._continue(name, process)
        except ray.exceptions.ActorDiedError as error:
            # Ray itself says so: it has been started as often as it may be, or its constructor failed.
            return False, died(name, error)
        except ray.exceptions.RayActorError:
            away.ready, away.ask_at = self._actors[name].ready.remote(), time.monotonic() + PROBE_S
            return False, None
        return True, None

    def _continue(self, name: str, process: int) -> None:
        import ray

        # Once more: what the dead one had asked for last may have been answered after it was given up.
        state = self.recover(name)
        if state is not None:
            ray.get(self._actors[name].load.remote(state))
        self.started(name, process)
        self.restarts[name] = self.restarts.get(name, 0) + 1
        log.warning("%s is process %d again (%d of %d)", name, process, self.restarts[name], self._limit)

    def load(self, states: dict[str, State]) -> dict[str, State]:
        """``states``, with what was kept by those that a checkpoint was made without."""
        found = dict(states)
        for name in [name for name in self._recover if name not in states]:
            log.warning("%s has no state in the checkpoint: it goes on from what it had kept", name)
            state = self.recover(name)
            if state is not None:
                found[name] = state
        return found


def wait_for(actors: dict[str, Any]) -> dict[str, int]:
    """Process of each, once it is built. The first failure is told by the role's name."""
    import ray

    found = {}
    for name, actor in actors.items():
        try:
            found[name] = int(ray.get(actor.ready.remote(), timeout=START_TIMEOUT_S))
        except ray.exceptions.GetTimeoutError as error:
            raise RoleFailure(
                f"{name} did not start within {START_TIMEOUT_S:.0f} s", where=name,
                remedy="is the machine overloaded or short of memory?",
            ) from error  # fmt: skip
        except ray.exceptions.RayError as error:
            raise RoleFailure(f"{name} could not start: {cause(error)}", where=name) from error
        log.debug("%s is process %d", name, found[name])
    return found
