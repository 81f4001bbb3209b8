"""What a run will take, before anything starts: processes, memory, batch arithmetic. Mistakes that only the whole
config shows are found here.
"""

from __future__ import annotations

import os
from pathlib import Path

from configs.errors import ConfigError, ResourceError
from configs.schema import TrainConfig
from configs.system import RayHostConfig

from .assembly import quality_horizon, rank_names
from .context import Context, make_context, require_device
from .memory_plan import check_memory, memory_lines
from .preflight import check_inputs
from .shares import first_and_last, shares

TORCH_PROCESS_GB = 0.5
"""Resident memory of a role's process with torch and its models, as measured on CPU with the small presets."""


REVERB_SERVER_GB = 1.0
"""A Reverb server and its client, each with TensorFlow, as measured without records."""

SPILL = {
    "memory": "let frames spill to disk with their memory_bytes",
    "reverb": "use buffers.backend=memory, whose frames can spill to disk",
}
"""By backend: how records find room beyond memory."""


def memory_bytes() -> int:
    """Memory of this machine, or of its control group where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total


def planned_bytes(config: TrainConfig) -> int:
    """Upper bound of what buffers and processes take."""
    processes = len(processes_of(config)) if isinstance(config.host, RayHostConfig) else 1
    buffers = config.buffers
    held = sum(part.memory_bytes or part.max_bytes for part in (buffers.real, buffers.imagined))
    servers = 2 if buffers.backend == "reverb" else 0
    if servers and buffers.reverb.address is not None:
        # A server elsewhere holds them; platform.replay looks at its machine.
        held = 0
    return int(held + (processes * TORCH_PROCESS_GB + servers * REVERB_SERVER_GB) * 1e9)


def processes_of(config: TrainConfig) -> list[str]:
    """Names of the roles and services."""
    part = shares(config)
    names = ["store", "b_real", "b_img", "policy_learner", *rank_names(config), "evaluator"]
    if part.collects:
        names += [f"inference_{index}" for index in range(config.inference.replicas)]
        names += [f"rollout_{index}" for index in range(config.rollout.workers)]
    if part.imagines:
        names.append("imagination")
    if part.trains_models:
        names += ["obs_model_learner", "reward_model_learner"]
    return names


def check_plan(config: TrainConfig) -> None:
    """Raise a one-line error for what cannot run: device, environment, memory, and what ``check_inputs`` finds."""
    require_device(config.run.device)
    context = make_context(config, seed=config.run.seed, device=config.run.device)
    planned, there = planned_bytes(config), memory_bytes()
    if planned > there:
        raise ResourceError(
            f"the run may take {planned / 1e9:.1f} GB, the machine has {there / 1e9:.1f} GB", where="buffers",
            remedy=f"lower buffers.real.max_bytes and buffers.imagined.max_bytes, or {SPILL[config.buffers.backend]}",
        )  # fmt: skip
    _check_ranks(config, context)
    check_inputs(config, context)
    check_memory(config, context, there)


def _check_ranks(config: TrainConfig, context: Context) -> None:
    """Ranks share whole records: a turn must be as many of them, however long each is."""
    ranks, longest = config.learner.ranks, context.record_spec.max_decisions
    part = shares(config)
    turn = part.real_decisions + part.imagined_decisions
    if turn <= (ranks - 1) * longest:
        raise ConfigError(
            f"the {turn} decisions of a turn may be fewer episodes than learner.ranks={ranks}, one has up to {longest}",
            where="learner.ranks",
            remedy=f"lower it to at most {1 + (turn - 1) // longest}, or raise algorithm.batch",
        )
    if config.learner.offload and config.run.device == "cpu":
        raise ConfigError(
            "learner.offload=true moves memory from a GPU to the CPU, but run.device=cpu", where="learner.offload",
            remedy="set learner.offload=false, or run.device=cuda on a machine with a GPU",
        )  # fmt: skip
    if ranks > 1 and config.run.device == "cuda" and getattr(config.host, "address", None) is None:
        import torch

        gpus = torch.cuda.device_count()
        if gpus < ranks:
            raise ResourceError(
                f"learner.ranks={ranks} needs a GPU each, the machine has {gpus}", where="learner.ranks",
                remedy=f"lower it to at most {gpus}, or give host.address of a cluster with more",
            )  # fmt: skip


def plan_text(config: TrainConfig) -> str:
    """For people."""
    (part, last), algorithm = first_and_last(config), config.algorithm
    turn = part.real_decisions + part.imagined_decisions
    steps = turn // algorithm.batch * algorithm.epochs
    lines = [
        "# plan",
        f"processes: {', '.join(processes_of(config))} ({config.host.kind} host)",
        f"memory: at most {planned_bytes(config) / 1e9:.1f} GB of {memory_bytes() / 1e9:.1f} GB",
        f"a turn: {part.real_decisions} real + {part.imagined_decisions} imagined decisions"
        + (f" (in the end {last.real_decisions} + {last.imagined_decisions}), " if last != part else ", ")
        +
        f"{steps} optimizer step(s) of {algorithm.batch} in micro-batches of {algorithm.micro_batch}"
        + (f" on {config.learner.ranks} ranks" if config.learner.ranks > 1 else ""),
        f"a version: {config.sync.updates_per_publish} turn(s); collectors may hold "
        f"{1 + config.staleness.budget:g} versions' worth; decisions older than {config.staleness.bound} versions never train",
        "a new version: " + (
            "running episodes go on under it" if config.sync.partial else "running episodes end under the old one first"
        ),
        f"the run: {config.run.stop.updates} turns",
    ]  # fmt: skip
    context = make_context(config, seed=0, device="cpu")
    lines += memory_lines(config, context)
    if part.imagines:
        lines.append(
            f"imagination: {config.imagination.worlds} worlds, horizon up to {quality_horizon(config, context)} decisions"
        )
    return "\n".join(lines) + "\n"
