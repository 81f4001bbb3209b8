"""Two copies of the policy: one serves while the other takes new weights; between two batches they change places."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .context import POLICY
from .weights import Arrays, Published, Weights, load_arrays

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from policies.base import Choice, ObservationTensors, Policy

NEVER = -1
"""Version of a copy that holds no published weights."""
BUSY_LOOK_S = 0.01
IDLE_LOOK_S = 0.1
"""Shortest pause between two looks into the store, and the longest while no batch leaves. A look costs a call to another
process: one per batch would burn a core where batches take a millisecond."""


class Act(Protocol):
    """How a copy chooses: ``Policy.act``, or the same by replaying captured graphs."""

    def __call__(
        self,
        obs: ObservationTensors,
        *,
        greedy: bool,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Choice:
        """Tokens, log-probabilities and values."""
        ...


@dataclass
class Copy:
    """One of the two."""

    policy: Policy
    act: Act
    version: int = NEVER
    published_at: float = 0.0
    """``time.time()`` of the process that published."""


class DoubleBuffer:
    """``look`` loads newer weights into the spare copy and may run beside a batch; ``swap`` is called between batches.

    Serving weights are never written to: a version serves whole or not at all.
    """

    def __init__(self, make: Callable[[], Copy], weights: Weights) -> None:
        self._weights = weights
        self._serving, self._spare = make(), make()
        self._ready = False
        self._handover = threading.Lock()
        self._looking = threading.Lock()

    @property
    def serving(self) -> Copy:
        """The copy that the next batch uses."""
        return self._serving

    @property
    def ready(self) -> bool:
        """Whether a swap would bring newer weights."""
        return self._ready

    def look(self) -> bool:
        """Fetch what is newer than both copies into the spare one; whether there was any. One thread at a time."""
        with self._looking:
            return self._look()

    def _look(self) -> bool:
        published = self._weights.fetch(POLICY, max(self._serving.version, self._spare.version))
        if published is None:
            return False
        with self._handover:
            # Weights that were ready and did not serve yet are overtaken.
            self._ready = False
        self._fill(published)
        with self._handover:
            self._ready = True
        return True

    def _fill(self, published: Published) -> None:
        self._spare.version = NEVER
        with _beside_the_compute(self._spare.policy):
            load_arrays(self._spare.policy, published.arrays)
        self._spare.version, self._spare.published_at = published.version, published.published_at

    def swap(self) -> bool:
        """Serve the spare copy if it holds newer weights, complete; whether it did."""
        with self._handover:
            if not self._ready:
                return False
            self._serving, self._spare, self._ready = self._spare, self._serving, False
            return True

    def forget(self) -> None:
        """Take the weights from the store again, even older ones (a run continues from a checkpoint)."""
        with self._handover:
            self._ready = False
            self._serving.version = self._spare.version = NEVER

    def resume(self, version: int, arrays: Arrays) -> None:
        """Serve ``version`` again (a run continues while episodes of it have not ended)."""
        load_arrays(self._serving.policy, arrays)
        self._serving.version = version


@contextmanager
def _beside_the_compute(policy: Policy) -> Iterator[None]:
    """On a GPU, a stream of its own, complete at the end: copies would wait for the batch's kernels on the common one."""
    device = next(policy.parameters()).device
    if device.type != "cuda":
        yield
        return
    import torch

    # Typed or not by the version that is installed.
    make: Any = torch.cuda.Stream
    stream = make(device)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


class Loader:
    """A thread that looks for weights beside the compute: soon after ``nudge``, else every ``IDLE_LOOK_S``."""

    def __init__(self, buffer: DoubleBuffer) -> None:
        self._buffer = buffer
        self._nudged = threading.Event()
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="weights", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """A batch leaves: look for its successor. Raises what a look raised."""
        if self._error is not None:
            raise self._error
        self._nudged.set()

    def _loop(self) -> None:
        while not self._ended.is_set():
            self._nudged.wait(IDLE_LOOK_S)
            self._nudged.clear()
            try:
                self._buffer.look()
            except Exception as error:  # noqa: BLE001  raised by the role's next step, which tells it to its host
                self._error = error
                return
            time.sleep(BUSY_LOOK_S)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._nudged.set()
        self._thread.join()
