"""When a batch of requests leaves, and counts of what left. No clock and no lock here: callers bring both."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from .envs.base import Observation
from .metrics import Count


@dataclass(frozen=True)
class Request:
    """Observations of one collector that wait for decisions."""

    ticket: int
    observation: Observation
    arrived: float
    """Seconds on the caller's clock."""

    @property
    def size(self) -> int:
        """Observations."""
        return len(self.observation.instructions)


class Batcher:
    """Requests in the order of their arrival. A batch is due when ``max_batch`` observations wait, or when the first
    request has waited ``max_wait_s``: later arrivals do not extend the wait.
    """

    def __init__(self, max_batch: int, max_wait_s: float) -> None:
        self._max_batch, self._max_wait_s = max_batch, max_wait_s
        self._requests: deque[Request] = deque()
        self._size = 0

    def add(self, request: Request) -> None:
        """At the end of the queue."""
        self._requests.append(request)
        self._size += request.size

    def due_in(self, now: float) -> float | None:
        """Seconds until a batch may leave, 0 when it may now; None while nobody waits."""
        if not self._requests:
            return None
        if self._size >= self._max_batch:
            return 0.0
        return max(0.0, self._requests[0].arrived + self._max_wait_s - now)

    def take(self) -> list[Request]:
        """Whole requests, in order, of at most ``max_batch`` observations together; a larger request leaves alone."""
        taken: list[Request] = []
        size = 0
        while self._requests and (not taken or size + self._requests[0].size <= self._max_batch):
            taken.append(self._requests.popleft())
            size += taken[-1].size
        self._size -= size
        return taken

    def waiting(self) -> list[Request]:
        """Those that were not taken yet."""
        return list(self._requests)


def buckets(largest: int) -> tuple[int, ...]:
    """Powers of two below ``largest``, and ``largest`` itself."""
    return (*(1 << power for power in range((largest - 1).bit_length())), largest)


class Histogram:
    """How many numbers fell at or below each bound, and above the bound before it."""

    def __init__(self, name: str, bounds: Sequence[int], unit: str = "") -> None:
        self._bounds = tuple(bounds)
        self._names = [*(f"{name}/up_to_{bound}{unit}" for bound in bounds), f"{name}/longer"]
        self._counts = [0] * len(self._names)

    def add(self, value: float) -> None:
        """Count one number."""
        self._counts[bisect_left(self._bounds, value)] += 1

    def take(self) -> dict[str, float]:
        """Counts since the last call; bounds that nothing fell to are left out."""
        pairs = zip(self._names, self._counts, strict=True)
        found: dict[str, float] = {name: Count(count) for name, count in pairs if count}
        self._counts = [0] * len(self._names)
        return found
