"""What a command is given, looked at before anything is made: datasets, model folders, buffers, trackers, a cluster."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from buffers.backends import BufferName, check_buffers, row_cost, stored_spec
from buffers.dataset import Dataset, peek_dataset
from configs.errors import CheckpointError, ConfigError, DataError
from configs.obs_model import ObsModelConfig, Optimizer
from configs.schema import TrainConfig
from configs.system import BufferConfig, RayHostConfig, SerialHostConfig
from policies.tokens import ActionTokenizer

from .context import OBS_MODEL, POLICY, REWARD_MODEL, Context
from .models import check_model
from .shares import Shares, first_and_last, staleness_rules

TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb"}
"""Key of ``track`` to the package that it needs."""


def check_inputs(config: TrainConfig, context: Context) -> None:
    """Raise a one-line error for an input that the run could not use. Reads headers, no weights and no episodes.

    A resumed run takes models and episodes from its checkpoint, but still names those that it started from.
    """
    ends = first_and_last(config)
    part = max(ends, key=lambda end: end.real_decisions)
    if part.imagines:
        check_machine(config.world_model.obs_model)
    if config.data is not None:
        check_dataset(peek_dataset(config.data), context, config.data)
    if config.policy.path is not None:
        check_model(_folder(config.policy.path, "policy.path"), POLICY, context)
    if part.imagines and config.world_model.path is not None:
        folder = _folder(config.world_model.path, "world_model.path")
        for name in (OBS_MODEL, REWARD_MODEL):
            check_model(folder / name, name, context)
    if part.imagines:
        _check_mix(config, min(ends, key=lambda end: end.imagined_decisions))
    _check_staleness(config, part)
    _check_segments(config)
    turn, store = part.real_decisions or part.retired_decisions, staleness_rules(config).store
    check_buffers(context.record_spec, config.buffers)
    _check_limiters(config)
    imagined = math.ceil(max(end.imagined_decisions for end in ends) * store)
    _check_capacity(config, config.buffers.real, "real", math.ceil(turn * store), context)
    _check_capacity(config, config.buffers.imagined, "imagined", imagined, context)
    _check_trackers(config)
    if config.inference.replicas > config.rollout.workers:
        raise ConfigError(
            f"{config.inference.replicas} replicas for {config.rollout.workers} rollout worker(s): some would never be asked",
            where="inference.replicas", remedy="lower it, or raise rollout.workers",
        )  # fmt: skip
    if isinstance(config.host, RayHostConfig):
        _check_host(config.host)


def _check_host(host: RayHostConfig) -> None:
    if host.address is None:
        from .hosts.seat import check_learner_cores, usable_cores

        check_learner_cores(host.learner_cores, usable_cores())
        return
    from .hosts.ray_host import require_cluster

    require_cluster(host.address)


def check_machine(config: ObsModelConfig, *optimizers: Optimizer) -> None:
    """Raise a one-line error where this machine lacks what the observation model or one of ``optimizers`` asks for."""
    if config.precision == "fp8" or config.compiled:
        from world_models.acceleration import require_compiler, require_fp8

        wanted = {require_fp8: config.precision == "fp8", require_compiler: config.compiled}
        for require in (require for require, asked in wanted.items() if asked):
            require()
    if "soap" in (config.optimizer, *optimizers):
        from world_models.optimizers import require_soap

        require_soap()


def check_dataset(dataset: Dataset, context: Context, where: str) -> None:
    """Raise DataError unless the dataset was recorded with this env and these action tokens.

    Instructions are those of its episodes or, where only its header was read, those that its writer listed.
    """
    if context.record_spec.between and not dataset.spec.between:
        raise DataError(
            "the dataset has no frames between decisions, which world_model.obs_model.step=env_step learns from",
            where=where, remedy="record one with frames_between=true, or set step to decision",
        )  # fmt: skip
    # What it has beyond that is left out.
    context.record_spec.require(
        replace(dataset.spec, between=context.record_spec.between),
        where=where,
        remedy="record one with this env and policy, or set env and policy to the dataset's",
    )
    _check_action_range(dataset, context, where)
    _check_action_tokens(dataset, context, where)
    instructions = {record.instruction for record in dataset.records}
    unknown = (instructions or set(dataset.info.get("instructions", ()))) - set(context.env_spec.instructions)
    if unknown:
        raise DataError(
            f"instruction {sorted(unknown)[0]!r} is not one of {context.env_spec.name}'s", where=where,
            remedy="set env (for the tabletop env.tasks) to that of the dataset",
        )  # fmt: skip


def _check_action_range(dataset: Dataset, context: Context, where: str) -> None:
    """Equal tokens must mean equal actions; a dataset that does not name its range was recorded by its env."""
    spec = context.env_spec
    for key, ours in (("action_low", spec.action_low), ("action_high", spec.action_high)):
        theirs = dataset.info.get(key)
        if theirs is not None and not np.allclose(theirs, ours):
            raise DataError(
                f"{key} is {theirs}, the env's is {list(ours)}: its tokens mean other actions", where=where,
                remedy="import it again with this env=, or record one with it",
            )  # fmt: skip


def _check_action_tokens(dataset: Dataset, context: Context, where: str) -> None:
    """Policies of another kind count their tokens otherwise; a dataset that does not say has equal parts of the env's range."""
    spec = context.env_spec
    equal = ActionTokenizer(spec.action_low, spec.action_high, context.policy_config.bins).to_json()
    theirs, ours = dataset.info.get("action_tokens", equal), context.tokenizer.to_json()
    if not _same_tokens(theirs, ours):
        raise DataError(
            f"its action tokens are {theirs}, the policy's are {ours}", where=where,
            remedy="record or import it again with this policy= and its settings",
        )  # fmt: skip


