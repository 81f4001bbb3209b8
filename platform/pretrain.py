"""Pretrain from a dataset: python -m platform.pretrain {policy,obs_model,reward_model,all} data=<folder> [key=value ...]

policy        behaviour cloning of the dataset's actions
obs_model     the diffusion model of the next observation
reward_model  the success classifier
all           the three of them, side by side where there are cores, and the quality report

Writes out=<folder>/{policy,obs_model,reward_model}/ with a card each, README.md, card.json and media/. What is there is
never overwritten. run.resume=<that folder> goes on with what is missing there, where it stopped.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from buffers.dataset import Dataset
from configs.env import RecordedConfig
from configs.errors import CheckpointError, ConfigError
from configs.loader import config_from_yaml, config_to_dict, load_config, to_yaml
from configs.schema import PretrainBudget, PretrainConfig

from .children import end_with_parent, is_child, only_one, run_children
from .command import main
from .context import OBS_MODEL, POLICY, REWARD_MODEL, Context, make_context, require_device
from .datasets import read_any
from .model_card import CARD, PAGE, data_facts, together_page
from .models import read_model, save_model
from .preflight import check_dataset, check_machine
from .resuming import resumed_folder
from .run_folder import require_run
from .storage import disk_errors, read_json
from .weights import Arrays, load_arrays

log = logging.getLogger(__name__)

MODELS = (OBS_MODEL, POLICY, REWARD_MODEL)
"""The longest first."""
CONFIG = "config.yaml"
LOCK = "lock"
BESIDE_RESUME = {"run.resume", "parallel", "what"}
"""Keys that mean something when a pretraining goes on under its own configuration."""
READS = {
    POLICY: ("clone_noise", "success_only", "policy_budget", "algorithm"),
    OBS_MODEL: ("world_model", "obs_model_budget"),
    REWARD_MODEL: ("world_model", "reward_model_budget"),
}
"""Sections that shape one model, beside ``SHARED``: a model half done goes on only under the same."""
SHARED = ("data", "held_out", "env", "policy")


def run(argv: list[str]) -> int:
    """Check everything, then pretrain."""
    end_with_parent()
    config = _read_config(argv)
    resumed = config.run.resume is not None
    require_device(config.run.device)
    check_machine(config.world_model.obs_model, config.policy_budget.optimizer)
    context = make_context(config, seed=config.run.seed, device=config.run.device)
    dataset = read_any(config.data, context, gamma=config.algorithm.gamma)
    check_dataset(dataset, context, config.data)
    out = Path(config.out)
    wanted: list[str] = list(MODELS) if config.what == "all" else [config.what]
    there = [name for name in wanted if (out / name).exists()]
    if there and not resumed:
        raise CheckpointError(
            f"{there[0]} is there already and is never overwritten",
            where=str(out / there[0]),
            remedy="choose another out=, or continue with run.resume=<that folder>",
        )
    missing = [name for name in wanted if name not in there]
    for name in missing:
        _require_same_work(config, name, out)
    try:
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            if not resumed:
                (out / CONFIG).write_text(to_yaml(config))
        if config.what == "all":
            _run_all(config, missing, out)
            with disk_errors(out):
                _report(config, context, dataset, out)
        elif missing:
            _pretrain_one(config, context, dataset, out)
    except KeyboardInterrupt:
        if not is_child():
            log.warning("to continue: python -m platform.pretrain %s run.resume=%s", config.what, out)
        raise
    finally:
        _remove_traces(out, wanted)
    return 0


def _read_config(argv: list[str]) -> PretrainConfig:
    """Of the command line or, with ``run.resume``, of that folder: then only the model to pretrain is the command line's."""
    folder = resumed_folder(argv)
    if folder is None:
        return load_config(PretrainConfig, argv)
    given = (text.lstrip("+").partition("=")[0] for text in argv if "=" in text)
    other = [key for key in given if key not in BESIDE_RESUME]
    if other:
        raise ConfigError(
            f"{other[0]} cannot be set when a pretraining goes on",
            where=f"run.resume={folder}",
            remedy="drop it: the folder's own configuration holds; or start anew with another out=",
        )
    require_run(folder)
    stored = config_from_yaml(PretrainConfig, folder / CONFIG)
    asked = load_config(PretrainConfig, [*argv, f"data={json.dumps(stored.data)}"])
    return replace(
        stored,
        what=asked.what,
        out=str(folder),
        parallel=asked.parallel,
        run=replace(stored.run, resume=str(folder)),
    )


def _work(config: PretrainConfig, name: str) -> dict[str, Any]:
    """What shapes model ``name``."""
    values = config_to_dict(config)
    return {
        **{key: values[key] for key in (*SHARED, *READS[name])},
        **{f"run.{key}": values["run"][key] for key in ("seed", "device", "precision")},
    }


