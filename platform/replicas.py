"""Several inference replicas as one client sees them: it asks its own, and another one while that is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .envs.base import Observation
from .inference import Decisions, InferenceClient
from .weights import Board

FIRST_AWAY_S = 1.0
LONGEST_AWAY_S = 60.0
"""Pause before a replica that was lost is asked again; it doubles while that is in vain. Its host builds it again, goes on
without it, or ends the run."""


class ReplicaLost(Exception):
    """The process of a replica died; what it was asked is not answered."""


@dataclass
class _Asked:
    observation: Observation
    replica: str
    ticket: object
    at_least: int
    """Newest version that the collector had acted with when it asked."""


@dataclass
class _Away:
    until: float
    pause_s: float


class Replicas:
    """The client of one collector. ``own`` is the replica that it is dealt: workers are alike, so dealing them out in turn
    loads the replicas equally without asking anyone how busy they are.

    What a lost replica was asked is asked again, elsewhere or, where no other is there, of itself once it is back. An answer
    older than what the collector had acted with when it asked is refused and asked for again: replicas take new weights at
    slightly different times, and versions in a record never decrease.
    """

    def __init__(
        self,
        replicas: dict[str, InferenceClient],
        own: int,
        board: Board,
        name: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        names: Sequence[str] = list(replicas)
        self._replicas = {key: replicas[key] for key in [*names[own:], *names[:own]]}
        self._board, self._name, self._now = board, name, now
        self._away: dict[str, _Away] = {}
        self._seen = -1
        self.asked_again = 0

    def submit(self, observation: Observation) -> _Asked:
        """Ask; returns a ticket."""
        asked = _Asked(observation, "", None, self._seen)
        self._ask(asked)
        return asked

    def _ask(self, asked: _Asked) -> None:
        """The nearest that is there; nobody while all are away."""
        now = self._now()
        there = [name for name in self._replicas if name not in self._away or self._away[name].until <= now]
        asked.replica, asked.at_least = next(iter(there), ""), self._seen
        asked.ticket = self._replicas[asked.replica].submit(asked.observation) if there else None

    def poll(self, ticket: object, *, timeout_s: float = 0.0) -> Decisions | None:
        """The answer, or None while it is not there; waits at most ``timeout_s``."""
        assert isinstance(ticket, _Asked)
        if not ticket.replica:
            time.sleep(timeout_s)
            self._ask(ticket)
            return None
        try:
            decisions = self._replicas[ticket.replica].poll(ticket.ticket, timeout_s=timeout_s)
        except ReplicaLost:
            self._turn_away(ticket.replica)
            self._ask(ticket)
            self.asked_again += 1
            self._board.put({f"inference/asked_again/{self._name}": self.asked_again})
            return None
        if decisions is None:
            return None
        self._away.pop(ticket.replica, None)
        if decisions.version < ticket.at_least:
            self._ask(ticket)
            return None
        self._seen = max(self._seen, decisions.version)
        return decisions

    def _turn_away(self, replica: str) -> None:
        """Several requests may be lost with one death."""
        now, away = self._now(), self._away.get(replica)
        if away is None:
            self._away[replica] = _Away(now + FIRST_AWAY_S, FIRST_AWAY_S)
        elif away.until <= now:
            pause_s = min(2 * away.pause_s, LONGEST_AWAY_S)
            self._away[replica] = _Away(now + pause_s, pause_s)

    def wait(self, ticket: object, timeout_s: float) -> None:
        """Until the answer may be there, at most ``timeout_s``."""
        assert isinstance(ticket, _Asked)
        if ticket.replica:
            self._replicas[ticket.replica].wait(ticket.ticket, timeout_s)
        else:
            time.sleep(timeout_s)
