"""What a run leaves for people: ``summary.json``, curves, film, and the final table."""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from configs.schema import TrainConfig

from .assembly import quality_horizon
from .context import OBS_MODEL, REWARD_MODEL
from .metrics import read_rows
from .runner import Outcome, online_steps
from .shares import shares
from .storage import disk_errors

log = logging.getLogger(__name__)

PACKAGES = ("torch", "numpy", "ray", "diffusers", "accelerate", "gymnasium")


def hardware() -> dict[str, Any]:
    """Processor, cores, memory, GPU, whether they compute in bfloat16: what a figure must be read with."""
    import torch

    from world_models.acceleration import computes_bfloat16

    model = "unknown"
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "gpu": gpu,
        "bfloat16": computes_bfloat16("cpu" if gpu is None else "cuda"),
    }


def versions() -> dict[str, str]:
    """Of Python, Reverie and the packages that numbers depend on."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("reverie-rl", *PACKAGES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def summary(config: TrainConfig, outcome: Outcome) -> dict[str, Any]:
    """``summary.json`` (design §6)."""
    board, progress = outcome.board, outcome.progress
    online = online_steps(board)
    before, after = progress.before, outcome.after
    return {
        "mode": config.mode,
        "env": config.env.kind,
        "seed": config.run.seed,
        "interrupted": outcome.interrupted,
        "success": {"decoding": "greedy", "before": before.get("greedy"), "after": after.get("greedy")},
        "success_sampled": {"before": before.get("sampled"), "after": after.get("sampled")},
        "real_steps": {
            "demonstrations": progress.demonstration_steps,
            "warm_up": progress.warm_up_steps,
            "online": online - progress.warm_up_steps,
        },
        "imagined_steps": int(board.get("imagined_steps", 0)),
        "updates": {
            "policy": int(board.get("policy/updates", 0)),
            "obs_model": int(board.get("obs_model/updates", 0)),
            "reward_model": int(board.get("reward_model/updates", 0)),
        },
        "version": int(board.get("policy/version", 0)),
        "lag": outcome.lag,
        "restarts": outcome.restarts,
        "gap_to_real": board.get("imagine/gap_to_real"),
        "guard": board.get("guard/last"),
        "agreement_by_horizon": board.get("quality/by_horizon"),
        "wall_s": {
            "total": round(progress.wall_s, 1),
            **{k: round(v, 1) for k, v in progress.stages_s.items()},
        },
        "busy_s": {name: round(value, 1) for name, value in outcome.role_busy_s.items()},
        "hardware": hardware(),
        "versions": versions(),
    }


def write_report(config: TrainConfig, outcome: Outcome, folder: Path) -> dict[str, Any]:
    """Write ``summary.json`` and, unless the run was interrupted, ``media/curves.png`` and, with models, the quality report
    with its film.
    """
    with disk_errors(folder):
        return _write_report(config, outcome, folder)


def _write_report(config: TrainConfig, outcome: Outcome, folder: Path) -> dict[str, Any]:
    (folder / "media").mkdir(exist_ok=True)
    if not outcome.interrupted:
        curves(folder / "metrics.jsonl", folder / "media" / "curves.png")
    held_out = outcome.services.real.stats()["held_out_decisions"]
    if shares(config).imagines and not held_out:
        log.warning("no quality report: B_real holds no held-out episode")
    elif shares(config).imagines and not outcome.interrupted:
        from .quality import report_quality

        models = {name: outcome.models[name] for name in (OBS_MODEL, REWARD_MODEL)}
        report_quality(
            outcome.context, outcome.services.real, models, folder / "media",
            horizon=quality_horizon(config, outcome.context),
        )  # fmt: skip
    result = {**summary(config, outcome), "inference": inference_counts(folder / "metrics.jsonl")}
    (folder / "summary.json").write_text(json.dumps(result, indent=1))
    return result


def inference_counts(metrics: Path) -> dict[str, dict[str, int]]:
    """Batches by size and requests by wait, over the whole run."""
    counts: dict[str, dict[str, int]] = {"batches": {}, "waits": {}}
    for row in read_rows(metrics):
        for name, found in counts.items():
            prefix = f"inference/{name}/"
            for key in [key for key in row if key.startswith(prefix)]:
                bucket = key.removeprefix(prefix)
                found[bucket] = found.get(bucket, 0) + int(row[key])
    return counts


PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Success", "share of episodes", (
        ("env/success_once", "rollouts, sampled"), ("imagine/success", "imagined, within the horizon"),
        ("evaluation/greedy", "evaluation, greedy"), ("evaluation/sampled", "evaluation, sampled"),
    )),
    ("Horizon", "decisions", (("imagine/horizon", "in force"), ("imagine/scheduled_horizon", "scheduled"))),
    ("Models", "loss", (("obs_model/loss", "M_obs"), ("obs_model/val_loss", "M_obs, held out"), ("reward_model/loss", "M_reward"))),
    ("Policy", "", (("policy/anchor_kl", "KL to the anchor"), ("policy/entropy", "entropy / 10"), ("policy/behav_approx_kl", "KL to behaviour"))),
    ("Lag", "versions", (("staleness/lag_mean", "mean"), ("staleness/lag_p95", "95 %"), ("staleness/lag_max", "largest"))),
    ("Idle", "share of wall time", (("trainer/idle_ratio", "policy learner"), ("rollouter/idle_ratio", "rollout"), ("idle_ratio/imagination", "imagination"))),
)  # fmt: skip
SCALE = {"policy/entropy": 0.1}


def curves(metrics: Path, target: Path) -> None:
    """Six panels over real env steps (or policy turns where there are none)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = read_rows(metrics)
    over_steps = any(row.get("real_steps", 0) for row in rows)
    axis = "real_steps" if over_steps else "policy/turns"
    figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), constrained_layout=True)
    for panel, (title, unit, lines) in zip(axes.flat, PANELS, strict=True):
        for key, label in lines:
            points = [
                (row.get(axis, 0), _number(row[key]) * SCALE.get(key, 1.0)) for row in rows if key in row
            ]
            if points:
                panel.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 40 else None)
        panel.set_title(title)
        panel.set_ylabel(unit)
        panel.set_xlabel("online real steps" if over_steps else "policy turns")
        panel.grid(alpha=0.3)
        if title in ("Success", "Idle"):
            panel.set_ylim(-0.02, 1.02)
        if panel.lines:
            panel.legend(fontsize=8)
    figure.savefig(target, dpi=110)
    plt.close(figure)


