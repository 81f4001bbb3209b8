"""How old may data be? GIPO, PPO and decoupled PPO on data made by the weights of 0, 50, 200 and 1000 updates ago.

    python benchmarks/lag.py [--quick] [--seeds 3] [--prepared FOLDER] [--out FOLDER]

The delay is controlled: a queue keeps every policy of a run, and episodes on the tabletop (``reach``) are always played
by the one from ``lag`` updates ago (the first one while there are fewer). All else is equal: one cloned policy to start
from, the same starts for all, one pass over fresh episodes, no anchor to the start. Says what is left of success at
``lag`` against no lag. One process per core: 84 runs of about five minutes each, three and a half hours on two cores (three arms: half of it). ``--quick`` is
the same on three arms with lags (0, 2, 8, 40), updates and trials cut to about a minute: it shows that the measurement runs,
not what it finds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from platform.metrics import SuccessRate
from typing import Any

import numpy as np
from stale_run import ARMS, ENV, SMALL, Job, Size, run
from success_plot import new_plot, save_plot

RESULTS = Path(__file__).parent / "results"
DEFAULT_GIPO = "gipo 0.5"
FULL = Size(2500, 1300, (0, 50, 200, 1000), 1400, 128, 4, 8, 512, 3)
QUICK = Size(600, 150, (0, 2, 8, 40), 60, 32, 2, 2, 64, 1)
QUICK_ARMS = (DEFAULT_GIPO, "ppo", "decoupled")


def prepare(folder: Path, size: Size) -> Path:
    """Demonstrations and a cloned policy, made once."""
    demos, models = folder / "demos", folder / "pretrained"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    steps = {
        demos: ["demos", f"out={demos}", f"episodes={size.episodes}"],
        models / "policy": [
            "pretrain", "policy", "algorithm.gamma=0.95", f"data={demos}", f"out={models}",
            f"policy_budget.updates={size.policy_updates}", *SMALL,
        ],
    }  # fmt: skip
    for made, (module, *arguments) in steps.items():
        if not made.is_dir():
            line = [sys.executable, "-m", f"platform.{module}", *arguments[:1], ENV, *arguments[1:]]
            subprocess.run(line, check=True, stdout=sys.stderr, env=environment)
    return models / "policy"


def run_or_read(job: Job, folder: Path) -> dict[str, Any]:
    """A run that is there is not repeated."""
    file = folder / job.name
    if not file.is_file():
        file.write_text(json.dumps(run(job)))
    answer: dict[str, Any] = json.loads(file.read_text())
    return answer


def joined(rows: list[dict[str, Any]], decoding: str) -> SuccessRate:
    """All trials of the seeds together."""
    trials = sum(row[decoding]["trials"] for row in rows)
    return SuccessRate.of(round(sum(row[decoding]["rate"] * row[decoding]["trials"] for row in rows)), trials)


def table(rows: list[dict[str, Any]], lags: Sequence[int]) -> dict[str, dict[int, dict[str, Any]]]:
    """Print success by arm and lag; the same as numbers."""
    cells: dict[str, dict[int, dict[str, Any]]] = {}
    print(
        f"{'':<14}" + "".join(f"{f'lag {lag}':>26}" for lag in lags) + "   (greedy, 95 % interval, sampled)"
    )
    for arm in dict.fromkeys(row["arm"] for row in rows):
        line = f"{arm:<14}"
        cells[arm] = {}
        for lag in lags:
            of = [row for row in rows if (row["arm"], row["lag"]) == (arm, lag)]
            if not of:
                line += f"{'not run':>26}"
                continue
            greedy, sampled = joined(of, "greedy"), joined(of, "sampled")
            line += f"{f'{greedy}  {100 * sampled.rate:.0f}':>26}"
            cells[arm][lag] = {
                "greedy": greedy.to_json(), "sampled": sampled.to_json(),
                "by_seed": [row["greedy"]["rate"] for row in of],
                "lowest_on_the_way": min(rate for row in of for _, rate in row["curve"][1:]),
            }  # fmt: skip
        print(line)
    return cells


def share(
    cells: dict[str, dict[int, dict[str, Any]]], arm: str, lag: int, decoding: str = "greedy"
) -> float | None:
    """Success at ``lag`` over success without lag."""
    row = cells.get(arm, {})
    if lag not in row or 0 not in row or row[0][decoding]["rate"] == 0:
        return None
    return round(row[lag][decoding]["rate"] / row[0][decoding]["rate"], 3)


def plot(cells: dict[str, dict[int, dict[str, Any]]], lags: Sequence[int], start: float, path: Path) -> None:
    """Final success against lag, a line per arm."""
    figure, axis = new_plot()
    for number, (arm, row) in enumerate(cells.items()):
        at = [lags.index(lag) + 0.05 * (number - len(cells) / 2) for lag in row]
        rates = [cell["greedy"]["rate"] for cell in row.values()]
        ends = [
            [abs(cell["greedy"][end] - cell["greedy"]["rate"]) for cell in row.values()]
            for end in ("low", "high")
        ]
        axis.errorbar(at, rates, yerr=ends, marker="o", capsize=3, label=arm)
    axis.set_xticks(range(len(lags)), [str(lag) for lag in lags])
    save_plot(
        figure, axis, x="age of the data in updates", y="final greedy success on held-out starts",
        level=start, label="before training", path=path,
    )  # fmt: skip


def main() -> None:
    """Prepare, run every arm at every lag, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--arms", default=None, help="some of: " + ", ".join(ARMS))
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at once")
    parser.add_argument("--prepared", type=Path, default=None, help="folder with demos/ and pretrained/")
    parser.add_argument(
        "--out", type=Path, default=None, help="folder of the runs; what is there is not repeated"
    )
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    arms = options.arms.split(",") if options.arms else QUICK_ARMS if options.quick else tuple(ARMS)
    began, stamp = time.monotonic(), time.strftime("%Y-%m-%d_%H-%M-%S")
    folder = options.out or Path("outputs") / "lag" / stamp
    folder.mkdir(parents=True, exist_ok=True)
    policy = prepare(options.prepared or folder, size)
    jobs = [
        Job(arm, lag, seed, size, policy, options.learning_rate)
        for seed in range(options.seeds or size.seeds)
        for lag in size.lags
        for arm in arms
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(partial(run_or_read, folder=folder), jobs))
    cells = table(rows, size.lags)
    far, middle = size.lags[3], size.lags[2]
    result = {
        "gipo_1000_over_0": share(cells, DEFAULT_GIPO, far),
        "ppo_200_over_0": share(cells, "ppo", middle),
        "lags": size.lags,
        "shares": {arm: {lag: share(cells, arm, lag) for lag in size.lags} for arm in cells},
        "shares_sampled": {
            arm: {lag: share(cells, arm, lag, "sampled") for lag in size.lags} for arm in cells
        },
        "before": float(np.mean([row["curve"][0][1] for row in rows])),
        "updates": size.updates,
        "seeds": options.seeds or size.seeds,
        "learning_rate": options.learning_rate,
        "quick": options.quick,
        "wall_s": round(time.monotonic() - began),
    }
    RESULTS.mkdir(exist_ok=True)
    name = "lag_quick" if options.quick else "lag"
    (RESULTS / f"{name}.json").write_text(json.dumps({**result, "cells": cells, "rows": rows}, indent=1))
    plot(cells, size.lags, result["before"], RESULTS / f"{name}.png")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
