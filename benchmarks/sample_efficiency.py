"""Online real steps until the policy succeeds: ``real`` against ``real+imagined`` from one pretrained start.

    python benchmarks/sample_efficiency.py [--quick] [--seeds 5] [--target 0.8] [--prepared FOLDER]

Both modes run on the serial host (deterministic), same policy, same objective, same update sizes; as many runs at once
as there are cores. Real steps are counted in full: those of the critic's warm-up too. Demonstrations, which both modes
start from, stand in a second column. Takes about 50 minutes on two cores; ``--quick`` less than one: the
same with tiny networks, which learn nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from success_plot import new_plot, save_plot

RESULTS = Path(__file__).parent / "results"
MODES = ("real", "real+imagined")
ENV = "env=tabletop_reach"


@dataclass(frozen=True)
class Size:
    """How much work."""

    episodes: int
    policy_updates: int
    obs_model_updates: int
    reward_model_updates: int
    turns: dict[str, int]
    every: int
    trials: int
    seeds: int
    networks: tuple[str, ...] = ()
    """Settings of their sizes, where they are not the default's."""


TINY = (
    "policy.width=32", "policy.layers=1", "policy.stem_channels=[8,16]", "world_model.obs_model.channels=[8,16]",
    "world_model.reward_model.channels=[8,16]",
)  # fmt: skip
FULL = Size(2500, 600, 1300, 500, {"real": 110, "real+imagined": 110}, 10, 256, 5)
QUICK = Size(150, 20, 10, 10, {"real": 4, "real+imagined": 4}, 2, 32, 1, TINY)


def command(module: str, *arguments: str) -> None:
    """Run one of Reverie's commands; its own words go to stderr."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", f"platform.{module}", *arguments],
        check=True,
        stdout=sys.stderr,
        env=environment,
    )


def prepare(folder: Path, size: Size) -> None:
    """Demonstrations and pretrained models, made once."""
    if not (folder / "demos").is_dir():
        command("demos", ENV, f"out={folder / 'demos'}", f"episodes={size.episodes}")
    if (
        not (folder / "pretrained" / "quality.json").is_file()
        and not (folder / "pretrained" / "media").is_dir()
    ):
        command(
            "pretrain", "all", ENV, "algorithm.gamma=0.95", f"data={folder / 'demos'}", f"out={folder / 'pretrained'}",
            f"policy_budget.updates={size.policy_updates}", f"obs_model_budget.updates={size.obs_model_updates}",
            f"reward_model_budget.updates={size.reward_model_updates}", *size.networks,
        )  # fmt: skip


def quickstart(prepared: Path, run: Path, size: Size) -> list[str]:
    """What every run of the quick start's setting shares."""
    return [
        ENV, "preset=quickstart", "host=serial", f"run.dir={run}", f"data={prepared / 'demos'}",
        f"policy.path={prepared / 'pretrained' / 'policy'}", f"world_model.path={prepared / 'pretrained'}",
        f"evaluation.every={size.every}", f"evaluation.trials={size.trials}",
        f"evaluation.online_trials={size.trials}", "run.log_every_s=0.5", "run.checkpoint_every=0",
        # Turns end the runs, on a slow machine too.
        "run.stop.wall_s=null", *size.networks,
    ]  # fmt: skip


def train(prepared: Path, folder: Path, mode: str, seed: int, size: Size, target: float) -> Path:
    """One run; an existing one is not repeated."""
    run = folder / f"{mode.replace('+', '_')}_{seed}"
    if (run / "summary.json").is_file():
        return run
    command(
        "train", mode, *quickstart(prepared, run, size), f"run.seed={seed}", f"run.stop.updates={size.turns[mode]}",
        f"run.stop.success={min(0.99, target + 0.04)}",
    )  # fmt: skip
    return run


def curve(run: Path, decoding: str = "greedy") -> list[tuple[int, float]]:
    """(online real steps, success) of every evaluation, the one before the run first."""
    before = json.loads((run / "summary.json").read_text())
    key = "success" if decoding == "greedy" else "success_sampled"
    points = {0: before[key]["before"]["rate"]}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if f"evaluation/{decoding}" in row:
            points[row["evaluation/real_steps"]] = row[f"evaluation/{decoding}"]["rate"]
    return sorted(points.items())


