"""The policy learner over several processes: each trains on its share of a turn, and all take the same step.

Rank 0 is the policy learner itself: it leases, commits and publishes. The other ranks are passive and only work while
rank 0 calls them, so whatever it waits for (a short buffer, a pause, a checkpoint) finds them at rest, and never inside
a collective that nobody answers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .metrics import Averages
from .role import State

if TYPE_CHECKING:
    from buffers.records import RecordBatch

    from .policy_batch import DecisionBatch

LOOPBACK = "127.0.0.1"
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Device to what carries the collectives."""
BLAME_S = 5.0
"""Everyone notices at once that a rank died: how long to wait for word of which."""


@dataclass(frozen=True)
class Seat:
    """A process's place in the group, and where the group meets."""

    address: str
    port: int
    rank: int
    size: int
    device: str


@dataclass(frozen=True)
class Share:
    """What one rank trains on in one turn."""

    batches: list[RecordBatch]
    version: int
    """The learner's."""
    turns: int
    """Turns before this one."""


class Trainer(Protocol):
    """What is trained over ranks."""

    version: int
    turns: int
    averages: Averages
    """Metrics since they were last taken."""

    def train(self, batches: list[RecordBatch]) -> DecisionBatch:
        """One turn's updates on this rank's share; every rank must train at the same time."""
        ...

    def held(self, parts: Sequence[str]) -> State:
        """Weights and optimizers' states, as far as this rank holds them."""
        ...

    def load(self, state: State) -> None:
        """Continue from ``state``."""
        ...


class Colleague(Protocol):
    """Another rank, as rank 0 sees it: begin a call, look for its answer later."""

    def begin(self, method: str, *args: Any) -> object:
        """Start a call; a ticket for its answer."""
        ...

    def finish(self, ticket: object, timeout_s: float | None = None) -> Any:
        """The answer. RoleFailure naming the rank when it died or failed, TimeoutError after ``timeout_s``."""
        ...


class RankWorker:
    """A rank above 0: has a trainer like rank 0's and trains it on what it is given."""

    def __init__(self, build: Callable[[], Trainer]) -> None:
        self._build = build
        self._trainer: Trainer | None = None

    def join(self, seat: Seat) -> None:
        """Take a place in the group, then build the trainer: what it is made of asks for its rank."""
        join(_store(seat.address, seat.port, is_master=False), seat)
        self._trainer = self._build()

    def turn(self, share: Share) -> Averages:
        """Train; what was measured."""
        trainer = self._joined()
        trainer.version, trainer.turns = share.version, share.turns
        trainer.train(share.batches)
        measured = Averages()
        measured.merge(trainer.averages)
        trainer.averages.take()
        return measured

    def load(self, state: State) -> None:
        """Continue from rank 0's ``state``."""
        self._joined().load(state)

    def held(self, parts: Sequence[str]) -> State:
        """What this rank holds of ``parts`` of the trainer's state."""
        return self._joined().held(parts)

    def _joined(self) -> Trainer:
        assert self._trainer is not None, "a rank works once it has joined"
        return self._trainer


class Team:
    """Rank 0's hold on the others; without any, a turn is its own."""

    def __init__(self, colleagues: Sequence[Colleague] = ()) -> None:
        self._colleagues = list(colleagues)

    def turn(self, trainer: Trainer, batches: list[RecordBatch]) -> DecisionBatch:
        """Train on ``batches``, shared out among the ranks; rank 0's batch, with the versions of all decisions.

        RoleFailure naming the rank that died. One that fails and lives leaves the others waiting: its host tells.
        """
        own, *others = shares_of(batches, 1 + len(self._colleagues))
        tickets = [
            (colleague, colleague.begin("turn", Share(share, trainer.version, trainer.turns)))
            for colleague, share in zip(self._colleagues, others, strict=True)
        ]
        try:
            batch = trainer.train(own)
        except RuntimeError:
            # A rank that died comes up here as a lost connection.
            for colleague, ticket in tickets:
                with suppress(TimeoutError):
                    colleague.finish(ticket, BLAME_S)
            raise
        for colleague, ticket in tickets:
            trainer.averages.merge(colleague.finish(ticket))
        return replace(
            batch,
            version=np.concatenate([part.version.ravel() for part in batches]),
            present=np.concatenate([part.decisions.ravel() for part in batches]),
        )

    def held(self, parts: Sequence[str]) -> list[State]:
        """What each other rank holds of ``parts`` of the trainer's state, in their order."""
        tickets = [(colleague, colleague.begin("held", parts)) for colleague in self._colleagues]
        return [colleague.finish(ticket) for colleague, ticket in tickets]

    def load(self, state: State) -> None:
        """Every other rank continues from rank 0's ``state``."""
        tickets = [(colleague, colleague.begin("load", state)) for colleague in self._colleagues]
        for colleague, ticket in tickets:
            colleague.finish(ticket)


