"""Pretrain from a dataset: python -m platform.pretrain {policy,obs_model,reward_model,all} data=<folder> [key=value ...]

policy        behaviour cloning of the dataset's actions
obs_model     the diffusion model of the next observation
reward_model  the success classifier
all           the three of them, side by side where there are cores, and the quality report

Writes out=<folder>/{policy,obs_model,reward_model}/, media/ and quality.json. What is there is never overwritten; an
interrupted model goes on where it stopped.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from buffers.dataset import Dataset
from buffers.memory import MemoryBuffer
from buffers.records import Record
from buffers.shelf import bytes_per_row
from configs.env import RecordedConfig
from configs.errors import CheckpointError, DataError, ReverieError
from configs.loader import load_config
from configs.schema import PretrainBudget, PretrainConfig
from configs.system import BufferConfig

from .command import main
from .context import OBS_MODEL, POLICY, REWARD_MODEL, Context, make_context, require_device
from .datasets import read_any
from .models import read_model, save_model
from .preflight import check_dataset
from .storage import disk_errors
from .weights import Arrays, load_arrays

log = logging.getLogger(__name__)

MODELS = (OBS_MODEL, POLICY, REWARD_MODEL)
"""The longest first."""
BUILDS_ON = {REWARD_MODEL: OBS_MODEL}
"""M_reward also learns to judge what M_obs imagines."""


def run(argv: list[str]) -> int:
    """Check everything, then pretrain."""
    config = load_config(PretrainConfig, argv)
    require_device(config.run.device)
    context = make_context(config, seed=config.run.seed, device=config.run.device)
    dataset = read_any(config.data, context, gamma=config.algorithm.gamma)
    check_dataset(dataset, context, config.data)
    out = Path(config.out)
    wanted = MODELS if config.what == "all" else (config.what,)
    for name in wanted:
        if (out / name).exists():
            raise CheckpointError(
                f"{name} is there already and is never overwritten",
                where=str(out / name),
                remedy="choose another out=",
            )
    try:
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        if config.what == "all":
            _run_children(argv, config)
            with disk_errors(out):
                _report(config, context, dataset, out)
        else:
            _pretrain_one(config, context, dataset, out)
    finally:
        _remove_empty([*(out / f".{name}.training" for name in wanted), out])
    return 0


def _remove_empty(folders: list[Path]) -> None:
    """Leave no trace of a pretraining that wrote nothing."""
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _require_batch(data: MemoryBuffer, batch: int, name: str) -> None:
    """Raise DataError when a batch would hold more than there is to learn from."""
    there = data.stats()["train_decisions"]
    if batch > there:
        raise DataError(
            f"{name}_budget.batch={batch} is larger than the data ({there} decisions)",
            where=f"{name}_budget.batch", remedy="give more episodes or a smaller batch",
        )  # fmt: skip


def dataset_buffer(context: Context, dataset: Dataset, held_out: float) -> MemoryBuffer:
    """The dataset as a replay buffer: the same windows, outcomes and held-out split as in a run."""
    rows = sum(record.length + 1 for record in dataset.records)
    size = (rows + context.record_spec.max_decisions + 1) * bytes_per_row(context.record_spec)
    data = MemoryBuffer(
        context.record_spec,
        BufferConfig(max_bytes=size, held_out=held_out),
        seed=context.seed + 11,
        name="dataset",
    )
    data.extend(dataset.records)
    return data


def _run_children(argv: list[str], config: PretrainConfig) -> None:
    """One process per model, as many at once as there are cores; each starts when what it builds on is there. The first
    failure ends the others.
    """
    at_once = (os.cpu_count() or 1) if config.parallel else 1
    rest = [text for text in argv if text != "all" and not text.startswith("what=")]
    waiting, running, done = list(MODELS), dict[str, subprocess.Popen[bytes]](), set[str]()
    try:
        while waiting or running:
            for name in [name for name in waiting if name not in BUILDS_ON or BUILDS_ON[name] in done]:
                if len(running) < at_once:
                    waiting.remove(name)
                    command = [sys.executable, "-m", "platform.pretrain", name, *rest]
                    running[name] = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
            time.sleep(0.2)
            for name, child in list(running.items()):
                code = child.poll()
                if code is None:
                    continue
                del running[name]
                if code:
                    raise _ChildFailed(f"pretraining {name} ended with status {code}", where=name)
                done.add(name)
    finally:
        for child in running.values():
            child.terminate()
            child.wait()


class _ChildFailed(ReverieError):
    """A model's process has said why on its own line."""

    exit_code = 2


