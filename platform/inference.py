"""The inference service: requests queue, batches leave by size or by the first request's waiting time."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from configs.system import InferenceConfig

from .context import POLICY, Context
from .envs.base import Observation
from .metrics import Averages
from .noise import keyed_exponentials
from .role import State
from .services import Running
from .weights import Published, Weights, load_arrays, module_arrays

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Decisions:
    """The service's answer for n observations."""

    tokens: NDArray[np.int16]
    """``[n, K, D]``"""
    log_probs: NDArray[np.float32]
    """``[n, K, D]``"""
    values: NDArray[np.float32]
    """``[n]``"""
    version: int
    """Pinned when the batch was formed."""


class InferenceClient(Protocol):
    """What a collector sees: ask now, look later."""

    def submit(self, observation: Observation) -> object:
        """Queue a request; returns a ticket."""
        ...

    def poll(self, ticket: object) -> Decisions | None:
        """The answer, or None while it is not there."""
        ...


@dataclass
class _Request:
    ticket: int
    observation: Observation
    arrived: float

    @property
    def size(self) -> int:
        return len(self.observation.instructions)


class InferenceService:
    """A role: ``step`` forms and computes one batch. ``submit`` may be called from other threads while it computes."""

    def __init__(
        self,
        context: Context,
        config: InferenceConfig,
        weights: Weights,
        running: Running | None,
        *,
        wait: bool,
        exact: bool,
    ) -> None:
        """``running``: tells of episodes that must end under the version of their start; None when none must."""
        import torch

        self.name = "inference"
        self._context = context
        self._config = config
        self._weights = weights
        self._running = running
        self._waiting: Published | None = None
        self._wait_s = config.max_wait_ms / 1e3 if wait else 0.0
        self._exact = exact
        self._policy = context.make_policy().eval()
        self._version = -1
        self._generator = torch.Generator().manual_seed(context.seed + 101)
        self._queue: deque[_Request] = deque()
        self._answers: dict[int, Decisions] = {}
        self._next_ticket = 0
        self._condition = threading.Condition()
        self._averages = Averages()

    def submit(self, observation: Observation) -> int:
        """Queue a request."""
        with self._condition:
            ticket = self._next_ticket
            self._next_ticket += 1
            self._queue.append(_Request(ticket, observation, time.monotonic()))
            self._condition.notify_all()
        return ticket

    def poll(self, ticket: object) -> Decisions | None:
        """The answer, once."""
        assert isinstance(ticket, int)
        with self._condition:
            return self._answers.pop(ticket, None)

    def wait_for(self, ticket: int, timeout_s: float) -> Decisions | None:
        """Block until the answer is there; None after ``timeout_s``."""
        with self._condition:
            self._condition.wait_for(lambda: ticket in self._answers, timeout_s)
            return self._answers.pop(ticket, None)

    def step(self) -> bool:
        """Compute one batch if one is due."""
        requests = self._take_due()
        if not requests:
            return False
        self._refresh()
        started = time.monotonic()
        answers = self._compute([request.observation for request in requests])
        with self._condition:
            for request, answer in zip(requests, answers, strict=True):
                self._answers[request.ticket] = answer
            self._condition.notify_all()
        self._averages.add(
            {
                "time/inference/compute_s": time.monotonic() - started,
                "time/inference/waited_s": started - requests[0].arrived,
                "inference/batch_size": float(sum(r.size for r in requests)),
            }
        )
        return True

    def _take_due(self) -> list[_Request]:
        with self._condition:
            if not self._queue:
                self._condition.wait(self._wait_s)
            if not self._queue:
                return []
            waited = time.monotonic() - self._queue[0].arrived
            full = sum(r.size for r in self._queue) >= self._config.max_batch
            if not full and waited < self._wait_s:
                self._condition.wait(self._wait_s - waited)
            taken = [self._queue.popleft()]
            size = taken[0].size
            while self._queue and size + self._queue[0].size <= self._config.max_batch:
                size += self._queue[0].size
                taken.append(self._queue.popleft())
            return taken

    def _refresh(self) -> None:
        held = self._version if self._waiting is None else self._waiting.version
        self._waiting = self._weights.fetch(POLICY, held) or self._waiting
        if self._waiting is not None and self._may_swap():
            load_arrays(self._policy, self._waiting.arrays)
            self._version = self._waiting.version
            self._waiting = None

    def _may_swap(self) -> bool:
        """Whether no episode runs that the present version may have decided in. Asked after a batch was formed: then
        whoever asked in it still runs. Without any weights there is no choice.
        """
        if self._running is None or self._version < 0:
            return True
        return self._running.running_before(self._version + 1) == 0

    def _compute(self, observations: list[Observation]) -> list[Decisions]:
        import torch

        joined = concatenate(observations)
        tensors = self._context.tensors(joined)
        with torch.inference_mode():
            tokens, log_probs, values = self._policy.act(
                tensors, greedy=False, generator=self._generator, noise=self._noise(joined.keys)
            )
        arrays = (
            tokens.cpu().numpy().astype(np.int16),
            log_probs.float().cpu().numpy(),
            values.float().cpu().numpy(),
        )
        borders = np.cumsum([len(o.instructions) for o in observations])[:-1]
        parts = zip(*(np.split(array, borders) for array in arrays), strict=True)
        return [Decisions(t, p, v, self._version) for t, p, v in parts]

    def _noise(self, keys: NDArray[np.int64] | None) -> torch.Tensor | None:
        """``[n, K, D, bins]``; None where the generator must do: a request without keys is told by nothing else."""
        import torch

        if keys is None:
            return None
        spec = self._context.record_spec
        shape = (spec.chunk, spec.action_dim, spec.bins)
        drawn = keyed_exponentials(self._context.seed + 101, keys, math.prod(shape))
        return torch.from_numpy(drawn.reshape(-1, *shape))

    def state(self) -> State:
        """Generator and, where tickets outlive a checkpoint (serial host), what waits. Weights come from the store, unless
        episodes must end under older ones.
        """
        held = {"version": self._version, "weights": module_arrays(self._policy)}
        with self._condition:
            if not self._exact:
                return {
                    "held": None if self._running is None else held,
                    "generator": self._generator.get_state(),
                    "next_ticket": 0,
                    "queue": [],
                    "answers": {},
                }
            return {
                "held": None if self._running is None else held,
                "generator": self._generator.get_state(),
                "next_ticket": self._next_ticket,
                "queue": [
                    {
                        "ticket": r.ticket,
                        "images": dict(r.observation.images),
                        "proprio": r.observation.proprio,
                        "instructions": list(r.observation.instructions),
                        "keys": r.observation.keys,
                    }
                    for r in self._queue
                ],
                "answers": {
                    str(ticket): {
                        "tokens": a.tokens,
                        "log_probs": a.log_probs,
                        "values": a.values,
                        "version": a.version,
                    }
                    for ticket, a in self._answers.items()
                },
            }

    def load(self, state: State) -> None:
        """Continue from ``state``; the weights are fetched again, unless it has them."""
        with self._condition:
            self._generator.set_state(state["generator"])
            self._next_ticket = state["next_ticket"]
            now = time.monotonic()
            self._queue = deque(
                _Request(
                    q["ticket"], Observation(q["images"], q["proprio"], q["instructions"], q["keys"]), now
                )
                for q in state["queue"]
            )
            self._answers = {int(ticket): Decisions(**a) for ticket, a in state["answers"].items()}
            self._waiting = None
            self._version = -1
            if state["held"] is not None:
                load_arrays(self._policy, state["held"]["weights"])
                self._version = state["held"]["version"]

    def metrics(self) -> dict[str, float]:
        """Batch sizes and times."""
        return self._averages.take()

    def close(self) -> None:
        """Nothing is held."""


def concatenate(observations: list[Observation]) -> Observation:
    """Observations below each other; all have the same cameras."""
    if len(observations) == 1:
        return observations[0]
    return Observation(
        {name: np.concatenate([o.images[name] for o in observations]) for name in observations[0].images},
        np.concatenate([o.proprio for o in observations]),
        [text for o in observations for text in o.instructions],
        join_keys(observations),
    )


def join_keys(observations: list[Observation]) -> NDArray[np.int64] | None:
    """All keys below each other, or none where one has none."""
    keys = [o.keys for o in observations if o.keys is not None]
    return np.concatenate(keys) if len(keys) == len(observations) else None
