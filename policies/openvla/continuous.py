"""OpenVLA-OFT's continuous head: a chunk of actions by regression, and a Gaussian over action tokens around it.

The head, its names and what it reads are those of OFT's ``action_head`` files (Kim 2025, L1 regression): for each action of
the chunk the states of its D places, side by side, through a residual network of three widths. OFT acts by its answer;
here that is the mean of a distribution (``policies/gaussian.py``), whose greedy token is the bin that it lies in.

Shape letters: B observations, K actions per chunk, D action dimensions, Q = K D, E width.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from configs.errors import CheckpointError
from configs.openvla import OpenVLAConfig
from policies.base import PolicySpec
from policies.gaussian import gaussian_logits, openvla_centres
from policies.openvla.building import checkpoint_of
from policies.openvla.checkpoint import ActionStatistics
from policies.openvla.policy import OpenVLA

BLOCKS = 2


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = x + self.ffn(x)
        return added


class _ResidualNetwork(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, width)
        self.mlp_resnet_blocks = nn.ModuleList(_Block(width) for _ in range(BLOCKS))
        self.layer_norm2 = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(self.layer_norm1(x)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        answered: Tensor = self.fc2(self.layer_norm2(x))
        return answered


class ActionHead(nn.Module):
    """States to actions in the statistics' units, -1 to 1."""

    def __init__(self, width: int, action_dim: int) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.model = _ResidualNetwork(width * action_dim, width, action_dim)

    def forward(self, states: Float[Tensor, "B Q E"]) -> Float[Tensor, "B K D"]:
        """In float32, whatever the states are in."""
        with torch.autocast(states.device.type, enabled=False):
            grouped = states.float().reshape(len(states), -1, self.action_dim * states.shape[-1])
            actions: Tensor = self.model(grouped)
        return actions


class NormalisedProjector(nn.Sequential):
    """OFT's ``proprio_projector`` reads proprioception in its statistics' units: -1 to 1, and clipped there."""

    low: Tensor
    high: Tensor

    def __init__(self, projector: nn.Sequential, statistics: ActionStatistics) -> None:
        super().__init__(*projector)
        self.register_buffer("low", torch.tensor(statistics.low), persistent=False)
        self.register_buffer("high", torch.tensor(statistics.high), persistent=False)

    def forward(self, proprio: Float[Tensor, "B P"]) -> Float[Tensor, "B E"]:
        """One token of raw proprioception."""
        scaled = 2 * (proprio - self.low) / (self.high - self.low + 1e-8) - 1
        projected = scaled.clamp(-1, 1)
        for layer in self:
            projected = layer(projected)
        return projected


class ContinuousOpenVLA(OpenVLA):
    """Parallel decoding with the continuous head. The output layer of the language model takes no part."""

    centres: Tensor

    def __init__(self, config: OpenVLAConfig, spec: PolicySpec) -> None:
        super().__init__(config, spec)
        self.sigma = config.sigma
        self.network.language_model.lm_head.requires_grad_(False)
        self.action_head = ActionHead(self.network.width, spec.action_dim)
        self.register_buffer("centres", openvla_centres(spec.bins), persistent=False)
        if config.base is not None:
            checkpoint = checkpoint_of(config.base)
            load_component(checkpoint.folder, "action_head", self.action_head, {})
            if self.proprio is not None:
                renamed = {"fc1.": "0.", "fc2.": "2."}
                load_component(checkpoint.folder, "proprio_projector", self.proprio, renamed)
                self.proprio = NormalisedProjector(
                    self.proprio, checkpoint.proprio_statistics(config.unnorm_key, spec.proprio_dim)
                )
            lm_head = "network.language_model.lm_head.weight"
            self.frozen_names = self.frozen_names | {lm_head}

    def _logits(self, states: Float[Tensor, "B Q E"]) -> Float[Tensor, "B K D bins"]:
        return gaussian_logits(self.action_head(states), self.centres, self.sigma) / self.temperature

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """What the policy loss trains."""
        yield from super().actor_parameters()
        yield from self.action_head.parameters()


def load_component(folder: Path, name: str, module: nn.Module, renamed: dict[str, str]) -> None:
    """Weights of ``<name>.safetensors`` into ``module``; ``renamed`` maps the beginnings of their names to ours. Raises
    CheckpointError where the file is missing or pickled, or a tensor is missing, not known, or of another shape.
    """
    from safetensors.torch import load_file

    path = folder / f"{name}.safetensors"
    if not path.is_file():
        pickled = sorted(each.name for each in folder.glob(f"{name}--*.pt"))
        what = f"{pickled[0]} is pickled" if pickled else f"{name}.safetensors is missing"
        raise CheckpointError(
            what, where=str(folder), remedy=f"write its tensors to {name}.safetensors, as docs/policies.md shows"
        )  # fmt: skip
    found = {}
    for key, tensor in load_file(path).items():
        bare = key.removeprefix("module.")
        start = next((start for start in renamed if bare.startswith(start)), "")
        found[renamed.get(start, "") + bare.removeprefix(start)] = tensor.float()
    wanted = module.state_dict()
    for key in sorted(set(wanted) | set(found)):
        ours, theirs = (list(each[key].shape) if key in each else "nothing" for each in (wanted, found))
        if ours != theirs:
            raise CheckpointError(
                f"{path.name} has {theirs} as {key}, the model wants {ours}", where=str(folder),
                remedy="use the head of an OFT checkpoint of L1 regression, for this many action dimensions",
            )  # fmt: skip
    module.load_state_dict(found)
