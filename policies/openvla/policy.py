"""OpenVLA-format policies: parallel decoding (OpenVLA-OFT) and autoregressive decoding (OpenVLA).

The critic reads states that depend on the observation alone: in parallel decoding those that the action tokens are read
from; in autoregressive decoding the last prompt state, since the ones behind it have seen actions, and a value must not.

Shape letters: B observations, K actions per chunk, D action dimensions, Q = K D, P prompt tokens, E width, F features.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from configs.openvla import OpenVLAConfig
from configs.stored_policy import UNCHANGED
from policies.base import Choice, ObservationTensors, Policy, PolicyOutput, PolicySpec, Trunk, choose_tokens
from policies.instruction_rows import which_instruction
from policies.instructions import InstructionVocabulary
from policies.openvla.building import build_network, prompt_encoder
from policies.openvla.network import Network, Prefix, new_cache
from policies.openvla.prompts import END, prompt_text
from policies.openvla.value import ValueHead


class OpenVLA(Policy):
    """Parallel decoding: empty places for the action tokens, attention in both directions, one forward."""

    known_rows: Tensor
    prompt_ids: Tensor
    prompt_kept: Tensor

    def __init__(self, config: OpenVLAConfig, spec: PolicySpec) -> None:
        super().__init__()
        self.spec = spec
        self.vocabulary = InstructionVocabulary(spec.instructions)
        self.network: Network = build_network(config, spec)
        self.prepare = self.network.shape.preparation(config.image_area)
        width = self.network.width
        self.proprio = nn.Sequential(nn.Linear(spec.proprio_dim, width), nn.GELU(), nn.Linear(width, width)) \
            if config.proprio else None  # fmt: skip
        self.value_head = ValueHead(self.value_states, width, config.value_width)
        self.temperature = UNCHANGED if config.temperature is None else config.temperature
        self._half = config.frozen_dtype == "bfloat16"
        self._write_prompts(config)
        if config.base is not None:
            frozen = [name for name, each in self.named_parameters() if not each.requires_grad]
            self.frozen_names = frozenset(frozen)

    @property
    def places(self) -> int:
        """Q."""
        return self.spec.chunk * self.spec.action_dim

    @property
    def value_states(self) -> int:
        """How many states the critic reads."""
        return self.places

    def _write_prompts(self, config: OpenVLAConfig) -> None:
        """The prompt of every instruction, padded behind its begin token, so that all end at the same place."""
        encode = prompt_encoder(config, self.network.shape)
        prompts = [encode(prompt_text(text)) for text in self.vocabulary.instructions]
        longest = max(len(ids) for ids in prompts)
        padded = [[ids[0], *[END] * (longest - len(ids)), *ids[1:]] for ids in prompts]
        kept = [[True, *[False] * (longest - len(ids)), *[True] * (len(ids) - 1)] for ids in prompts]
        rows = torch.from_numpy(self.vocabulary.encode(self.vocabulary.instructions))
        self.register_buffer("known_rows", rows, persistent=False)
        self.register_buffer("prompt_ids", torch.tensor(padded), persistent=False)
        self.register_buffer("prompt_kept", torch.tensor(kept), persistent=False)

    def _prefix(self, obs: ObservationTensors) -> Prefix:
        which = which_instruction(obs.instruction_ids, self.known_rows)
        pixels = [self.prepare(obs.images[camera]) for camera in self.spec.cameras]
        extra = None if self.proprio is None else self.proprio(obs.proprio).unsqueeze(1)
        return self.network.prefix(pixels, self.prompt_ids[which], self.prompt_kept[which], extra)

    def _precision(self, obs: ObservationTensors) -> AbstractContextManager[object]:
        """Half precision where the frozen weights are."""
        if not self._half:
            return nullcontext()
        return torch.autocast(obs.proprio.device.type, dtype=torch.bfloat16)

    def _states(self, obs: ObservationTensors) -> Float[Tensor, "B Q E"]:
        """Those that the action tokens are read from: each is one place before its token, as in causal decoding."""
        with self._precision(obs):
            prefix = self._prefix(obs)
            empty = prefix.embeddings.new_zeros(len(obs), self.places, self.network.width)
            end = self.network.embed(torch.full((len(obs), 1), END, device=empty.device))
            states = self.network.states(prefix, torch.cat([empty, end.to(empty.dtype)], dim=1), causal=False)
        first = prefix.kept.shape[1] - 1
        return states[:, first : first + self.places]

    def forward(self, obs: ObservationTensors, tokens: Int64[Tensor, "B K D"] | None = None) -> PolicyOutput:
        """The actor alone; it decodes all tokens at once, so ``tokens`` change nothing."""
        states = self._states(obs)
        return PolicyOutput(self._logits(states), states.detach().float().flatten(1))

    def _logits(self, states: Float[Tensor, "B Q E"]) -> Float[Tensor, "B K D bins"]:
        logits = self._place_logits(states)
        return logits.reshape(len(logits), self.spec.chunk, self.spec.action_dim, -1)

    def _place_logits(self, states: Float[Tensor, "B Q E"]) -> Float[Tensor, "B Q bins"]:
        logits: Tensor = self.network.language_model.logits(states)
        return logits / self.temperature

    def features(self, obs: ObservationTensors) -> Float[Tensor, "B F"]:
        """What the critic reads."""
        with torch.no_grad():
            return self._states(obs).float().flatten(1)

    def value(self, features: Float[Tensor, "*B F"]) -> Float[Tensor, "*B"]:
        """The critic, float32."""
        values: Tensor = self.value_head(features)
        return values

    def trunks(self) -> list[Trunk]:
        """The language model, and every tower."""
        return self.network.trunks()

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """What the policy loss trains."""
        actor = [self.network, *([] if self.proprio is None else [self.proprio])]
        return (each for part in actor for each in part.parameters() if each.requires_grad)

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """What the value loss trains."""
        return self.value_head.parameters()


class AutoregressiveOpenVLA(OpenVLA):
    """Each action token sees the prompt and the tokens before it. Acting keeps keys and values; training reads the whole
    chain in one forward.
    """

    @property
    def value_states(self) -> int:
        """The last prompt state."""
        return 1

    def forward(self, obs: ObservationTensors, tokens: Int64[Tensor, "B K D"] | None = None) -> PolicyOutput:
        """Logits of each place given the ``tokens`` before it."""
        assert tokens is not None, "each token depends on those before it: give the ones that were taken"
        with self._precision(obs):
            prefix = self._prefix(obs)
            before = self.network.embed_actions(tokens.flatten(1)[:, :-1])
            states = self.network.states(prefix, before, causal=True)
        states = states[:, prefix.kept.shape[1] - 1 :]
        return PolicyOutput(self._logits(states), states[:, 0].detach().float())

    def features(self, obs: ObservationTensors) -> Float[Tensor, "B F"]:
        """What the critic reads."""
        with torch.no_grad(), self._precision(obs):
            prefix = self._prefix(obs)
            nothing = prefix.embeddings[:, :0]
            return self.network.states(prefix, nothing, causal=True)[:, -1].float()

    @torch.no_grad()
    def act(
        self,
        obs: ObservationTensors,
        *,
        greedy: bool,
        generator: torch.Generator | None = None,
        noise: Float[Tensor, "B K D bins"] | None = None,
    ) -> Choice:
        """One token after another; the noise of all is drawn at once, so it is that of any other policy."""
        if noise is None and not greedy:
            device = generator.device if generator is not None else obs.proprio.device
            shape = (len(obs), self.spec.chunk, self.spec.action_dim, self.spec.bins)
            noise = torch.empty(shape, device=device).exponential_(generator=generator)
        drawn = None if noise is None else noise.flatten(1, 2)
        chosen: list[Tensor] = []
        log_probs: list[Tensor] = []
        with self._precision(obs):
            prefix, cache = self._prefix(obs), new_cache()
            kept, new = prefix.kept, prefix.embeddings
            features: Tensor | None = None
            for place in range(self.places):
                state = self.network.continued(cache, kept, new)[:, -1:]
                features = state[:, 0].float() if features is None else features
                logits = self._place_logits(state)[:, 0]
                token, log_prob = choose_tokens(
                    logits, greedy=greedy, noise=None if drawn is None else drawn[:, place]
                )
                chosen.append(token)
                log_probs.append(log_prob)
                new = self.network.embed_actions(token[:, None]).to(new.dtype)
                kept = torch.cat([kept, kept.new_ones(len(obs), 1)], dim=1)
        assert features is not None, "a chunk has at least one token"
        like = (len(obs), self.spec.chunk, self.spec.action_dim)
        return Choice(
            torch.stack(chosen, dim=1).reshape(like),
            torch.stack(log_probs, dim=1).reshape(like),
            self.value(features),
        )
