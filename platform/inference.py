"""The inference service: requests queue, batches leave by size or by the first request's waiting time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from buffers.replay import Running
from configs.system import InferenceConfig

from .batching import Batcher, Histogram, Request, buckets
from .context import Context
from .double_buffer import NEVER, Copy, DoubleBuffer, Loader
from .drain import Drain
from .envs.base import Observation
from .metrics import Averages, Count
from .noise import decision_noise
from .role import State
from .weights import Weights, module_arrays

if TYPE_CHECKING:
    import torch

    from policies.base import ObservationTensors

WAITS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Bounds of the histogram of waiting times."""


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

    def poll(self, ticket: object, *, timeout_s: float = 0.0) -> Decisions | None:
        """The answer, or None while it is not there. May wait ``timeout_s`` where the service runs elsewhere."""
        ...

    def wait(self, ticket: object, timeout_s: float) -> None:
        """Until the answer may be there, at most ``timeout_s``."""
        ...


class InferenceService:
    """A role: ``step`` computes one batch if one is due and never waits. ``submit`` may be called from other threads
    while it computes.

    ``exact``: the serial host, where nothing runs beside the steps: no clock decides when a batch leaves, and new weights
    are loaded in line. Noise is that of the decision asked for, the same from every replica; each draws its own for
    requests that do not say which one that is.
    """

    def __init__(
        self,
        context: Context,
        config: InferenceConfig,
        weights: Weights,
        running: Running | None = None,
        *,
        exact: bool,
        replica: int = 0,
    ) -> None:
        """``running``: tells of episodes that must end under the version of their start; None when none must."""
        import torch

        self.name = f"inference_{replica}"
        self._context = context
        self._max_batch = config.max_batch
        self._exact = exact
        self._copies = DoubleBuffer(self._make_copy, weights)
        self._drain = Drain(running)
        self._loader: Loader | None = None if exact else Loader(self._copies)
        self._generator = torch.Generator().manual_seed(context.seed + 101 + 10_007 * replica)
        self._max_wait_s = 0.0 if exact else config.max_wait_ms / 1e3
        self._batcher = Batcher(config.max_batch, self._max_wait_s)
        self._answers: dict[int, Decisions] = {}
        self._answered: dict[int, threading.Event] = {}
        self._next_ticket = 0
        self._arrival = threading.Condition()
        self._averages = Averages()
        self._batches = Histogram("inference/batches", buckets(config.max_batch))
        self._waits = Histogram("inference/waits", WAITS_MS, "_ms")

    def _make_copy(self) -> Copy:
        from .cuda_graphs import serving_act

        policy = self._context.make_policy().eval()
        return Copy(policy, serving_act(policy, self._max_batch))

    def submit(self, observation: Observation) -> int:
        """Queue a request."""
        with self._arrival:
            ticket = self._next_ticket
            self._next_ticket += 1
            self._add(ticket, observation)
            self._arrival.notify()
        return ticket

    def _add(self, ticket: int, observation: Observation) -> None:
        # An event of its own: one condition for all would wake every waiting thread at every answer.
        self._answered[ticket] = threading.Event()
        self._batcher.add(Request(ticket, observation, time.monotonic()))

    def poll(self, ticket: object, *, timeout_s: float = 0.0) -> Decisions | None:
        """The answer, once. Never waits: who shares this process with the service would wait for itself."""
        return self.wait_for(ticket, 0.0)

    def wait(self, ticket: object, timeout_s: float) -> None:
        """Until the answer is there, at most ``timeout_s``."""
        assert isinstance(ticket, int)
        answered = self._answered.get(ticket)
        if answered is not None:
            answered.wait(timeout_s)

    def wait_for(self, ticket: object, timeout_s: float) -> Decisions | None:
        """Block until the answer is there; None after ``timeout_s``."""
        assert isinstance(ticket, int)
        self.wait(ticket, timeout_s)
        with self._arrival:
            decisions = self._answers.pop(ticket, None)
            if decisions is not None:
                self._answered.pop(ticket, None)
            return decisions

    def wait_for_work(self, timeout_s: float) -> None:
        """Block until a batch is due, at most ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._arrival:
            while (now := time.monotonic()) < deadline:
                due = self._batcher.due_in(now)
                if due == 0:
                    return
                self._arrival.wait(deadline - now if due is None else min(due, deadline - now))

    def step(self) -> bool:
        """Compute one batch if one is due."""
        with self._arrival:
            due = self._batcher.due_in(time.monotonic())
            requests = self._batcher.take() if due == 0 else []
        if not requests:
            return False
        joined = concatenate([request.observation for request in requests])
        self._refresh(joined.keys)
        started = time.monotonic()
        answers = self._compute(joined, [request.size for request in requests])
        with self._arrival:
            for request, answer in zip(requests, answers, strict=True):
                self._answers[request.ticket] = answer
                self._answered[request.ticket].set()
        self._note(requests, started)
        return True

    def _refresh(self, keys: NDArray[np.int64] | None) -> None:
        """Between two batches: serve newer weights, if they are there and may be."""
        serving = self._copies.serving.version
        may_swap = serving == NEVER or self._drain.over(serving, keys)
        # Where a version must not change within an episode, those that asked began under a newer one than serves: it is
        # there, and they must not see the old one.
        now = serving == NEVER or (self._drain.waits and may_swap)
        if self._loader is None or now:
            self._copies.look()
        else:
            self._loader.nudge()
        if may_swap and self._copies.swap():
            seconds = max(0.0, time.time() - self._copies.serving.published_at)
            self._averages.add({"time/inference/publish_to_use_s": seconds})
        self._drain.decided(self._copies.serving.version, keys)

    def _compute(self, joined: Observation, sizes: list[int]) -> list[Decisions]:
        """One forward; several where a single request is larger than a batch. All under one version."""
        copy = self._copies.serving
        tensors, noise = self._context.tensors(joined), self._noise(joined.keys)
        parts = [slice(low, low + self._max_batch) for low in range(0, len(tensors), self._max_batch)]
        choices = [
            self._act(copy, tensors.take(part), None if noise is None else noise[part]) for part in parts
        ]
        tokens, log_probs, values = (np.concatenate(arrays) for arrays in zip(*choices, strict=True))
        borders = np.cumsum(sizes)[:-1]
        split = [np.split(array, borders) for array in (tokens.astype(np.int16), log_probs, values)]
        return [Decisions(t, p, v, copy.version) for t, p, v in zip(*split, strict=True)]

    def _noise(self, keys: NDArray[np.int64] | None) -> torch.Tensor | None:
        """``[n, K, D, bins]``; None where the generator must do."""
        import torch

        if keys is None:
            return None
        spec = self._context.record_spec
        return torch.from_numpy(
            decision_noise(
                self._context.seed + 101, keys, chunk=spec.chunk, action_dim=spec.action_dim, bins=spec.bins
            )
        )

    def _act(
        self, copy: Copy, part: ObservationTensors, noise: torch.Tensor | None
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        import torch

        with torch.inference_mode():
            tokens, log_probs, values = copy.act(part, greedy=False, generator=self._generator, noise=noise)
        self._averages.add({"inference/batch_size": float(len(part))})
        self._batches.add(len(part))
        return tokens.cpu().numpy(), log_probs.float().cpu().numpy(), values.float().cpu().numpy()

    def _note(self, requests: list[Request], started: float) -> None:
        self._averages.add(
            {
                "time/inference/compute_s": time.monotonic() - started,
                "time/inference/waited_s": started - requests[0].arrived,
            }
        )
        for request in requests:
            self._waits.add(1e3 * (started - request.arrived))

    def state(self) -> State:
        """Generator and, where tickets outlive a checkpoint (serial host), what waits. Weights come from the store, unless
        episodes must end under those that serve.
        """
        serving = self._copies.serving
        keeps = self._drain.waits and serving.version != NEVER
        held = {"version": serving.version, "weights": module_arrays(serving.policy)} if keeps else None
        with self._arrival:
            waiting = self._batcher.waiting() if self._exact else []
            return {
                "held": held,
                "generator": self._generator.get_state(),
                "next_ticket": self._next_ticket if self._exact else 0,
                "queue": [{"ticket": r.ticket, **vars(r.observation)} for r in waiting],
                "answers": {str(t): vars(a) for t, a in self._answers.items()} if self._exact else {},
            }

    def load(self, state: State) -> None:
        """Continue from ``state``; the weights are fetched again, unless it has them."""
        with self._arrival:
            self._generator.set_state(state["generator"])
            self._next_ticket = state["next_ticket"]
            self._batcher = Batcher(self._max_batch, self._max_wait_s)
            self._answered = {}
            self._answers = {}
            if self._exact:
                self._load_requests(state)
            self._copies.forget()
            if state["held"] is not None:
                self._copies.resume(state["held"]["version"], state["held"]["weights"])

    def _load_requests(self, state: State) -> None:
        for held in state["queue"]:
            fields = {name: value for name, value in held.items() if name != "ticket"}
            self._add(held["ticket"], Observation(**fields))
        self._answers = {int(ticket): Decisions(**a) for ticket, a in state["answers"].items()}

    def metrics(self) -> dict[str, float]:
        """Batch sizes, waits and times; every replica counts itself."""
        counts = self._batches.take() | self._waits.take()
        return {"inference/replicas": Count(1), **self._averages.take(), **counts}

    def close(self) -> None:
        """End the thread that loads weights."""
        if self._loader is not None:
            self._loader.close()


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
