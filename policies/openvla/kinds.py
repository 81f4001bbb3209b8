"""Which class a config of OpenVLA's format asks for."""

from __future__ import annotations

from configs.errors import CheckpointError
from configs.openvla import OpenVLAConfig
from policies.base import Policy, PolicySpec
from policies.hub import file_names
from policies.openvla.building import checkpoint_of
from policies.openvla.continuous import ContinuousOpenVLA
from policies.openvla.policy import AutoregressiveOpenVLA, OpenVLA

KINDS: dict[tuple[str, str], type[OpenVLA]] = {
    ("parallel", "tokens"): OpenVLA,
    ("autoregressive", "tokens"): AutoregressiveOpenVLA,
    ("parallel", "l1"): ContinuousOpenVLA,
}
"""Decoding and head to the class."""
UNREAD = {
    "noisy_action_projector": "OFT's diffusion head",
    "vision_backbone": "OFT's FiLM, a vision backbone that the instruction modulates",
}
"""Beginning of a file beside the weights to what it says of the checkpoint."""


def make_openvla(config: OpenVLAConfig, spec: PolicySpec) -> Policy:
    """The policy that ``config`` names. Raises CheckpointError or ConfigError where ``config.base`` does not fit."""
    if config.base is not None:
        _require_head(config)
    return KINDS[config.decoding, config.head](config, spec)


def _require_head(config: OpenVLAConfig) -> None:
    """Weights of another head load as well, and act at random: what lies beside them tells them apart."""
    assert config.base is not None
    folder, names = checkpoint_of(config.base).folder, file_names(config.base)
    for name, meaning in UNREAD.items():
        found = [each for each in names if each.startswith(f"{name}--")]
        if found:
            raise CheckpointError(
                f"{found[0]} is there: the checkpoint has {meaning}, Reverie reads action tokens and the L1 head",
                where=str(folder), remedy="use a checkpoint without it",
            )  # fmt: skip
    heads = [each for each in names if each.startswith("action_head")]
    if heads and config.head == "tokens":
        raise CheckpointError(
            f"{heads[0]} is there: the checkpoint acts by a continuous head, policy.head=tokens",
            where=str(folder), remedy="set policy.head=l1 (or remove the file if its action tokens were trained too)",
        )  # fmt: skip
