"""Which class builds which policy config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from configs.openvla import OpenVLAConfig
from configs.pi0 import PI0Config
from configs.policy import PolicyConfig, SmallVLAConfig
from policies.base import Policy, PolicySpec
from policies.openvla.kinds import make_openvla
from policies.pi0.policy import PI0Policy
from policies.small_vla import SmallVLA

POLICIES: dict[type[PolicyConfig], Callable[[Any, PolicySpec], Policy]] = {
    SmallVLAConfig: SmallVLA,
    OpenVLAConfig: make_openvla,
    PI0Config: PI0Policy,
}
"""Networks are imported with this module, so ``policies.base.make_policy`` imports it late."""