def _pretrain_one(config: PretrainConfig, context: Context, dataset: Dataset, out: Path) -> None:
    from .pretraining import fit

    name = config.what
    build: dict[str, tuple[Callable[[], Any], PretrainBudget]] = {
        POLICY: (lambda: _cloning_job(config, context, dataset), config.policy_budget),
        OBS_MODEL: (lambda: _obs_model_job(config, context, dataset), config.obs_model_budget),
        REWARD_MODEL: (
            lambda: _reward_model_job(config, context, dataset),
            config.reward_model_budget,
        ),
    }
    make, budget = build[name]
    fitted = fit(make(), budget, out / f".{name}.training")
    card = {
        "data": {"folder": config.data, "episodes": len(dataset.records)},
        "updates": fitted.updates,
        "first_val_loss": fitted.first_loss,
        "best_val_loss": fitted.best_loss,
        "history": fitted.history,
        "wall_s": round(fitted.wall_s, 1),
        "seed": config.run.seed,
    }
    if name == POLICY:
        card["success"] = _success(config, context, fitted.arrays)
    save_model(out / name, context.describe(name), fitted.arrays, card)
    log.info("%s: written to %s", name, out / name)


def _cloning_job(config: PretrainConfig, context: Context, dataset: Dataset) -> Any:
    from buffers.index import is_held_out

    from .cloning import CloningJob

    records = [record for record in dataset.records if _worth_cloning(record, dataset, config)]
    held = [record for record in records if is_held_out(record.episode_id, config.held_out)]
    train = [record for record in records if not is_held_out(record.episode_id, config.held_out)]
    valued = [record for record in dataset.records if not is_held_out(record.episode_id, config.held_out)]
    if not held or not train:
        raise DataError(
            f"{len(records)} episodes to clone are too few to hold some out", where=config.data,
            remedy="record more episodes",
        )  # fmt: skip
    return CloningJob(
        context, train, valued, held, config.policy_budget,
        discount=config.algorithm.gamma**config.policy.replan, precision=config.run.precision,
    )  # fmt: skip


def _worth_cloning(record: Record, dataset: Dataset, config: PretrainConfig) -> bool:
    level, levels = record.extra.get("noise_level"), dataset.info.get("noise")
    calm = level is None or levels is None or levels[int(level)]["action_noise"] <= config.clone_noise
    return calm and (record.success or not config.success_only)


def _obs_model_job(config: PretrainConfig, context: Context, dataset: Dataset) -> Any:
    from .pretraining import obs_model_job

    data = dataset_buffer(context, dataset, config.held_out)
    _require_batch(data, config.obs_model_budget.batch or config.world_model.obs_model.batch, OBS_MODEL)
    return obs_model_job(context, data, config.obs_model_budget)


def _reward_model_job(config: PretrainConfig, context: Context, dataset: Dataset) -> Any:
    from .pretraining import reward_model_job

    folder, obs_model = Path(config.out) / OBS_MODEL, None
    if folder.is_dir():
        obs_model = context.make_obs_model().eval()
        load_arrays(obs_model, read_model(folder, OBS_MODEL, context))
    else:
        log.warning("reward_model: no obs_model in %s, so it sees real frames alone", config.out)
    data = dataset_buffer(context, dataset, config.held_out)
    models = config.world_model
    batch = config.reward_model_budget.batch or models.reward_model.batch
    _require_batch(data, batch, REWARD_MODEL)
    models = replace(models, reward_model=replace(models.reward_model, batch=batch))
    context = replace(context, world_model_config=models)
    return reward_model_job(context, data, config.reward_model_budget, obs_model)


def _success(config: PretrainConfig, context: Context, arrays: Arrays) -> dict[str, Any]:
    """In the real environment, on the held-out starts; nothing where there is none."""
    if isinstance(config.env, RecordedConfig):
        return {}
    from .envs import make_env
    from .evaluation import evaluate_policy

    policy = context.make_policy()
    load_arrays(policy, arrays)
    evaluation = config.evaluation
    env = make_env(config.env, evaluation.envs, chunk=config.policy.chunk, replan=config.policy.replan)
    rates: dict[str, Any] = {}
    for name in ("greedy", "sampled"):
        result = evaluate_policy(
            context,
            env,
            policy,
            trials=evaluation.online_trials,
            first_seed=evaluation.seed,
            greedy=name == "greedy",
        )
        rates[name] = result.rate.to_json()
        log.info("policy: %s success %s", name, result.rate)
    env.close()
    return rates


def _report(config: PretrainConfig, context: Context, dataset: Dataset, out: Path) -> None:
    from .quality import quality_table, report_quality

    models = {name: read_model(out / name, name, context) for name in (OBS_MODEL, REWARD_MODEL)}
    schedule = config.imagination.schedule
    longest = int(getattr(schedule, "end", 0) or getattr(schedule, "horizon", 0))
    quality = report_quality(
        context, dataset_buffer(context, dataset, config.held_out), models, out / "media",
        horizon=min(longest, context.record_spec.max_decisions),
    )  # fmt: skip
    card = json.loads((out / POLICY / "card.json").read_text())
    sys.stdout.write(quality_table(quality))
    for name, rate in card["success"].items():
        sys.stdout.write(
            f"cloned policy, {name}: {100 * rate['rate']:.1f} % of {rate['trials']} held-out starts\n"
        )


if __name__ == "__main__":
    sys.exit(main(run, __doc__ or "", config=PretrainConfig))
