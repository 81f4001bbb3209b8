"""How many environment slots each rollout worker may use: those whose environments are slow give some to the others.

``rebalance`` decides, without I/O and clock; ``Balancer`` is a worker's side of it. Workers say on the board how busy their
slots are, the first worker decides, all obey: who has too many slots lets episodes end and starts no others.
"""

from __future__ import annotations

from typing import Any

from .weights import Board

MARGIN = 0.1
"""Difference of the busy shares below which nothing moves: one slot back and forth costs episodes."""
LEAST = 1
"""Slots that a worker keeps: without any it could never show that it became faster."""
DECIDE_S = 2.0
"""Time over which a worker's busy share is measured; one slot moves at most each time."""


def rebalance(slots: dict[str, int], busy: dict[str, float], *, most: int) -> dict[str, int]:
    """Slots by worker after moving at most one from the busiest to the idlest worker; their sum never changes.

    Args:
        slots: In use now.
        busy: Share of the slots' time that was spent inside the environment, in [0, 1]. Nothing moves before every
            worker has told.
        most: Slots that a worker has built.
    """
    if busy.keys() != slots.keys():
        return slots
    givers = [name for name in slots if slots[name] > LEAST]
    takers = [name for name in slots if slots[name] < most]
    if not givers or not takers:
        return slots
    giver = max(givers, key=lambda name: busy[name])
    taker = min(takers, key=lambda name: busy[name])
    if busy[giver] - busy[taker] <= MARGIN:
        return slots
    return {**slots, giver: slots[giver] - 1, taker: slots[taker] + 1}


class Balancer:
    """Of the worker ``name`` among ``workers``, each with ``envs`` slots at first and ``most`` built."""

    def __init__(self, board: Board, name: str, workers: list[str], *, envs: int, most: int) -> None:
        self._board, self._name, self._workers = board, name, workers
        self._envs, self._most = envs, most
        self._next = 0.0

    def due(self, now: float) -> bool:
        """Whether it is time to tell."""
        return now >= self._next

    def tell(self, now: float, busy: float) -> None:
        """Say how busy the slots were; the first worker then decides."""
        self._next = now + DECIDE_S
        self._board.put({f"rollout/busy/{self._name}": busy})
        if self._name != self._workers[0]:
            return
        facts = self._board.read()
        slots = {name: self._slots(facts, name) for name in self._workers}
        told = {name: facts.get(f"rollout/busy/{name}") for name in self._workers}
        known = {name: float(share) for name, share in told.items() if share is not None}
        after = rebalance(slots, known, most=self._most)
        self._board.put({f"rollout/slots/{name}": count for name, count in after.items()})

    def allotted(self, facts: dict[str, Any]) -> int:
        """Slots that this worker may use, from the board's ``facts``."""
        return self._slots(facts, self._name)

    def _slots(self, facts: dict[str, Any], name: str) -> int:
        # A resumed run may have built fewer slots than the one that wrote the board.
        return min(int(facts.get(f"rollout/slots/{name}", self._envs)), self._most)
