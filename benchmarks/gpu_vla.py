"""A VLA of OpenVLA-7B's true shape for ``gpu.py``, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from gpu_machine import Machine, Row
from torch import Tensor

from configs.openvla import OpenVLAConfig
from policies.base import token_log_probs
from policies.openvla.building import adapt
from policies.openvla.network import Network
from policies.openvla.shape import IMAGENET, SIGLIP, ModelShape, Tower
from policies.openvla.vit import ViTShape

PROMPT, CHUNK, ACTION_DIM = 32, 8, 7
SEVEN_B = ModelShape(
    (
        Tower("featurizer", ViTShape(1024, 24, 16, 4096, 14, 224, class_token=True, registers=4, layer_scale=True), IMAGENET),
        Tower("fused_featurizer", ViTShape(1152, 27, 16, 4304, 14, 224), SIGLIP),
    ),
    {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    },
    vocabulary=32_000, rows=32_064, bins=256,
)  # fmt: skip
"""OpenVLA-7B's: DINOv2 large and SigLIP So400m at 224 pixels, Llama-2 7B (its config.json, and timm's for the towers)."""
TINY = ModelShape(
    (
        Tower("featurizer", ViTShape(32, 3, 2, 64, 8, 32, class_token=True, registers=4, layer_scale=True), IMAGENET),
        Tower("fused_featurizer", ViTShape(48, 3, 2, 96, 8, 32), SIGLIP),
    ),
    {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 512,
    },
    vocabulary=600, rows=640, bins=256,
)  # fmt: skip
"""The same with everything small."""


def vla(part: str, machine: Machine, *, slim: bool) -> Iterator[Row]:
    """A 7B network with random bfloat16 weights: memory, one decision, a training step with adapters."""
    shape = TINY if machine.rehearsal else SEVEN_B
    network = random_network(shape, machine.device, slim=slim)
    held = sum(each.numel() * each.element_size() for each in network.parameters())
    yield Row(part, "weights", gigabytes=held / 1e9)
    for batch in (1, 16):
        work = decision(network, machine, batch)
        yield machine.timed(part, "inference step (parallel, 56 tokens)", batch, work)
    network.train()
    language: Any = network.language_model.model
    getattr(language, "activation_checkpointing_enable", language.gradient_checkpointing_enable)()
    trained = [each for each in network.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    for batch in (1, 8):
        work = training(network, machine, optimizer, batch)
        yield machine.timed(part, "training step (LoRA 32, checkpointing)", batch, work, repeats=5)


def random_network(shape: ModelShape, device: str, *, slim: bool) -> Network:
    """Frozen bfloat16 towers and language model, adapters of rank 32 and an output layer in float32."""
    settings = OpenVLAConfig(lora_rank=32, freeze_vision=True, frozen_dtype="bfloat16", slim=slim)
    with torch.device("meta"):
        network = Network(shape, slim=slim)
        adapt(network, settings)
    network.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for each in network.parameters():
            each.normal_(std=0.02, generator=generator)
    network.language_model.rebuild_tables()
    return network.to(device).eval()


def states(network: Network, machine: Machine, batch: int) -> Callable[[], Tensor]:
    """A forward of one camera's frame, a prompt and the empty places of a chunk; the states of these places."""
    generator = torch.Generator(machine.device).manual_seed(1)
    pixels = [
        torch.randn(batch, 3, tower.shape.image_size, tower.shape.image_size, generator=generator, device=machine.device)
        for tower in network.shape.towers
    ]  # fmt: skip
    prompt = torch.ones(batch, PROMPT, dtype=torch.int64, device=machine.device)
    kept = torch.ones_like(prompt, dtype=torch.bool)
    places = CHUNK * ACTION_DIM

    def forward() -> Tensor:
        with machine.precision():
            prefix = network.prefix([pixels], prompt, kept)
            empty = prefix.embeddings.new_zeros(batch, places, network.width)
            return network.states(prefix, empty, causal=False)[:, -places:]

    return forward


def decision(network: Network, machine: Machine, batch: int) -> Callable[[], object]:
    """Frames to tokens, parallel decoding."""
    forward = states(network, machine, batch)

    def work() -> Tensor:
        with torch.inference_mode():
            return network.language_model.logits(forward()).argmax(dim=-1)

    return work


def training(
    network: Network, machine: Machine, optimizer: torch.optim.Optimizer, batch: int
) -> Callable[[], object]:
    """Forward, backward and AdamW's step of the log-probability of random tokens."""
    forward = states(network, machine, batch)
    tokens = torch.randint(0, network.shape.bins, (batch, CHUNK * ACTION_DIM), device=machine.device)

    def work() -> None:
        log_probs, _ = token_log_probs(network.language_model.logits(forward()), tokens)
        (-log_probs.mean()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return work
