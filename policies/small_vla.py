"""A vision-language-action policy small enough to train on a CPU.

The actor reads tokens (keypoints, a coarse feature map, words, proprio) with one query per action dimension. The critic
reads what the actor saw: keypoints, proprio, the sentence, and the mean of the queries after the last block.

Shape letters: B observations, K actions per chunk, D action dimensions, N tokens, Q queries, E width, F features,
P proprio numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from configs.policy import SmallVLAConfig
from configs.stored_policy import UNCHANGED
from policies.base import ObservationTensors, Policy, PolicyOutput, PolicySpec
from policies.instructions import InstructionVocabulary
from policies.vision import InstructionEncoder, Keypoints, Stem

MAP_SIDE = 4
"""The feature map is pooled to this many cells a side: one token each."""
LEAST_DEVIATION = 1e-2
"""In the proprio's units."""


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention; in float32 on a CPU, where the bfloat16 backward takes eight times as long."""
    if query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value)
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(query.float(), key.float(), value.float())


class DecoderBlock(nn.Module):
    """Action queries look at the tokens, then a feed-forward; pre-norm residuals."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, queries: Float[Tensor, "B Q E"], tokens: Float[Tensor, "B N E"]) -> Tensor:
        """``[B, Q, E]``."""
        query = self._split(self.query(self.norm_attention(queries)))
        key, value = (self._split(x) for x in self.key_value(tokens).chunk(2, dim=-1))
        seen = _attend(query, key, value)
        updated: Tensor = queries + self.out(seen.transpose(1, 2).flatten(2))
        raised: Tensor = self.feed_forward(updated)
        return updated + raised

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Actor(nn.Module):
    """Observation to logits over action tokens."""

    def __init__(self, config: SmallVLAConfig, spec: PolicySpec, vocabulary: InstructionVocabulary) -> None:
        super().__init__()
        width, channels = config.width, config.stem_channels[-1]
        self.shape = (spec.chunk, spec.action_dim)
        self.cameras = list(spec.cameras)
        self.words = InstructionEncoder(vocabulary.num_words, vocabulary.length, width)
        self.stems = nn.ModuleList(Stem(config.stem_channels, width) for _ in self.cameras)
        self.keypoints = nn.ModuleList(Keypoints(channels, config.keypoints, width) for _ in self.cameras)
        points = config.keypoints * len(self.cameras)
        self.point_token = nn.Linear(2 + channels, width)
        self.point_name = nn.Parameter(torch.randn(points, width) * 0.1)
        self.cell_token = nn.Linear(channels, width)
        self.cell_name = nn.Parameter(torch.randn(MAP_SIDE**2 * len(self.cameras), width) * 0.1)
        self.proprio_token = nn.Linear(spec.proprio_dim + 1, width)
        self.token_norm = nn.LayerNorm(width)
        self.state = nn.Sequential(
            nn.Linear(2 * points + spec.proprio_dim + width, 2 * width),
            nn.GELU(),
            nn.Linear(2 * width, width),
        )
        self.num_features = 2 * points + spec.proprio_dim + 3 * width
        self.queries = nn.Parameter(torch.randn(spec.chunk * spec.action_dim, width) * 0.5)
        self.blocks = nn.ModuleList(DecoderBlock(width, config.heads) for _ in range(config.layers))
        self.head_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, spec.bins)
        self.head_bias = nn.Parameter(torch.zeros(spec.chunk * spec.action_dim, spec.bins))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, obs: ObservationTensors, proprio: Float[Tensor, "B P"]) -> PolicyOutput:
        """Logits, uniform before training, and features; both float32."""
        queries, features = self.trunk(obs, proprio)
        with torch.autocast(queries.device.type, enabled=False):
            logits: Tensor = self.head(self.head_norm(queries.float())) + self.head_bias
        return PolicyOutput(logits.reshape(-1, *self.shape, logits.shape[-1]), features)

    def trunk(
        self, obs: ObservationTensors, proprio: Float[Tensor, "B P"]
    ) -> tuple[Float[Tensor, "B Q E"], Float[Tensor, "B F"]]:
        """Queries after the last block, and the features."""
        words, sentence = self.words(obs.instruction_ids)
        places, features, cells = [], [], []
        for camera, stem, keypoints in zip(self.cameras, self.stems, self.keypoints, strict=True):
            feature_map = stem(obs.images[camera], sentence)
            xy, feature = keypoints(feature_map, sentence)
            places.append(xy)
            features.append(feature)
            cells.append(F.adaptive_avg_pool2d(feature_map, MAP_SIDE).flatten(2).transpose(1, 2))
        xy_BN2 = torch.cat(places, dim=1)
        bias = proprio.new_ones(len(proprio), 1)
        tokens = torch.cat(
            [
                self.point_token(torch.cat([xy_BN2.to(sentence.dtype), torch.cat(features, 1)], -1))
                + self.point_name,
                self.cell_token(torch.cat(cells, 1)) + self.cell_name,
                words,
                self.proprio_token(torch.cat([proprio, bias], dim=-1)).unsqueeze(1),
            ],
            dim=1,
        )
        # Keypoint coordinates reach the queries unmixed as well: the answer is mostly "target minus gripper".
        seen = torch.cat([xy_BN2.flatten(1), proprio, sentence.float()], dim=-1)
        state = self.state(seen)
        queries, tokens = self.queries + state.unsqueeze(1), self.token_norm(tokens)
        for block in self.blocks:
            queries = block(queries, tokens)
        # The blocks' sums have no scale of their own; keypoints and proprio do.
        means = [F.layer_norm(x.float(), x.shape[-1:]) for x in (state, queries.mean(dim=1))]
        return queries, torch.cat([seen.float(), *means], dim=-1).detach()


