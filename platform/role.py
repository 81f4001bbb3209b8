"""What a role is. It does not know where it runs; a host calls it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

State = dict[str, Any]
"""Nested dictionaries and lists of arrays, tensors, numbers, strings, booleans and None: what a checkpoint can hold
without pickle."""


class Role(Protocol):
    """One loop of the running system."""

    name: str

    def step(self) -> bool:
        """Do one unit of work (at most about a second); False when there was nothing to do."""
        ...

    def state(self) -> State:
        """Everything that ``load`` needs to continue as if nothing had happened."""
        ...

    def load(self, state: State) -> None:
        """Continue from ``state``."""
        ...

    def metrics(self) -> dict[str, float]:
        """What happened since the last call, by design's metric names."""
        ...

    def close(self) -> None:
        """Free what the role holds."""
        ...


@runtime_checkable
class WaitsForWork(Protocol):
    """A role that others give work to: between two steps it waits for that, not for a time."""

    def wait_for_work(self, timeout_s: float) -> None:
        """Block until a step may find something to do, at most ``timeout_s``."""
        ...


@runtime_checkable
class CanCutShort(Protocol):
    """A role whose steps are long."""

    def cut_short(self) -> None:
        """Called by another thread: the step under way, or else the next one, ends as soon as it can without leaving
        anything half done.
        """
        ...
