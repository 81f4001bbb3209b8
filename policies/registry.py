"""Which class builds which policy config."""

from __future__ import annotations

from collections.abc import Callable

from configs.policy import PolicyConfig, SmallVLAConfig
from policies.base import Policy, PolicySpec
from policies.small_vla import SmallVLA

POLICIES: dict[type[PolicyConfig], Callable[[PolicyConfig, PolicySpec], Policy]] = {SmallVLAConfig: SmallVLA}


def make_policy(config: PolicyConfig, spec: PolicySpec) -> Policy:
    """A policy with fresh weights, drawn from torch's global generator; ``config.path`` is not read here."""
    return POLICIES[type(config)](config, spec)