def _number(value: Any) -> float:
    return float(value["rate"]) if isinstance(value, dict) else float(value)


def final_table(result: dict[str, Any]) -> str:
    """The lines that end a run."""
    steps, updates, lag = result["real_steps"], result["updates"], result["lag"]
    rows = [("", "before", "after")]
    for name, key in (("greedy success", "success"), ("sampled success", "success_sampled")):
        rows.append((name, _rate(result[key]["before"]), _rate(result[key]["after"])))
    lines = [f"{name:<16} {before:>32} {after:>32}" for name, before, after in rows]
    wall = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result["wall_s"].items())
    busy = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result["busy_s"].items())
    lines += [
        f"real steps       demonstrations {steps['demonstrations']}, warm-up {steps['warm_up']}, online {steps['online']}",
        f"imagined steps   {result['imagined_steps']}",
        f"updates          policy {updates['policy']}, obs_model {updates['obs_model']}, reward_model {updates['reward_model']}",
        f"lag              mean {lag['mean']:.2f}, p95 {lag['p95']:.1f}, max {lag['max']:.0f} versions",
        f"wall time        {wall}",
        f"busy             {busy}",
    ]
    if result["guard"]:
        lines.append(f"guard            {result['guard']}")
    return "\n".join(lines) + "\n"


def _rate(value: dict[str, Any] | None) -> str:
    if value is None:
        return "-"
    low, high = 100 * value["low"], 100 * value["high"]
    return f"{100 * value['rate']:.1f} % [{low:.1f}, {high:.1f}] of {value['trials']}"
