"""Who acts in an evaluation: a policy, a scripted demonstrator, nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from .context import Context
from .noise import decision_noise

if TYPE_CHECKING:
    from .envs.base import DecisionEnv, Observation
    from .weights import Arrays


class Actor(Protocol):
    """Decides for the one slot of a trial."""

    def begin(self, env: DecisionEnv) -> None:
        """An episode has started in ``env``."""
        ...

    def decide(
        self, observation: Observation, key: NDArray[np.int64], *, greedy: bool
    ) -> NDArray[np.float32]:
        """Actions ``[1, K, D]`` in env units; what is random in them is drawn from ``key`` ``[1, 3]`` alone."""
        ...


class PolicyActor:
    """A policy, asked for one observation at a time: a batch's other rows could change the last bit of its answer."""

    def __init__(self, context: Context, arrays: Arrays | None) -> None:
        from .weights import load_arrays

        assert arrays is not None
        self._context = context
        self._policy = context.make_policy().eval()
        load_arrays(self._policy, arrays)

    def begin(self, env: DecisionEnv) -> None:
        """A policy remembers nothing."""

    def decide(
        self, observation: Observation, key: NDArray[np.int64], *, greedy: bool
    ) -> NDArray[np.float32]:
        """The policy's choice."""
        import torch

        context, spec = self._context, self._context.env_spec
        noise = None
        if not greedy:
            chunk, bins = context.policy_config.chunk, context.policy_config.bins
            drawn = decision_noise(context.seed, key, chunk=chunk, action_dim=spec.action_dim, bins=bins)
            noise = torch.from_numpy(drawn).to(context.torch_device)
        with torch.inference_mode():
            tokens = self._policy.act(context.tensors(observation), greedy=greedy, noise=noise).tokens
        return context.tokenizer.decode(tokens.cpu().numpy())


class ExpertActor:
    """The scripted demonstrator, in action tokens as a policy's. EnvError where the environment has none."""

    def __init__(self, context: Context, arrays: Arrays | None) -> None:
        self._tokenizer = context.tokenizer
        self._chunks = {"chunk": context.policy_config.chunk, "replan": context.policy_config.replan}

    def begin(self, env: DecisionEnv) -> None:
        """It sees the environment's state."""
        from .experts import make_expert

        self._expert = make_expert(env, **self._chunks)
        self._expert.begin(np.zeros(1, np.int64))

    def decide(
        self, observation: Observation, key: NDArray[np.int64], *, greedy: bool
    ) -> NDArray[np.float32]:
        """The same whatever is asked for."""

        def quantised(_step: int, actions: NDArray[np.float32]) -> NDArray[np.float32]:
            return self._tokenizer.decode(self._tokenizer.encode(actions))

        return self._expert.chunks(np.zeros(1, np.int64), quantised)


class StillActor:
    """All actions in the middle of their range."""

    def __init__(self, context: Context, arrays: Arrays | None) -> None:
        spec = context.env_spec
        middle = (np.asarray(spec.action_low) + np.asarray(spec.action_high)) / 2
        self._actions = np.tile(middle.astype(np.float32), (1, context.policy_config.chunk, 1))

    def begin(self, env: DecisionEnv) -> None:
        """Nothing to remember."""

    def decide(
        self, observation: Observation, key: NDArray[np.int64], *, greedy: bool
    ) -> NDArray[np.float32]:
        """Always the same."""
        return self._actions


_ACTORS: dict[str, Callable[[Context, Arrays | None], Actor]] = {
    "policy": PolicyActor,
    "expert": ExpertActor,
    "still": StillActor,
}


def make_actor(name: str, context: Context, arrays: Arrays | None) -> Actor:
    """The actor of ``evaluation.actor``; ``arrays`` are a policy's weights."""
    return _ACTORS[name](context, arrays)
