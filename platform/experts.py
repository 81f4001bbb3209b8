"""Scripted demonstrators of the environments that have one, as chunks that action tokens can carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from configs.errors import EnvError

from .envs.base import DecisionEnv
from .envs.between import FramesBetween

Actions = NDArray[np.float32]
Behave = Callable[[int, Actions], Actions]
"""(step of the chunk, actions ``[n, D]``) to what is executed instead: disturbed, quantised."""


class Expert(Protocol):
    """Sees the environment's true state; works ahead on a copy of it."""

    noise: Actions
    """``[D]``: how much of the noise of a ``NoiseLevel`` each dimension bears."""

    def begin(self, slots: NDArray[np.int64]) -> None:
        """Episodes have started in ``slots``."""
        ...

    def chunks(self, slots: NDArray[np.int64], behave: Behave) -> Actions:
        """``[n, K, D]``: the controller in closed loop. Executing them does exactly what the copy did."""
        ...


class _Tabletop:
    noise: Actions = np.ones(3, np.float32)

    def __init__(self, env: DecisionEnv, chunk: int, _replan: int) -> None:
        from .envs.decision import TabletopDecisionEnv

        assert isinstance(env, TabletopDecisionEnv)
        self._env, self._chunk = env, chunk

    def begin(self, slots: NDArray[np.int64]) -> None:
        """It remembers nothing."""

    def chunks(self, slots: NDArray[np.int64], behave: Behave) -> Actions:
        from .envs.expert import expert_chunks

        return expert_chunks(self._env.worlds, slots, self._chunk, behave)


def _libero(env: DecisionEnv, chunk: int, replan: int) -> Expert:
    from .envs.libero_env import LiberoDecisionEnv
    from .envs.libero_expert import LiberoExpert

    assert isinstance(env, LiberoDecisionEnv)
    return LiberoExpert(env, chunk=chunk, replan=replan)


_EXPERTS: dict[str, Callable[[DecisionEnv, int, int], Expert]] = {
    "TabletopDecisionEnv": _Tabletop,
    "LiberoDecisionEnv": _libero,
}
"""By the name of the class, so that nothing of an environment is imported before it is used."""


def has_expert(kind: str) -> bool:
    """Whether ``env.kind`` has a demonstrator."""
    return kind in ("tabletop", "libero")


def make_expert(env: DecisionEnv, *, chunk: int, replan: int) -> Expert:
    """The demonstrator of ``env``, which must hold its slots in this process, in chunks of ``chunk`` actions, of which
    ``replan`` are executed.

    Raises:
        EnvError: there is none.
    """
    env = env.env if isinstance(env, FramesBetween) else env
    name = type(env).__name__
    if name not in _EXPERTS:
        raise EnvError(
            f"there is no scripted expert for {env.spec.name}", where="env.kind",
            remedy="use env=tabletop, env=libero_object or env=libero_spatial",
        )  # fmt: skip
    return _EXPERTS[name](env, chunk, replan)