class Critic(nn.Module):
    """The actor's features to one value."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.GELU()
        )
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, features: Float[Tensor, "B F"]) -> Float[Tensor, " B"]:
        """Values in float32; zero before training."""
        with torch.autocast(features.device.type, enabled=False):
            values: Tensor = self.head(self.trunk(features)).squeeze(-1)
        return values


class SmallVLA(Policy):
    """The actor and the critic."""

    proprio_mean: Tensor
    proprio_scale: Tensor

    def __init__(self, config: SmallVLAConfig, spec: PolicySpec) -> None:
        super().__init__()
        self.spec = spec
        self.vocabulary = InstructionVocabulary(spec.instructions)
        self.temperature = UNCHANGED if config.temperature is None else config.temperature
        self.actor = Actor(config, spec, self.vocabulary)
        self.critic = Critic(self.actor.num_features, config.width)
        self.register_buffer("proprio_mean", torch.zeros(spec.proprio_dim))
        self.register_buffer("proprio_scale", torch.ones(spec.proprio_dim))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def set_proprio_statistics(self, mean: Float[Tensor, " P"], deviation: Float[Tensor, " P"]) -> None:
        """Standardise proprio with a dataset's mean and deviation; they are saved with the weights.

        What hardly moves in the data is not blown up: a deviation counts as ``LEAST_DEVIATION`` at least.
        """
        self.proprio_mean.copy_(mean)
        self.proprio_scale.copy_(1 / deviation.clamp(min=LEAST_DEVIATION))

    def forward(self, obs: ObservationTensors, tokens: Int64[Tensor, "B K D"] | None = None) -> PolicyOutput:
        """The actor alone; its tokens do not depend on each other."""
        output: PolicyOutput = self.actor(obs, self._proprio(obs))
        return PolicyOutput(output.logits / self.temperature, output.features)

    def features(self, obs: ObservationTensors) -> Float[Tensor, "B F"]:
        """What the critic reads."""
        with torch.no_grad():
            return self.actor.trunk(obs, self._proprio(obs))[1]

    def value(self, features: Float[Tensor, "B F"]) -> Float[Tensor, " B"]:
        """The critic, float32."""
        values: Tensor = self.critic(features)
        return values

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """What the policy loss trains."""
        return self.actor.parameters()

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """What the value loss trains."""
        return self.critic.parameters()

    def _proprio(self, obs: ObservationTensors) -> Float[Tensor, "B P"]:
        return (obs.proprio - self.proprio_mean) * self.proprio_scale
