"""pi0: a flow from noise to a chunk of actions, conditioned on what a vision-language model saw.

A flow's own likelihood cannot be had: it is an integral over all noise that ends at the action. So the flow starts from one
draw of noise that belongs to the weights and never changes, which makes its end a function of the observation, and
the noise that explores is added there: a Gaussian over action tokens around the flow's end (``policies/gaussian.py``). That
is Flow-Noise (ReinFlow, Zhang 2025) with all noise in the last step; its log-probabilities are exact and need nothing but
the tokens, so records, ratios, anchor and critic are those of every other policy. Cloning maximises the likelihood of the
same distribution.

Shape letters: B observations, K actions per chunk, D action dimensions, C actions of the flow, M its dimensions, P proprio
numbers, S prefix, E width of the language model, F features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from configs.errors import ConfigError
from configs.pi0 import PI0Config
from configs.stored_policy import UNCHANGED
from policies.base import ObservationTensors, Policy, PolicyOutput, PolicySpec
from policies.gaussian import gaussian_logits, uniform_centres
from policies.instruction_rows import which_instruction
from policies.instructions import InstructionVocabulary
from policies.openvla.images import SIGLIP, ImagePreparation
from policies.openvla.network import cache_name, new_cache
from policies.openvla.value import ValueHead
from policies.pi0.building import END, UNUSED, load_network, prompt_encoder, statistics


class PI0Policy(Policy):
    """Transformers' PI0 and a value head over what the language model saw."""

    known_rows: Tensor
    prompt_ids: Tensor
    prompt_kept: Tensor
    start_noise: Tensor
    action_scale: Tensor
    action_offset: Tensor
    proprio_mean: Tensor
    proprio_scale: Tensor
    centres: Tensor

    def __init__(self, config: PI0Config, spec: PolicySpec) -> None:
        super().__init__()
        _require_squares(spec)
        self.spec = spec
        self.vocabulary = InstructionVocabulary(spec.instructions)
        self.network: Any = load_network(config, spec)
        described = self.network.config
        vision = described.vlm_config.vision_config
        self.prepare = ImagePreparation((vision.image_size,), (SIGLIP[0],), (SIGLIP[1],))
        self.steps, self.sigma = config.steps, config.sigma
        self.temperature = UNCHANGED if config.temperature is None else config.temperature
        self._frozen_vlm = config.freeze_vlm
        self._cache_name = cache_name()
        width = described.vlm_config.text_config.hidden_size
        self.value_head = ValueHead(1, width + spec.proprio_dim, config.value_width)
        self._write_prompts(config, (vision.image_size // vision.patch_size) ** 2)
        self._write_statistics(config)
        start = torch.randn(described.chunk_size, described.max_action_dim, generator=torch.Generator().manual_seed(0))  # fmt: skip
        self.register_buffer("start_noise", start)
        self.register_buffer("centres", uniform_centres(spec.bins), persistent=False)
        dict(self.network.named_parameters())[UNUSED].requires_grad_(False)
        if config.freeze_vlm:
            self.network.model.vlm.requires_grad_(False)
        if config.base is not None:
            frozen = [name for name, each in self.named_parameters() if not each.requires_grad]
            self.frozen_names = frozenset(frozen)

    def _write_prompts(self, config: PI0Config, patches: int) -> None:
        """Of every instruction: places for the cameras' patches, then its words; padded at the end, which nobody sees."""
        encode, image = prompt_encoder(config), self.network.config.vlm_config.image_token_id
        words = [encode(text) for text in self.vocabulary.instructions]
        longest = max(len(ids) for ids in words)
        seen = [image] * (patches * len(self.spec.cameras))
        ids = [[*seen, *each, *[END] * (longest - len(each))] for each in words]
        kept = [[*[True] * (len(seen) + len(each)), *[False] * (longest - len(each))] for each in words]
        rows = torch.from_numpy(self.vocabulary.encode(self.vocabulary.instructions))
        self.register_buffer("known_rows", rows, persistent=False)
        self.register_buffer("prompt_ids", torch.tensor(ids), persistent=False)
        self.register_buffer("prompt_kept", torch.tensor(kept), persistent=False)

    def _write_statistics(self, config: PI0Config) -> None:
        """How the flow's units become halves of the environment's range, and proprio becomes the state that it reads."""
        spec = self.spec
        low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
        actions = statistics(config, "actions", spec.action_dim)
        scale, offset = torch.ones(spec.action_dim), torch.zeros(spec.action_dim)
        if actions is not None:
            scale = 2 * torch.tensor(actions.deviation) / (high - low)
            offset = 2 * (torch.tensor(actions.mean) - low) / (high - low) - 1
        self.register_buffer("action_scale", scale, persistent=False)
        self.register_buffer("action_offset", offset, persistent=False)
        state = statistics(config, "state", spec.proprio_dim)
        mean = torch.zeros(spec.proprio_dim) if state is None else torch.tensor(state.mean)
        deviation = torch.ones(spec.proprio_dim) if state is None else torch.tensor(state.deviation)
        self.register_buffer("proprio_mean", mean)
        self.register_buffer("proprio_scale", 1 / (deviation + 1e-8))

    def forward(self, obs: ObservationTensors, tokens: Int64[Tensor, "B K D"] | None = None) -> PolicyOutput:
        """The actor alone; ``tokens`` change nothing."""
        cache, kept, features = self._prefix(obs)
        means = self._flow(obs, cache, kept)
        return PolicyOutput(gaussian_logits(means, self.centres, self.sigma) / self.temperature, features)

    def features(self, obs: ObservationTensors) -> Float[Tensor, "B F"]:
        """What the critic reads."""
        with torch.no_grad():
            return self._prefix(obs)[2]

    def value(self, features: Float[Tensor, "B F"]) -> Float[Tensor, " B"]:
        """The critic, float32."""
        values: Tensor = self.value_head(features)
        return values

    def _state(self, obs: ObservationTensors) -> Float[Tensor, "B P"]:
        return (obs.proprio - self.proprio_mean) * self.proprio_scale

    def _prefix(self, obs: ObservationTensors) -> tuple[Any, Bool[Tensor, "B S"], Float[Tensor, "B F"]]:
        """Keys and values of the language model over frames and words, which of them count, and the features."""
        which = which_instruction(obs.instruction_ids, self.known_rows)
        ids, kept = self.prompt_ids[which], self.prompt_kept[which]
        frames = torch.stack([self.prepare(obs.images[camera])[0] for camera in self.spec.cameras], dim=1)
        there = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
        model, cache = self.network.model, new_cache()
        guard: AbstractContextManager[object] = torch.no_grad() if self._frozen_vlm else nullcontext()
        with guard:
            embedded = model.embed_prefix(ids, frames, there)
            answer = model.vlm(
                inputs_embeds=embedded, attention_mask=kept.long(), position_ids=kept.long().cumsum(-1) - 1,
                token_type_ids=torch.zeros_like(ids), use_cache=True, **{self._cache_name: cache},
            )  # fmt: skip
        weight = kept.unsqueeze(-1).float()
        seen = (answer.last_hidden_state.detach().float() * weight).sum(dim=1) / weight.sum(dim=1)
        return cache, kept, torch.cat([seen, self._state(obs)], dim=-1)

    def _flow(self, obs: ObservationTensors, cache: Any, kept: Bool[Tensor, "B S"]) -> Float[Tensor, "B K D"]:
        """The flow's end, in halves of the environment's range around its middle."""
        described = self.network.config
        state = nn.functional.pad(self._state(obs), (0, described.max_state_dim - self.spec.proprio_dim))
        x = self.start_noise.expand(len(obs), -1, -1)
        for step in range(self.steps):
            time = x.new_full((len(obs),), 1 - step / self.steps)
            embedded = self.network.embed_action_time(state, x, time)
            # The expert's own keys must not be there at the next step: each one continues a copy of the prefix.
            own = copy.copy(cache)
            own.layers = [copy.copy(layer) for layer in cache.layers]
            answer = self.network.model(
                action_embeds=embedded, attention_mask=kept.long(), **{self._cache_name: own}
            )
            velocity = self.network.action_out_proj(answer.last_hidden_state[:, -described.chunk_size :])
            x = x - velocity.float() / self.steps
        ends = x[:, : self.spec.chunk, : self.spec.action_dim]
        return ends * self.action_scale + self.action_offset

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """What the policy loss trains."""
        return (each for each in self.network.parameters() if each.requires_grad)

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """What the value loss trains."""
        return self.value_head.parameters()


def _require_squares(spec: PolicySpec) -> None:
    for name, (height, width) in spec.cameras.items():
        if height != width:
            raise ConfigError(
                f"the camera {name} has {height} x {width} pixels, pi0 reads squares", where="policy=pi0",
                remedy="render squares",
            )  # fmt: skip
