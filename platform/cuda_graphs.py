"""A policy's forward as CUDA graphs, one per batch bucket: inputs are copied into fixed tensors, padded to the bucket.

Small networks are bound by launching their kernels; a graph launches all of them at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from policies.base import Choice, ObservationTensors, Policy, choose_tokens

from .batching import buckets

if TYPE_CHECKING:
    from .double_buffer import Act

Forward = Callable[[], tuple[Tensor, Tensor]]
"""Logits ``[B, K, D, bins]`` and values ``[B]`` of the fixed inputs; the tensors may be the same at each call."""
Capture = Callable[[Forward], Forward]
"""What turns a forward into one that replays."""
WARM_UP_RUNS = 3
"""Before a capture, so that libraries have chosen their algorithms and taken their workspaces."""


def serving_act(policy: Policy, max_batch: int) -> Act:
    """How ``policy`` is best served where it lives."""
    return GraphedAct(policy, max_batch, capture_on_gpu) if can_capture(policy) else policy.act


def can_capture(policy: Policy) -> bool:
    """Whether graphs give what ``policy.act`` gives: on a GPU, and for a policy that acts by one forward."""
    return next(policy.parameters()).device.type == "cuda" and type(policy).act is Policy.act


def capture_on_gpu(forward: Forward) -> Forward:
    """Record the kernels of ``forward``; each call of the answer replays them."""
    # Typed or not by the version that is installed.
    make: Any = torch.cuda.Stream
    side = make()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_RUNS):
            forward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # New weights may be loaded by another thread meanwhile: its allocations must not spoil the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = forward()

    def replay() -> tuple[Tensor, Tensor]:
        graph.replay()
        return output

    return replay


class GraphedAct:
    """``Policy.act`` for batches of up to ``max_batch``. Buckets are captured when they are first needed.

    Weights may change between calls, in place; the tensors that hold them may not.
    """

    def __init__(self, policy: Policy, max_batch: int, capture: Capture) -> None:
        self._policy = policy
        self._sizes = buckets(max_batch)
        self._capture = capture
        self._captured: dict[int, tuple[ObservationTensors, Forward]] = {}

    @torch.inference_mode()
    def __call__(
        self,
        obs: ObservationTensors,
        *,
        greedy: bool,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Choice:
        """Tokens, log-probabilities and values of the rows of ``obs`` alone; noise comes from outside the graph."""
        count = len(obs)
        bucket = self._sizes[bisect_left(self._sizes, count)]
        if bucket not in self._captured:
            self._captured[bucket] = self._prepare(obs, bucket)
        inputs, forward = self._captured[bucket]
        _write(inputs, obs)
        logits, values = forward()
        tokens, log_probs = choose_tokens(logits[:count], greedy=greedy, generator=generator, noise=noise)
        # The next replay writes over the outputs.
        return Choice(tokens, log_probs, values[:count].clone())

    def _prepare(self, obs: ObservationTensors, bucket: int) -> tuple[ObservationTensors, Forward]:
        # Rows beyond the batch are never read, but must be numbers: whatever stood there once.
        inputs = obs.take(torch.zeros(bucket, dtype=torch.int64, device=obs.proprio.device))

        def forward() -> tuple[Tensor, Tensor]:
            output = self._policy.forward(inputs)
            return output.logits, self._policy.value(output.features)

        return inputs, self._capture(forward)


def _write(inputs: ObservationTensors, obs: ObservationTensors) -> None:
    for name, frames in obs.images.items():
        inputs.images[name][: len(obs)].copy_(frames)
    inputs.proprio[: len(obs)].copy_(obs.proprio)
    inputs.instruction_ids[: len(obs)].copy_(obs.instruction_ids)
