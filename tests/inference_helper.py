"""A policy whose answers tell which weights and which rows they are of, and services around it."""

from __future__ import annotations

from collections.abc import Callable
from platform.envs.base import Observation
from platform.inference import Decisions, InferenceService
from platform.weights import WeightStore
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from configs.system import InferenceConfig
from policies.base import Choice, ObservationTensors


def observation(*marks: float) -> Observation:
    """One row per mark; its proprio is the mark."""
    count = len(marks)
    return Observation(
        {"top": np.zeros((count, 2, 2, 3), np.uint8)},
        np.array(marks, np.float32)[:, None],
        ["reach"] * count,
    )


class MarkPolicy(torch.nn.Module):
    """Answers with its two weights, which every version sets to its number, and with the observation's mark."""

    def __init__(self, beside: Callable[[], None]) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.tensor(-1.0))
        self.second = torch.nn.Parameter(torch.tensor(-1.0))
        self.sizes: list[int] = []
        self._beside = beside

    def act(
        self,
        obs: ObservationTensors,
        *,
        greedy: bool,
        generator: torch.Generator | None = None,
        noise: torch.Tensor | None = None,
    ) -> Choice:
        first = self.first.detach().clone()
        self._beside()
        tokens = first.long().expand(len(obs), 1, 1)
        log_probs = self.second.detach().expand(len(obs), 1, 1)
        self.sizes.append(len(obs))
        return Choice(tokens, log_probs, obs.proprio[:, 0])


class MarkContext:
    """As much of a context as the service asks for."""

    seed = 0
    record_spec = SimpleNamespace(chunk=1, action_dim=1, bins=2)

    def __init__(self, beside: Callable[[], None] = lambda: None) -> None:
        self._beside = beside
        self.policies: list[MarkPolicy] = []

    def make_policy(self) -> MarkPolicy:
        self.policies.append(MarkPolicy(self._beside))
        return self.policies[-1]

    def tensors(self, seen: Observation) -> ObservationTensors:
        return ObservationTensors(
            {}, torch.from_numpy(seen.proprio), torch.zeros(len(seen.proprio), 1, dtype=torch.int64)
        )

    def sizes(self) -> list[int]:
        return [size for policy in self.policies for size in policy.sizes]


def weights_of(version: int) -> dict[str, Any]:
    return {"first": np.float32(version), "second": np.float32(version)}


def store_with(version: int) -> WeightStore:
    store = WeightStore()
    store.publish("policy", version, weights_of(version))
    return store


def service(
    context: MarkContext,
    store: Any,
    *,
    exact: bool = True,
    max_batch: int = 4,
    max_wait_ms: float = 0.0,
    running: Any = None,
) -> InferenceService:
    config = InferenceConfig(max_batch=max_batch, max_wait_ms=max_wait_ms)
    return InferenceService(cast(Any, context), config, store, running, exact=exact)


def check(decisions: Decisions | None, *marks: float, version: int) -> None:
    """Whole: rows of the question, every weight of one version, and that version named."""
    assert decisions is not None
    assert decisions.version == version
    assert decisions.values.tolist() == list(marks)
    assert decisions.tokens.tolist() == [[[version]]] * len(marks)
    assert decisions.log_probs.tolist() == [[[version]]] * len(marks)
