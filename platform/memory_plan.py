"""Memory of a large policy by role, before a run: who holds how many copies, what training adds, which knob to turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from configs.errors import ResourceError
from configs.openvla import OpenVLAConfig
from configs.schema import TrainConfig
from configs.system import RayHostConfig

from .assembly import rank_names
from .context import Context
from .shares import shares

if TYPE_CHECKING:
    from policies.sizes import PolicySize


@dataclass(frozen=True)
class RoleMemory:
    """Bytes of one role's policy."""

    role: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """Together."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {_gb(count)}" for name, count in self.parts.items())
        return f"{self.role} {_gb(self.total)} ({shown})"


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.1f} MB"


def policy_memory(config: TrainConfig, context: Context) -> tuple[PolicySize, list[RoleMemory]] | None:
    """By role; None for a policy that is too small to matter."""
    from policies.sizes import policy_size

    size = policy_size(config.policy, context.policy_spec)
    if size is None:
        return None
    part, weights = shares(config), size.weight_bytes
    learner = {
        "weights": weights,
        "anchor": weights,
        "gradients and moments": size.training_bytes,
        "activations": size.activation_bytes * config.algorithm.micro_batch,
    }
    roles = [RoleMemory(name, learner) for name in ("policy_learner", *rank_names(config))]
    if part.collects:
        serving = {"two copies": 2 * weights}
        roles += [RoleMemory(f"inference_{index}", serving) for index in range(config.inference.replicas)]
    if part.imagines:
        roles.append(RoleMemory("imagination", {"weights": weights}))
    roles.append(RoleMemory("evaluator", {"weights": weights}))
    versions = {"newest, anchor and best": 3 * size.published_bytes}
    return size, [*roles, RoleMemory("store", versions)]


def memory_lines(config: TrainConfig, context: Context) -> list[str]:
    """For the plan."""
    planned = policy_memory(config, context)
    if planned is None:
        return []
    size, roles = planned
    # Weight, gradient and two moments, where the output layer trains.
    whole, held = (16 * count for count in (size.head_full, size.head))
    return [
        f"policy: {(size.trained + size.frozen) / 1e6:.1f} M weights, {size.trained / 1e6:.1f} M of them train; "
        f"a version is {_gb(size.published_bytes)}",
        f"output layer: {_gb(held)} with its gradient and moments, {_gb(whole)} with every token (policy.slim)",
        *(f"  {role}" for role in roles),
    ]


def check_memory(config: TrainConfig, context: Context, there: int) -> None:
    """Raise ResourceError where the roles' policies do not fit into ``there`` bytes, naming what would help.

    Roles that other machines may take are only judged one by one.
    """
    planned = policy_memory(config, context)
    if planned is None:
        return
    _, roles = planned
    spread = isinstance(config.host, RayHostConfig) and config.host.address is not None
    largest = max(roles, key=lambda role: role.total)
    needed = largest.total if spread else sum(role.total for role in roles)
    if needed > there:
        raise ResourceError(
            f"the policies take {_gb(needed)}, there are {_gb(there)}; the largest is {largest}", where="policy",
            remedy=f"set {', '.join(_knobs(config)) or 'a smaller policy'}",
        )  # fmt: skip


def _knobs(config: TrainConfig) -> list[str]:
    """What is not turned yet, the most worth first."""
    policy = config.policy
    assert isinstance(policy, OpenVLAConfig), "only such policies are counted"
    turned = {
        "policy.lora_rank=32": policy.lora_rank > 0,
        "policy.freeze_vision=true": policy.freeze_vision,
        "policy.frozen_dtype=bfloat16": policy.frozen_dtype == "bfloat16",
        "policy.slim=true": policy.slim,
        "policy.checkpointing=true": policy.checkpointing,
        "algorithm.micro_batch=1": config.algorithm.micro_batch == 1,
    }
    return [knob for knob, done in turned.items() if not done]