def steps_to(points: list[tuple[int, float]], target: float) -> float | None:
    """Online real steps at which the curve first crosses ``target``, between two evaluations on a straight line."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if y0 < target <= y1:
            return x0 + (x1 - x0) * (target - y0) / (y1 - y0)
    return None


def plot(curves: dict[str, list[list[tuple[int, float]]]], target: float, path: Path) -> None:
    """Success against real steps, a line per seed."""
    figure, axis = new_plot()
    for mode, colour in zip(MODES, ("tab:gray", "tab:blue"), strict=True):
        for number, points in enumerate(curves[mode]):
            axis.plot(
                *zip(*points, strict=True),
                color=colour,
                marker=".",
                alpha=0.8,
                label=mode if number == 0 else None,
            )
    save_plot(
        figure, axis, x="online real steps", y="greedy success on held-out starts", level=target, label=None,
        path=path,
    )  # fmt: skip


def main() -> None:
    """Prepare, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--target", type=float, default=0.8)
    parser.add_argument("--prepared", type=Path, default=None, help="folder with demos/ and pretrained/")
    parser.add_argument(
        "--out", type=Path, default=None, help="folder of the runs; runs that are there are not repeated"
    )
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    seeds = list(range(options.seeds or size.seeds))
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    folder = options.out or Path("outputs") / "sample_efficiency" / stamp
    prepared = options.prepared or folder
    began = time.monotonic()
    prepare(prepared, size)
    jobs = [(mode, seed) for seed in seeds for mode in MODES]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(lambda job: train(prepared, folder, *job, size, options.target), jobs))
    result = report(dict(zip(jobs, runs, strict=True)), seeds, options.target, options.quick)
    result["wall_s"] = round(time.monotonic() - began)
    RESULTS.mkdir(exist_ok=True)
    name = "sample_efficiency_quick" if options.quick else "sample_efficiency"
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1))
    plot(result["curves"], options.target, RESULTS / f"{name}.png")
    print(json.dumps({key: value for key, value in result.items() if key != "curves"}))


def report(runs: dict[tuple[str, int], Path], seeds: list[int], target: float, quick: bool) -> dict[str, Any]:
    """The table, and what the last line holds."""
    rows: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    print(f"{'mode':<14} {'seed':>4} {'before':>7} {'online real steps to ' + str(target):>26} {'end':>6} "
          f"{'real steps':>10} {'imagined':>9} {'wall s':>7}")  # fmt: skip
    for mode in MODES:
        for seed in seeds:
            run = runs[mode, seed]
            summary, points = json.loads((run / "summary.json").read_text()), curve(run)
            reached = steps_to(points, target)
            online = summary["real_steps"]["online"] + summary["real_steps"]["warm_up"]
            row = {
                "seed": seed,
                "steps_to_target": reached,
                "steps_spent": online,
                "demonstration_steps": summary["real_steps"]["demonstrations"],
                "imagined_steps": summary["imagined_steps"],
                "before": points[0][1],
                "after": summary["success"]["after"]["rate"],
                "wall_s": summary["wall_s"]["total"],
                "curve": points,
            }
            rows[mode].append(row)
            shown = "not reached" if reached is None else f"{reached:.0f}"
            print(f"{mode:<14} {seed:>4} {row['before']:>7.3f} {shown:>26} {row['after']:>6.3f} {online:>10} "
                  f"{row['imagined_steps']:>9} {row['wall_s']:>7.0f}")  # fmt: skip
    reached = {mode: [row["steps_to_target"] for row in rows[mode]] for mode in MODES}
    offline = rows["real"][0]["demonstration_steps"]
    # A run that never got there spent at least all that it spent: a lower bound for real, never a credit for us.
    spent = {mode: [row["steps_to_target"] or row["steps_spent"] for row in rows[mode]] for mode in MODES}
    complete = all(value is not None for value in reached["real+imagined"])
    ratio = float(np.mean(spent["real"]) / np.mean(spent["real+imagined"])) if complete else None
    with_offline = (
        float((np.mean(spent["real"]) + offline) / (np.mean(spent["real+imagined"]) + offline))
        if complete
        else None
    )
    return {
        "ratio_online": ratio,
        "ratio_with_offline": with_offline,
        "ratio_is_lower_bound": any(value is None for value in reached["real"]),
        "seeds": len(seeds),
        "target": target,
        "quick": quick,
        "steps_to_target": reached,
        "demonstration_steps": offline,
        "rows": {
            mode: [{k: v for k, v in row.items() if k != "curve"} for row in rows[mode]] for mode in MODES
        },
        "curves": {mode: [row["curve"] for row in rows[mode]] for mode in MODES},
        "hardware": json.loads((runs["real", seeds[0]] / "summary.json").read_text())["hardware"],
    }


if __name__ == "__main__":
    main()
