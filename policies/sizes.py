"""How large a policy is, counted from shapes: no weight is read or made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from configs.openvla import OpenVLAConfig
from configs.pi0 import PI0Config
from configs.policy import PolicyConfig
from policies.base import PolicySpec

if TYPE_CHECKING:
    from torch import nn

FLOAT32, BFLOAT16 = 4, 2
"""Bytes a number."""
KEPT_PER_TOKEN = 16
"""Numbers of a layer's width that a Llama layer keeps for its backward pass, per token (norms, projections, feed-forward)."""


@dataclass(frozen=True)
class Blocks:
    """Of all blocks together, but for the largest one."""

    trained: int
    frozen_bytes: int
    largest_bytes: int
    """One block's weights."""

    @property
    def weight_bytes(self) -> int:
        """One copy."""
        return self.trained * FLOAT32 + self.frozen_bytes

    @property
    def gradient_bytes(self) -> int:
        """Gradients of what trains."""
        return self.trained * FLOAT32


@dataclass(frozen=True)
class PolicySize:
    """Numbers are weights; bytes are what they take."""

    trained: int
    """Weights that the policy loss or the value loss trains; always float32."""
    frozen: int
    frozen_bytes: int
    head: int
    """Weights of the output layer as it is built, and ``head_full`` as it would be with every token; 0 where there is none."""
    head_full: int
    activation_bytes: int
    """What one decision's backward pass keeps."""
    blocks: Blocks | None = None
    """What ranks may share out (``Policy.trunks``)."""

    @property
    def weight_bytes(self) -> int:
        """One copy."""
        return self.trained * FLOAT32 + self.frozen_bytes

    @property
    def training_bytes(self) -> int:
        """Gradients and AdamW's two moments, beside the weights."""
        return 3 * self.trained * FLOAT32

    @property
    def moment_bytes(self) -> int:
        """AdamW's two moments alone."""
        return 2 * self.trained * FLOAT32

    @property
    def published_bytes(self) -> int:
        """One version on its way to inference."""
        return self.trained * FLOAT32


def _openvla(config: OpenVLAConfig, spec: PolicySpec) -> PolicySize:
    import torch

    from policies.openvla.building import adapt, model_shape
    from policies.openvla.continuous import ActionHead
    from policies.openvla.network import Network
    from policies.openvla.value import ValueHead

    shape = model_shape(config)
    with torch.device("meta"):
        network = Network(shape, slim=config.slim)
        adapt(network, config)
        heads = [*ValueHead(1, network.width, config.value_width).parameters()]
        if config.head == "l1":
            network.language_model.lm_head.requires_grad_(False)
            heads += ActionHead(network.width, spec.action_dim).parameters()
    weights = list(network.parameters())
    trained = sum(each.numel() for each in [*weights, *heads] if each.requires_grad)
    frozen = [each for each in weights if not each.requires_grad]
    patches = sum(tower.shape.patches for tower in shape.towers[:1]) * len(spec.cameras)
    tokens = patches + PROMPT_TOKENS + spec.chunk * spec.action_dim
    layers = int(network.language_model.config.num_hidden_layers)
    kept = layers + KEPT_PER_TOKEN if config.checkpointing else layers * KEPT_PER_TOKEN
    number = BFLOAT16 if config.frozen_dtype == "bfloat16" else FLOAT32
    return PolicySize(
        trained, sum(each.numel() for each in frozen), sum(each.numel() * each.element_size() for each in frozen),
        (shape.bins if config.slim else shape.rows) * network.width, shape.rows * network.width,
        tokens * kept * network.width * number,
        _blocks([block for trunk in network.trunks() for block in trunk.blocks]),
    )  # fmt: skip


def _blocks(blocks: list[nn.Module]) -> Blocks:
    trained = [sum(each.numel() for each in block.parameters() if each.requires_grad) for block in blocks]
    frozen = [
        sum(each.numel() * each.element_size() for each in block.parameters() if not each.requires_grad)
        for block in blocks
    ]
    whole = [FLOAT32 * one + other for one, other in zip(trained, frozen, strict=True)]
    return Blocks(sum(trained), sum(frozen), max(whole))


def _pi0(config: PI0Config, spec: PolicySpec) -> PolicySize:
    import torch

    from policies.openvla.value import ValueHead
    from policies.pi0.building import UNUSED, model_config, require_transformers

    described = model_config(config, spec)
    with torch.device("meta"):
        network = require_transformers().PI0ForConditionalGeneration(described)
        value = ValueHead(1, described.vlm_config.text_config.hidden_size, config.value_width)
    kept = "model.vlm." if config.freeze_vlm else UNUSED
    weights = {name: each.numel() for name, each in network.named_parameters()}
    frozen = sum(count for name, count in weights.items() if name.startswith((kept, UNUSED)))
    trained = sum(weights.values()) - frozen + sum(each.numel() for each in value.parameters())
    vision, language, expert = (
        described.vlm_config.vision_config, described.vlm_config.text_config, described.dit_config,
    )  # fmt: skip
    seen = (vision.image_size // vision.patch_size) ** 2 * len(spec.cameras) + PROMPT_TOKENS
    flow = config.steps * (described.chunk_size + 1) * expert.num_hidden_layers * expert.hidden_size
    prefix = 0 if config.freeze_vlm else seen * language.num_hidden_layers * language.hidden_size
    activations = KEPT_PER_TOKEN * FLOAT32 * (flow + prefix)
    return PolicySize(trained, frozen, frozen * FLOAT32, 0, 0, activations)


PROMPT_TOKENS = 32
"""Of a usual instruction."""
SIZES: dict[type[PolicyConfig], Callable[[Any, PolicySpec], PolicySize]] = {
    OpenVLAConfig: _openvla,
    PI0Config: _pi0,
}
"""Class of the policy's config to its size; policies too small to matter have none."""


def policy_size(config: PolicyConfig, spec: PolicySpec) -> PolicySize | None:
    """Of the policy, or None where it does not matter. Raises what building it would."""
    count = SIZES.get(type(config))
    return None if count is None else count(config, spec)
