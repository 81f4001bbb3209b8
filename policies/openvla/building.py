"""From config and checkpoint to a network: weights, what is frozen, low-rank updates, precision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from configs.errors import CheckpointError, ConfigError
from configs.openvla import OpenVLAConfig
from policies.openvla.actions import OpenVLATokenizer
from policies.openvla.checkpoint import OpenVLACheckpoint, open_checkpoint
from policies.openvla.prompts import Encode, byte_encoder, checkpoint_encoder
from policies.openvla.shape import ModelShape, fresh_shape

if TYPE_CHECKING:
    from policies.base import PolicySpec
    from policies.openvla.network import Network

HEAD = "language_model.lm_head.weight"
LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Llama's linear layers."""


@lru_cache(maxsize=4)
def checkpoint_of(base: str) -> OpenVLACheckpoint:
    """Opened once per process: a hub is asked once, headers are read once."""
    return open_checkpoint(base)


def model_shape(config: OpenVLAConfig) -> ModelShape:
    """What the model is built from."""
    return fresh_shape(config) if config.base is None else checkpoint_of(config.base).shape


def prompt_encoder(config: OpenVLAConfig, shape: ModelShape) -> Encode:
    """Text to token ids."""
    if config.base is None:
        return byte_encoder()
    return checkpoint_encoder(checkpoint_of(config.base).folder, shape.vocabulary)


def openvla_tokenizer(
    config: OpenVLAConfig, low: Sequence[float], high: Sequence[float], bins: int
) -> OpenVLATokenizer:
    """Over the checkpoint's statistics, or the environment's range where there is no checkpoint.

    Raises CheckpointError where the statistics are of another number of dimensions than ``low``.
    """
    gripper = config.gripper == "libero"
    if config.base is None:
        return OpenVLATokenizer(low, high, bins, libero_gripper=gripper)
    key, statistics = checkpoint_of(config.base).statistics(config.unnorm_key)
    if len(statistics.low) != len(low):
        raise CheckpointError(
            f"the statistics {key} are of {len(statistics.low)} action dimensions, the environment has {len(low)}",
            where=config.base, remedy="choose another policy.unnorm_key or environment",
        )  # fmt: skip
    return OpenVLATokenizer(statistics.low, statistics.high, bins, libero_gripper=gripper)


def build_network(config: OpenVLAConfig, spec: PolicySpec) -> Network:
    """With the checkpoint's weights, or fresh ones. Raises CheckpointError for whatever does not fit, naming both sides."""
    from policies.openvla.network import Network

    shape = model_shape(config)
    if shape.bins != spec.bins:
        raise CheckpointError(
            f"the checkpoint has {shape.bins} action tokens, policy.bins={spec.bins}",
            where=str(config.base), remedy=f"set policy.bins={shape.bins}",
        )  # fmt: skip
    if config.base is None:
        network = Network(shape, slim=config.slim)
    else:
        openvla_tokenizer(config, spec.action_low, spec.action_high, spec.bins)
        with torch.device("meta"):
            network = Network(shape, slim=config.slim)
        _load(network, checkpoint_of(config.base), slim=config.slim)
    adapt(network, config)
    if config.checkpointing:
        model = network.language_model.model
        # transformers renamed it in 5.20.
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    return network


def _load(network: Network, checkpoint: OpenVLACheckpoint, *, slim: bool) -> None:
    shape = network.shape
    own = network.state_dict()
    wanted = {name: tuple(tensor.shape) for name, tensor in own.items()}
    wanted[HEAD] = (shape.rows, network.width)
    checkpoint.require_tensors(wanted)
    state: dict[str, Tensor] = checkpoint.tensors(set(wanted))
    if slim:
        state[HEAD] = state[HEAD][shape.vocabulary - shape.bins : shape.vocabulary].clone()
    network.load_state_dict(
        {name: tensor.float() for name, tensor in state.items()}, strict=True, assign=True
    )
    network.language_model.rebuild_tables()


def adapt(network: Network, config: OpenVLAConfig) -> None:
    """Freeze what the config says, and add its low-rank updates."""
    _freeze(network, config)
    if config.lora_rank:
        _add_lora(network, config)


def _freeze(network: Network, config: OpenVLAConfig) -> None:
    dtype = getattr(torch, config.frozen_dtype)
    parts = {
        "vision_backbone": config.freeze_vision,
        "language_model.model": config.language_is_frozen,
    }
    for name in (name for name, frozen in parts.items() if frozen):
        network.get_submodule(name).requires_grad_(False).to(dtype)


def _add_lora(network: Network, config: OpenVLAConfig) -> None:
    """Adapters stay float32; they start as the identity."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise ConfigError(
            "the package peft is not installed",
            where="policy.lora_rank",
            remedy="pip install 'reverie-rl[vla]'",
        ) from None
    lora = LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=LORA_TARGETS, lora_dropout=0.0
    )
    inject_adapter_in_model(lora, network.language_model.model)
    for name, parameter in network.language_model.model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)


def base_folder(base: str) -> Path:
    """Where the files of ``base`` lie on this machine."""
    return checkpoint_of(base).folder
