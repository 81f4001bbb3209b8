"""Several inference replicas as one client sees them: it asks its own, and another one when that has died."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from configs.errors import RoleFailure

from .envs.base import Observation
from .inference import Decisions, InferenceClient
from .weights import Board


class ReplicaLost(Exception):
    """The process of a replica died; what it was asked is not answered."""


@dataclass
class _Asked:
    observation: Observation
    replica: str
    ticket: object
    at_least: int
    """Newest version that the collector had acted with when it asked."""


class Replicas:
    """The client of one collector. ``own`` is the replica that it is dealt: workers are alike, so dealing them out in turn
    loads the replicas equally without asking anyone how busy they are.

    What a dead replica was asked is asked again. An answer older than what the collector had acted with when it asked is
    refused and asked for again: replicas take new weights at slightly different times, and versions in a record never decrease.
    """

    def __init__(self, replicas: dict[str, InferenceClient], own: int, board: Board, name: str) -> None:
        names: Sequence[str] = list(replicas)
        self._replicas = {key: replicas[key] for key in [*names[own:], *names[:own]]}
        self._board, self._name = board, name
        self._seen = -1
        self.asked_again = 0

    def submit(self, observation: Observation) -> _Asked:
        """Ask; returns a ticket."""
        replica = next(iter(self._replicas))
        return _Asked(observation, replica, self._replicas[replica].submit(observation), self._seen)

    def poll(self, ticket: object, *, timeout_s: float = 0.0) -> Decisions | None:
        """The answer, or None while it is not there; waits at most ``timeout_s``."""
        assert isinstance(ticket, _Asked)
        try:
            decisions = self._poll(ticket, timeout_s)
        except ReplicaLost as loss:
            self._let_go(ticket.replica, loss)
            self._ask_again(ticket)
            self.asked_again += 1
            self._board.put({f"inference/asked_again/{self._name}": self.asked_again})
            return None
        if decisions is not None and decisions.version < ticket.at_least:
            self._ask_again(ticket)
            return None
        self._seen = self._seen if decisions is None else max(self._seen, decisions.version)
        return decisions

    def _poll(self, ticket: _Asked, timeout_s: float) -> Decisions | None:
        if ticket.replica not in self._replicas:
            raise ReplicaLost(f"{ticket.replica} died")
        return self._replicas[ticket.replica].poll(ticket.ticket, timeout_s=timeout_s)

    def wait(self, ticket: object, timeout_s: float) -> None:
        """Until the answer may be there, at most ``timeout_s``."""
        assert isinstance(ticket, _Asked)
        if ticket.replica in self._replicas:
            self._replicas[ticket.replica].wait(ticket.ticket, timeout_s)

    def _let_go(self, replica: str, loss: ReplicaLost) -> None:
        self._replicas.pop(replica, None)
        if not self._replicas:
            raise RoleFailure(f"no inference replica is left: {loss}", where=replica) from loss

    def _ask_again(self, ticket: _Asked) -> None:
        again = self.submit(ticket.observation)
        ticket.replica, ticket.ticket = again.replica, again.ticket