def gather(colleagues: Sequence[Colleague], *, address: str, device: str) -> Team:
    """Make this process rank 0 of a group with ``colleagues``; it listens at ``address``, an own one of this machine."""
    if not colleagues:
        return Team()
    store, port = _listen(address)
    size = 1 + len(colleagues)
    seats = [Seat(address, port, rank, size, device) for rank in range(size)]
    tickets = [
        (colleague, colleague.begin("join", seat))
        for colleague, seat in zip(colleagues, seats[1:], strict=True)
    ]
    join(store, seats[0])
    for colleague, ticket in tickets:
        colleague.finish(ticket)
    return Team(colleagues)


def _listen(address: str) -> tuple[Any, int]:
    """A store on a free port of ``address`` alone: torch itself would listen on every interface."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    listener.listen()
    port = int(listener.getsockname()[1])
    return _store(address, port, is_master=True, master_listen_fd=listener.detach()), port


def _store(address: str, port: int, **how: Any) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(address, port, wait_for_workers=False, **how)


def join(store: Any, seat: Seat) -> None:
    """Make this process a rank, for torch and for accelerate; before anything in it has asked accelerate for one."""
    import torch
    from accelerate.state import is_initialized

    assert not is_initialized(), "accelerate keeps its first state: ranks join before they build"
    os.environ |= {
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(seat.size),
        # One GPU is visible to a rank, so its local number is 0 wherever it runs.
        "LOCAL_RANK": "0" if seat.device == "cuda" else str(seat.rank),
        "LOCAL_WORLD_SIZE": str(seat.size),
    }
    if seat.address == LOOPBACK:
        # Gloo would otherwise listen where this machine's name points to.
        names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])
    torch.distributed.init_process_group(
        BACKENDS[seat.device], store=store, rank=seat.rank, world_size=seat.size
    )


def shares_of(batches: list[RecordBatch], ranks: int) -> list[list[RecordBatch]]:
    """Whole records in their order, cut where each rank gets about as many decisions, and one record at least.

    What the ranks hold, one after the other, is ``batches``, one after the other.
    """
    borders = _borders(np.concatenate([batch.lengths for batch in batches]), ranks)
    shares = []
    for low, high in pairwise(borders):
        share, before = [], 0
        for batch in batches:
            count = len(batch.lengths)
            piece = slice(max(0, low - before), min(count, high - before))
            if piece.start < piece.stop:
                share.append(batch if piece == slice(0, count) else _records(batch, piece))
            before += count
        shares.append(share)
    return shares


def _borders(lengths: np.ndarray[Any, np.dtype[np.int64]], ranks: int) -> list[int]:
    """``[ranks + 1]``: rank r holds records ``borders[r]`` to ``borders[r + 1]``."""
    count = len(lengths)
    assert count >= ranks, f"{count} records for {ranks} ranks"
    decisions = np.concatenate([[0], np.cumsum(lengths)])
    borders = [0]
    for rank in range(1, ranks):
        nearest = int(np.abs(decisions - decisions[-1] * rank / ranks).argmin())
        borders.append(min(max(nearest, borders[-1] + 1), count - (ranks - rank)))
    return [*borders, count]


def _records(batch: RecordBatch, piece: slice) -> RecordBatch:
    images = {name: frames[piece] for name, frames in batch.images.items()}
    rest = {name: value[piece] for name, value in vars(batch).items() if name != "images"}
    return replace(batch, images=images, **rest)
