"""Which class builds which policy config."""

from __future__ import annotations

from collections.abc import Callable

from configs.policy import PolicyConfig, SmallVLAConfig
from policies.base import Policy, PolicySpec
from policies.small_vla import SmallVLA

POLICIES: dict[type[PolicyConfig], Callable[[PolicyConfig, PolicySpec], Policy]] = {SmallVLAConfig: SmallVLA}
"""Networks are imported with this module, so ``policies.base.make_policy`` imports it late."""
