"""Which action tokens a kind of policy speaks: what token ``i`` of a dimension stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from configs.openvla import OpenVLAConfig
from configs.pi0 import PI0Config
from configs.policy import PolicyConfig, SmallVLAConfig
from policies.tokens import ActionTokenizer


def _uniform(
    config: SmallVLAConfig | PI0Config, low: Sequence[float], high: Sequence[float]
) -> ActionTokenizer:
    return ActionTokenizer(low, high, config.bins)


def _openvla(config: OpenVLAConfig, low: Sequence[float], high: Sequence[float]) -> ActionTokenizer:
    from policies.openvla.building import openvla_tokenizer

    return openvla_tokenizer(config, low, high, config.bins)


TOKENIZERS: dict[type[PolicyConfig], Callable[[Any, Sequence[float], Sequence[float]], ActionTokenizer]] = {
    SmallVLAConfig: _uniform,
    OpenVLAConfig: _openvla,
    PI0Config: _uniform,
}
"""Class of the policy's config to ``f(config, low, high)``, the range being the environment's."""


def dataset_tokenizer(
    info: dict[str, Any], low: Sequence[float], high: Sequence[float], bins: int
) -> ActionTokenizer:
    """Of a dataset's ``info``; one that does not say has equal parts of its range."""
    from policies.openvla.actions import OpenVLATokenizer

    told = {name: value for name, value in info.get("action_tokens", {}).items() if name != "scheme"}
    scheme = info.get("action_tokens", {}).get("scheme")
    return OpenVLATokenizer(**told) if scheme == OpenVLATokenizer.scheme else ActionTokenizer(low, high, bins)


def action_tokenizer(config: PolicyConfig, low: Sequence[float], high: Sequence[float]) -> ActionTokenizer:
    """Between env actions and the tokens of that policy. Raises DataError or CheckpointError for a range that does not fit."""
    return TOKENIZERS[type(config)](config, low, high)
