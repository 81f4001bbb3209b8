"""Actions of an imagined world: the tokens that policies speak, or numbers for algorithms that want a ``Box``."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from world_models.base import ModelSpec


class Actions(Protocol):
    """One decision of one world as a flat vector: the R executed actions of D dimensions each, in their order."""

    space: spaces.Space[Any]

    def fit(self, actions: NDArray[Any]) -> bool:
        """Whether every entry of ``[N, R * D]`` lies in the space."""
        ...

    def tokens(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """``[N, R * D]`` as tokens of whole chunks ``[N, K, D]``; those that are never executed are 0."""
        ...


class TokenActions:
    """Action tokens: a ``MultiDiscrete`` of ``bins`` choices each."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self.space = spaces.MultiDiscrete([spec.bins] * (spec.replan * spec.action_dim))

    def fit(self, actions: NDArray[Any]) -> bool:
        """Whole numbers from 0 to bins - 1."""
        whole = np.issubdtype(actions.dtype, np.integer)
        return bool(whole and (actions >= 0).all() and (actions < self._spec.bins).all())

    def tokens(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """As they are."""
        return _chunks(np.asarray(actions, np.int64), self._spec)


class ContinuousActions:
    """Numbers in [-1, 1], in units of half the action's range; each stands for the bin that it lies in."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self.space = spaces.Box(-1, 1, (spec.replan * spec.action_dim,), np.float32)

    def fit(self, actions: NDArray[Any]) -> bool:
        """Finite; what lies beyond the bounds counts as the bound."""
        return bool(np.isfinite(actions).all())

    def tokens(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """``floor((action + 1) / 2 * parts)``, the inverse of ``normalized_actions``."""
        parts = self._spec.parts
        scaled = np.floor((np.asarray(actions, np.float64) + 1) / 2 * parts)
        return _chunks(np.clip(scaled, 0, parts - 1).astype(np.int64), self._spec)


def _chunks(executed: NDArray[np.int64], spec: ModelSpec) -> NDArray[np.int64]:
    chunks = np.zeros((len(executed), spec.chunk, spec.action_dim), np.int64)
    chunks[:, : spec.replan] = executed.reshape(-1, spec.replan, spec.action_dim)
    return chunks


ACTIONS: dict[str, type] = {"tokens": TokenActions, "continuous": ContinuousActions}


def make_actions(kind: str, spec: ModelSpec) -> Actions:
    """``kind`` is a name of ``ACTIONS``."""
    actions: Actions = ACTIONS[kind](spec)
    return actions
