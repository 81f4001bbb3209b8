"""What every policy is, and how one is made.

Shape letters: B observations, K actions per chunk, D action dimensions, P proprio numbers, L instruction words,
F features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from configs.errors import DataError
from configs.policy import PolicyConfig
from policies.instructions import InstructionVocabulary
from policies.tokens import ActionTokenizer


@dataclass(frozen=True)
class PolicySpec:
    """What a policy reads and answers; kept beside its weights."""

    cameras: dict[str, tuple[int, int]]
    """Camera name to (height, width)."""
    proprio_dim: int
    chunk: int
    """Actions per decision, K."""
    replan: int
    """How many of them are executed."""
    action_dim: int
    bins: int
    """Action tokens per dimension."""
    action_low: tuple[float, ...]
    """Env units, per dimension."""
    action_high: tuple[float, ...]
    instructions: tuple[str, ...]
    """Their words are the vocabulary."""

    def tokenizer(self) -> ActionTokenizer:
        """Between actions in env units and tokens."""
        return ActionTokenizer(self.action_low, self.action_high, self.bins)

    def to_json(self) -> dict[str, object]:
        """As JSON types; ``from_json`` is the inverse."""
        fields = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        fields["cameras"] = {name: list(size) for name, size in self.cameras.items()}
        return fields

    @staticmethod
    def from_json(data: dict[str, object]) -> PolicySpec:
        """Read what ``to_json`` wrote."""
        fields: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in data.items()}
        fields["cameras"] = {name: (int(h), int(w)) for name, (h, w) in fields["cameras"].items()}
        return PolicySpec(**fields)

    def require(self, other: PolicySpec, *, where: str, remedy: str) -> None:
        """Raise DataError naming the first field in which ``other`` differs.

        ``other`` may know fewer instructions, as long as their words are in this vocabulary.
        """
        ours, theirs = self.to_json(), other.to_json()
        for key, value in ours.items():
            if key != "instructions" and theirs[key] != value:
                raise DataError(f"{key} is {theirs[key]}, the policy has {value}", where=where, remedy=remedy)
        InstructionVocabulary(self.instructions).encode(other.instructions)


@dataclass
class ObservationTensors:
    """A batch of observations on one device."""

    images: dict[str, UInt8[Tensor, "B H W 3"]]
    proprio: Float[Tensor, "B P"]
    instruction_ids: Int64[Tensor, "B L"]

    def __len__(self) -> int:
        """B."""
        return int(self.proprio.shape[0])

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> ObservationTensors:
        """The same on ``device``."""
        return ObservationTensors(
            {name: x.to(device, non_blocking=non_blocking) for name, x in self.images.items()},
            self.proprio.to(device, non_blocking=non_blocking),
            self.instruction_ids.to(device, non_blocking=non_blocking),
        )

    def take(self, index: Tensor | slice) -> ObservationTensors:
        """Rows ``index``: int64 positions, a boolean mask or a slice."""
        return ObservationTensors(
            {name: x[index] for name, x in self.images.items()},
            self.proprio[index],
            self.instruction_ids[index],
        )


def observation_tensors(
    images: dict[str, NDArray[np.uint8]],
    proprio: NDArray[np.float32],
    instructions: Sequence[str],
    vocabulary: InstructionVocabulary,
) -> ObservationTensors:
    """Tensors on the CPU from images ``{camera: [B, H, W, 3]}``, proprio ``[B, P]`` and B instructions.

    Contiguous writable arrays are shared, not copied. Raises DataError for a word outside the vocabulary.
    """
    assert len(proprio) == len(instructions), f"{len(proprio)} observations, {len(instructions)} instructions"
    return ObservationTensors(
        {name: _tensor(frames) for name, frames in images.items()},
        _tensor(proprio),
        torch.from_numpy(vocabulary.encode(instructions)),
    )


def _tensor(array: NDArray[Any]) -> Tensor:
    """Arrays out of a shared object store are read-only, which torch cannot express."""
    contiguous = np.ascontiguousarray(array)
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy())


@dataclass
class PolicyOutput:
    """What the actor answers."""

    logits: Float[Tensor, "B K D bins"]
    """Always float32: log-probabilities in half precision are too coarse for ratios."""
    features: Float[Tensor, "B F"]
    """What the critic reads of the actor: float32, without gradient."""


class Choice(NamedTuple):
    """What was chosen for a batch of observations, without gradient."""

    tokens: Int64[Tensor, "B K D"]
    log_probs: Float[Tensor, "B K D"]
    values: Float[Tensor, " B"]


class Trunk(NamedTuple):
    """A part of a policy that runs by a call of its own, and so do its blocks."""

    module: nn.Module
    blocks: list[nn.Module]


class Policy(nn.Module, ABC):
    """An actor, and a critic that reads the actor's features and never changes them.

    A value loss that reaches the actor's trunk destroys a cloned policy; a critic with a trunk of its own takes
    thousands of updates to find what the actor already sees.
    """

    spec: PolicySpec
    vocabulary: InstructionVocabulary
    temperature: float = 1.0
    """By which the logits of ``forward`` and ``act`` are divided already."""
    frozen_names: frozenset[str] = frozenset()
    """Weights that never change and that everybody who builds the policy has: they are not published."""

    @abstractmethod
    def forward(self, obs: ObservationTensors, tokens: Int64[Tensor, "B K D"] | None = None) -> PolicyOutput:
        """The actor alone. A policy that chooses one token after another answers, for each place, what it makes of it
        after the ``tokens`` before; who recomputes log-probabilities always gives them.
        """

    @abstractmethod
    def features(self, obs: ObservationTensors) -> Float[Tensor, "B F"]:
        """``forward(obs).features`` without the rest."""

    @abstractmethod
    def value(self, features: Float[Tensor, "B F"]) -> Float[Tensor, " B"]:
        """The critic, float32."""

    @abstractmethod
    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """What the policy loss trains."""

    @abstractmethod
    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """What the value loss trains."""

    def trunks(self) -> list[Trunk]:
        """Where most weights lie in blocks that run one after the other; ranks may share these out."""
        return []

    def set_proprio_statistics(self, mean: Float[Tensor, " P"], deviation: Float[Tensor, " P"]) -> None:
        """What the proprio of the data to clone is like. Policies that bring statistics of their own keep those."""

    @torch.no_grad()
    def act(
        self,
        obs: ObservationTensors,
        *,
        greedy: bool,
        generator: torch.Generator | None = None,
        noise: Float[Tensor, "B K D bins"] | None = None,
    ) -> Choice:
        """Tokens, their log-probabilities and the values (float32); the same generator, or noise, gives the same tokens."""
        output = self.forward(obs)
        tokens, log_probs = choose_tokens(output.logits, greedy=greedy, generator=generator, noise=noise)
        return Choice(tokens, log_probs, self.value(output.features))

    def log_probs(
        self, obs: ObservationTensors, tokens: Int64[Tensor, "B K D"]
    ) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B K D"]]:
        """Log-probabilities of ``tokens`` and the entropies of their distributions, float32."""
        return token_log_probs(self.forward(obs, tokens).logits, tokens)


def token_log_probs(
    logits: Float[Tensor, "*N bins"], tokens: Int64[Tensor, "*N"]
) -> tuple[Float[Tensor, "*N"], Float[Tensor, "*N"]]:
    """Log-probabilities of ``tokens`` and the entropies, in float32."""
    log_p = logits.float().log_softmax(dim=-1)
    return log_p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(dim=-1)


def choose_tokens(
    logits: Float[Tensor, "*N bins"],
    *,
    greedy: bool,
    generator: torch.Generator | None = None,
    noise: Float[Tensor, "*N bins"] | None = None,
) -> tuple[Int64[Tensor, "*N"], Float[Tensor, "*N"]]:
    """The most probable tokens, or a sample by the Gumbel trick, with their log-probabilities (float32).

    ``noise``: exponential variates of mean 1. Without it they are drawn where ``generator`` lives, so one seed gives the
    same noise on every device.
    """
    log_p = logits.float().log_softmax(dim=-1)
    if greedy:
        tokens = log_p.argmax(dim=-1)
    else:
        if noise is None:
            device = generator.device if generator is not None else log_p.device
            noise = torch.empty(log_p.shape, device=device).exponential_(generator=generator)
        tokens = (log_p - noise.log().to(log_p.device)).argmax(dim=-1)
    return tokens, log_p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def make_policy(config: PolicyConfig, spec: PolicySpec) -> Policy:
    """A policy with fresh weights, drawn from torch's global generator; ``config.path`` is not read here."""
    from policies.registry import POLICIES

    return POLICIES[type(config)](config, spec)