def _require_same_work(config: PretrainConfig, name: str, out: Path) -> None:
    """Raise CheckpointError when a fit of ``name`` that was interrupted in ``out`` was of something else."""
    scratch = _scratch(out, name) / CONFIG
    if not scratch.is_file():
        return
    begun, now = _work(config_from_yaml(PretrainConfig, scratch), name), _work(config, name)
    for key, value in now.items():
        if begun[key] != value:
            raise CheckpointError(
                f"{name} was begun there with another {key}",
                where=str(out),
                remedy=f"choose another out=, continue with run.resume={out}, or delete {scratch.parent}",
            )


def _scratch(out: Path, name: str) -> Path:
    return out / f".{name}.training"


def _remove_traces(out: Path, wanted: list[str]) -> None:
    """Leave no trace of a pretraining that wrote nothing."""
    if not out.is_dir():
        return
    for folder in (_scratch(out, name) for name in wanted):
        # A folder that holds no checkpoint yet holds nothing to continue from; a lock is another process's.
        if folder.is_dir() and not list(folder.glob("[0-9]*")) and not (folder / LOCK).exists():
            shutil.rmtree(folder)
    if not is_child() and {path.name for path in out.iterdir()} <= {CONFIG}:
        (out / CONFIG).unlink(missing_ok=True)
        out.rmdir()


def _run_all(config: PretrainConfig, missing: list[str], out: Path) -> None:
    """One process per model, as many at once as there are cores; each starts when what it builds on is there."""
    commands = {name: [name, f"run.resume={out}"] for name in missing}
    # The reward model also learns to judge what M_obs imagines, and may look through the policy's first layers.
    looks = [POLICY] if config.world_model.reward_model.backbone == "policy" else []
    builds_on = {OBS_MODEL: [], POLICY: [], REWARD_MODEL: [OBS_MODEL, *looks]}
    run_children(commands, builds_on, (os.cpu_count() or 1) if config.parallel else 1)


def _pretrain_one(config: PretrainConfig, context: Context, dataset: Dataset, out: Path) -> None:
    from .pretrain_jobs import cloning_job, obs_model_job_of, reward_model_job_of
    from .pretraining import fit

    name, scratch = config.what, _scratch(out, config.what)
    build: dict[str, tuple[Callable[[], Any], PretrainBudget]] = {
        POLICY: (lambda: cloning_job(config, context, dataset), config.policy_budget),
        OBS_MODEL: (lambda: obs_model_job_of(config, context, dataset), config.obs_model_budget),
        REWARD_MODEL: (
            lambda: reward_model_job_of(config, context, dataset),
            config.reward_model_budget,
        ),
    }
    with disk_errors(out):
        scratch.mkdir(exist_ok=True)
    with only_one(scratch / LOCK):
        make, budget = build[name]
        job = make()
        with disk_errors(out):
            (scratch / CONFIG).write_text(to_yaml(config))
        fitted = fit(job, budget, scratch)
        finished = job.finish(fitted.arrays)
        card = {
            "data": data_facts(dataset, config.data, config.held_out),
            "updates": fitted.updates,
            "first_val_loss": fitted.first_loss,
            "best_val_loss": fitted.best_loss,
            "history": fitted.history,
            "wall_s": round(fitted.wall_s, 1),
            "seed": config.run.seed,
            "quality": finished.quality,
        }
        if name == POLICY:
            card["success"] = _success(config, context, finished.arrays)
        save_model(out / name, context.describe(name), finished.arrays, card)
        # Only now: whoever was stopped while it was measured or written goes on from the last checkpoint.
        shutil.rmtree(scratch)
    log.info("%s: written to %s", name, out / name)


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
    from .imagined_success import imagined_success
    from .pretrain_jobs import dataset_buffer
    from .quality import quality_table, report_quality

    models = {name: read_model(out / name, name, context) for name in (OBS_MODEL, REWARD_MODEL)}
    schedule = config.imagination.schedule
    longest = int(getattr(schedule, "end", 0) or getattr(schedule, "horizon", 0))
    real = dataset_buffer(context, dataset, config.held_out)
    quality = report_quality(
        context, real, models, out / "media",
        horizon=min(longest, context.record_spec.max_decisions),
    )  # fmt: skip
    table = quality_table(quality)
    policy = context.make_policy().eval()
    load_arrays(policy, read_model(out / POLICY, POLICY, context))
    imagined = {
        name: imagined_success(context, real, models, policy, greedy=name == "greedy").to_json()
        for name in ("greedy", "sampled")
    }
    facts = {
        "data": data_facts(dataset, config.data, config.held_out),
        "models": {name: read_json(out / name / CARD) for name in MODELS},
        "quality": quality.to_json(),
        "imagined_success": imagined,
    }
    (out / CARD).write_text(json.dumps(facts, indent=1))
    (out / PAGE).write_text(together_page(facts, table))
    sys.stdout.write(table)
    for name, rate in facts["models"][POLICY]["success"].items():
        sys.stdout.write(
            f"cloned policy, {name}: {100 * rate['rate']:.1f} % of {rate['trials']} held-out starts, "
            f"{100 * imagined[name]['rate']:.1f} % of {imagined[name]['trials']} imagined episodes\n"
        )


if __name__ == "__main__":
    sys.exit(main(run, __doc__ or "", config=PretrainConfig))
