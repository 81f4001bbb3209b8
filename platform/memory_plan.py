"""Memory of a large policy by role, before a run: who holds how many copies, what training adds, which knob to turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from configs.errors import ConfigError, ResourceError
from configs.openvla import OpenVLAConfig
from configs.pi0 import PI0Config
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
        "weights": _rank_weights(config, size),
        **_anchor_and_optimizer(config, size),
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


def _rank_weights(config: TrainConfig, size: PolicySize) -> int:
    """Of one copy: pieces of the blocks, the one that runs, and the rest."""
    if config.learner.shard != "weights" or size.blocks is None:
        return size.weight_bytes
    away = size.blocks.weight_bytes * (config.learner.ranks - 1) // config.learner.ranks
    return size.weight_bytes - away + size.blocks.largest_bytes


def _rank_trained(config: TrainConfig, size: PolicySize) -> int:
    """Bytes of the weights that a rank has gradients of."""
    gradients = size.training_bytes - size.moment_bytes
    if config.learner.shard != "weights" or size.blocks is None:
        return gradients
    return gradients - size.blocks.gradient_bytes * (config.learner.ranks - 1) // config.learner.ranks


def _anchor_and_optimizer(config: TrainConfig, size: PolicySize) -> dict[str, int]:
    """Of one rank."""
    learner, anchor, gradients = config.learner, _rank_weights(config, size), _rank_trained(config, size)
    sharers = learner.ranks if learner.shard == "moments" else 1
    moments = 2 * gradients // sharers
    if not learner.offload:
        return {"anchor": anchor, "gradients and moments": gradients + moments}
    # While it steps, the CPU has a copy of the weights that it steps and their gradients too.
    stepping = 2 * gradients // sharers
    return {
        "gradients": gradients,
        "anchor" if learner.shard == "weights" else "anchor on the CPU": anchor,
        "moments on the CPU": moments + stepping,
    }


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
        *(
            [
                f"output layer: {_gb(held)} with its gradient and moments, {_gb(whole)} with every token (policy.slim)"
            ]
            if whole
            else []
        ),
        *(f"  {role}" for role in roles),
    ]


def check_memory(config: TrainConfig, context: Context, there: int) -> None:
    """Raise ResourceError where the roles' policies do not fit into ``there`` bytes, naming what would help, and ConfigError
    where ranks cannot share out the policy's weights.

    Roles that other machines may take are only judged one by one.
    """
    planned = policy_memory(config, context)
    if config.learner.shard == "weights" and (planned is None or planned[0].blocks is None):
        raise ConfigError(
            f"policy={config.policy.kind} has no blocks whose weights ranks could share out", where="learner.shard",
            remedy="set learner.shard=moments, or use policy=openvla",
        )  # fmt: skip
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
    turned = KNOBS[type(config.policy)](config.policy)
    if config.learner.ranks > 1:
        turned["learner.shard=weights"] = config.learner.shard == "weights"
    turned["algorithm.micro_batch=1"] = config.algorithm.micro_batch == 1
    return [knob for knob, done in turned.items() if not done]


def _openvla_knobs(policy: OpenVLAConfig) -> dict[str, bool]:
    return {
        "policy.lora_rank=32": policy.lora_rank > 0,
        "policy.freeze_vision=true": policy.freeze_vision,
        "policy.frozen_dtype=bfloat16": policy.frozen_dtype == "bfloat16",
        "policy.slim=true": policy.slim,
        "policy.checkpointing=true": policy.checkpointing,
    }


def _pi0_knobs(policy: PI0Config) -> dict[str, bool]:
    return {"policy.freeze_vlm=true": policy.freeze_vlm, "policy.steps=1": policy.steps == 1}


KNOBS: dict[type[object], Callable[[Any], dict[str, bool]]] = {
    OpenVLAConfig: _openvla_knobs,
    PI0Config: _pi0_knobs,
}
"""Class of the policy's config to its knobs, and whether they are turned."""