def _same_tokens(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Ranges may differ by rounding, everything else may not."""
    ends = ("low", "high")
    if any(theirs.get(key) != ours.get(key) for key in theirs.keys() | ours.keys() if key not in ends):
        return False
    return all(
        np.shape(theirs[key]) == np.shape(ours[key]) and np.allclose(theirs[key], ours[key]) for key in ends
    )


def _folder(path: str, key: str) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(
            "no such folder", where=f"{key}={path}", remedy="write it with python -m platform.pretrain"
        )
    return folder


def _check_mix(config: TrainConfig, part: Shares) -> None:
    if part.imagined_decisions == 0:
        raise ConfigError(
            "a turn has no place for an imagined decision", where=f"mix ({config.mix.kind})",
            remedy="lower its share of real data, raise algorithm.batch, or use the mode real",
        )  # fmt: skip
    judged = config.imagination.gate.enabled or config.evaluation.quality_every
    if judged and config.buffers.real.held_out == 0:
        raise ConfigError(
            "no episode is held out, so nothing tells how far the models can be believed", where="buffers.real.held_out",
            remedy="set it above 0, or imagination.gate.enabled=false and evaluation.quality_every=0",
        )  # fmt: skip
    if config.imagination.gate.enabled and not config.evaluation.quality_every:
        raise ConfigError(
            "the gate believes no horizon that was never measured", where="evaluation.quality_every=0",
            remedy="set it above 0, or imagination.gate.enabled=false",
        )  # fmt: skip


def _check_staleness(config: TrainConfig, part: Shares) -> None:
    """Rules that could only end in everybody waiting for somebody else."""
    staleness, sync = config.staleness, config.sync
    turn = part.real_decisions + part.imagined_decisions
    most = turn + math.floor(staleness.budget * turn * sync.updates_per_publish + 1e-9)
    if sync.store_size > most:
        raise ConfigError(
            f"collectors never have {sync.store_size} decisions in store: a version's last turn finds at most {most}",
            where="sync.store_size", remedy=f"give at most {most}, or raise staleness.budget or algorithm.batch",
        )  # fmt: skip
    if staleness.on_violation == "wait" and staleness.bound == 0:
        raise ConfigError(
            "whole samples are trained, some are always left over when a version is due, and with a bound of 0 it would "
            "wait for ever", where="staleness.on_violation=wait",
            remedy="set staleness.bound to 1 or more, or on_violation to mask, cut or drop",
        )  # fmt: skip
    if staleness.on_policy_min_ratio > 0 and not part.real_decisions:
        raise ConfigError(
            f"the policy trains on no real decision in the mode {config.mode}", where="staleness.on_policy_min_ratio",
            remedy="set it to 0, or use the mode real or real+imagined",
        )  # fmt: skip


def _check_segments(config: TrainConfig) -> None:
    """Segments of one episode are samples of their own, wherever and whenever the episode goes on."""
    others = {
        "mode": (config.mode != "real", "the models learn outcomes, which a segment does not know"),
        "rollout.group": (config.rollout.group > 1, "groups are of whole episodes"),
        "sync.ordered": (
            config.sync.ordered,
            "which segment is started next depends on which episode is faster",
        ),
    }
    for key, (clashes, reason) in others.items():
        if config.rollout.segment is not None and clashes:
            raise ConfigError(
                f"{reason}",
                where=f"rollout.segment with {key}",
                remedy=f"drop rollout.segment, or change {key}",
            )


def _check_limiters(config: TrainConfig) -> None:
    limited = config.buffers.real.limiter is not None or config.buffers.imagined.limiter is not None
    if limited and isinstance(config.host, SerialHostConfig):
        raise ConfigError(
            "on the serial host nobody stores a record while a draw waits for one",
            where="buffers.*.limiter",
            remedy="drop the limiter, or use host=ray",
        )


def _check_capacity(
    config: TrainConfig, buffer: BufferConfig, name: BufferName, decisions: int, context: Context
) -> None:
    """A turn that does not fit is never gathered: samples would push each other out for ever."""
    spec = stored_spec(context.record_spec, name)
    longest, row = spec.max_decisions, row_cost(spec, config.buffers, buffer)
    # A sample of T decisions takes T + 1 rows; one more sample must find room while the turn's are waiting.
    rows = decisions + -(-decisions // longest) + longest + 1
    if buffer.max_bytes < rows * row:
        raise ConfigError(
            f"max_bytes={buffer.max_bytes} has no room for the {decisions} decisions of a turn",
            where=f"buffers.{name}.max_bytes",
            remedy=f"give at least {rows * row}, or lower algorithm.batch",
        )


def _check_trackers(config: TrainConfig) -> None:
    wanted = {"tensorboard": config.track.tensorboard, "wandb": config.track.wandb != "off"}
    for key, package in TRACKERS.items():
        found = find_spec(package)
        # A folder of that name, as the tracker itself leaves in the working directory, has no origin.
        if wanted[key] and (found is None or found.origin is None):
            raise ConfigError(
                f"the package {package} is not installed",
                where=f"track.{key}",
                remedy="pip install 'reverie-rl[track]', or turn it off",
            )
