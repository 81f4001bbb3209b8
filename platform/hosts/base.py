"""What a host is: it places services and roles, lets the roles work, and can hold them still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..ranks import Colleague, RankWorker
from ..role import Role, State

T = TypeVar("T")

ANSWER_S = 30.0
"""Longest wait for a service that computes nothing long."""


@dataclass(frozen=True)
class Health:
    """How a role is doing."""

    name: str
    progress: int
    """Steps that did something."""
    step_s: float
    """Seconds that the step under way has taken; 0 between steps."""
    process: int = 0
    """Id of its process where it has one of its own."""


class Host(Protocol):
    """Runs the same role classes one after the other or beside each other."""

    exact: bool
    """Whether a run is reproducible bit for bit here."""

    def place_service(
        self, name: str, build: Callable[[], T], *, calls_at_once: int = 1, answer_s: float = ANSWER_S
    ) -> T:
        """Place a passive object; what comes back has its methods. One that is safe under several threads may answer
        ``calls_at_once``. Whoever calls waits ``answer_s`` at most.
        """
        ...

    def place_role(
        self,
        name: str,
        build: Callable[[], Role],
        *,
        serves: bool = False,
        own_gpu: bool = False,
        recover: Callable[[], State | None] | None = None,
    ) -> Any:
        """Place a role. ``serves``: others call it (the inference service); what comes back is for them.

        ``recover``: it is spare. When its process dies it is built again, and a checkpoint can do without its state.
        ``recover`` then gives back what it had under way and answers what its successor loads (None: nothing).
        """
        ...

    def place_rank(self, name: str, build: Callable[[], RankWorker], *, own_gpu: bool) -> Colleague:
        """Place a passive rank of a role: it has no state of its own, and works beside whoever calls it."""
        ...

    def start(self) -> None:
        """Wait until every role is built; they are still held."""
        ...

    def resume(self) -> None:
        """Let the roles work."""
        ...

    def pump(self) -> None:
        """Give the roles time (a round, or a short wait). Raises RoleFailure when one has died."""
        ...

    def pause(self, timeout_s: float, *, haste: bool = False) -> list[str]:
        """Hold every role between two steps; names of those that did not stop in time. ``haste``: steps that can be cut
        short are.
        """
        ...

    def is_spare(self, name: str) -> bool:
        """Whether a checkpoint can do without the state of role ``name``."""
        ...

    def restarts(self) -> dict[str, int]:
        """Times that spare roles were built again since the host started, by name; those that never were are left out."""
        ...

    def states(self, skip: list[str]) -> dict[str, State]:
        """States of services and roles; the host must be paused. Spare roles that are being built again are left out."""
        ...

    def load(self, states: dict[str, State]) -> None:
        """Continue from ``states``; the host must be paused. Spare roles without a state go on from what they kept."""
        ...

    def metrics(self) -> dict[str, dict[str, float]]:
        """Each role's metrics, with ``busy_s`` and ``wall_s`` of its loop."""
        ...

    def health(self) -> list[Health]:
        """Progress of every role."""
        ...

    def close(self) -> None:
        """End every role and process."""
        ...
