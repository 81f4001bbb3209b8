"""Wall time for the same number of policy updates: every preset of ``configs/sync`` against the synchronous loop.

    python benchmarks/async_vs_sync.py [--quick] [--seeds 1] [--turns 12] [--out FOLDER]

The environment (``waiting_env.py``) waits 10 ms a step in the median, as a simulator in another process does, and computes
nothing; the learner computes. A first run measures both halves of the synchronous loop, and the number of environment slots
is chosen to make them equal, so that running them beside each other can at most halve the time. With tails there are more
slots, as many as the mean step is longer: when no slot waits for another, collectors are then just as fast.

- ``equal``: every step takes 10 ms.
- ``tails``: log-normal with sigma 1.25, so one step in a hundred takes 180 ms or more, and a loop that waits for all slots
  waits for the slowest.

*The synchronous loop* is ``host=serial sync=on_policy``: collect a batch, train on it, collect the next one, in one process.
All slots step beside each other in it, too, and it pays for no actors and no messages, so it is the fastest
synchronous loop that we can offer. Beside actors the learner has a core to itself where there are two. Every run has one torch thread per role, the same seeds, policy, objective and
number of turns. Times are taken from the metrics between an early turn and the last one: start-up counts nowhere.

``share_of_limit`` is the share of time in which the busier half (the learner, or the slots) had work: 1 is the
bottleneck's own rate. Takes about 20 minutes a seed on two cores that do nothing else, two to three with ``--quick`` (one preset,
smaller turns).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
PRESETS = Path(__file__).parent.parent / "configs" / "sync"
LOOP = "synchronous loop"
MEDIAN_S = 0.01
SIGMA = {"equal": 0.0, "tails": 1.25}
TARGET = {"equal": 1.9, "tails": 2.4}
STEPS = 16
"""Env steps per decision."""
PROBE_SLOTS = 8
SHARED = ("host=ray", f"host.learner_cores={1 if (os.cpu_count() or 1) > 1 else 0}")
"""Collectors mostly wait, and one core does for all of them: the learner, which is the bottleneck, has one of its own."""
COMMON = (
    "real", "env=gymnasium", "env.id=waiting_env:Waiting-v0", "env.camera_size=32", "env.max_episode_steps=96",
    "policy.width=192", "policy.layers=3", "policy.stem_channels=[32,64]", "policy.keypoints=8", "policy.bins=4",
    f"policy.chunk={STEPS}", f"policy.replan={STEPS}", "algorithm.epochs=8", "algorithm.critic_warm_up=2",
    "algorithm.kl_anchor=0.0", "algorithm.learning_rate=3e-4", "algorithm.learning_rate_warm_up=5", "algorithm.gamma=0.97",
    "algorithm.gae_lambda=0.3", "buffers.real.reuse_limit=1", "evaluation.every=0", "evaluation.quality_every=0",
    "inference.max_wait_ms=1.0", "run.precision=no", "run.checkpoint_every=0", "run.log_every_s=0.5",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How much work."""

    turns: int
    batch: int
    """Decisions per turn."""
    trials: int
    seeds: int
    presets: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """What one run says."""

    turn_s: float
    """Wall seconds per turn."""
    learner_s: float
    """Of them the learner trained."""
    slots_busy: float
    success: dict[str, Any]
    rollout_return: float
    """Of the episodes in the run's last quarter."""


def presets() -> tuple[str, ...]:
    """Every preset that the configuration knows."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.yaml")))


def train(folder: Path, mode: str, case: str, slots: int, seed: int, size: Size) -> Run:
    """One run of ``platform.train``; an existing one is not repeated."""
    run = folder / f"{mode.replace(' ', '_')}_{case}_{slots}_{seed}"
    placed = ("host=serial", "sync=on_policy") if mode == LOOP else (*SHARED, f"sync={mode}")
    if not (run / "summary.json").is_file():
        command = [
            sys.executable, "-m", "platform.train", *COMMON, *placed, f"run.dir={run}", f"run.seed={seed}",
            f"algorithm.batch={size.batch}", f"algorithm.micro_batch={size.batch}",
            f"rollout.envs={slots}", f"run.stop.updates={size.turns}", f"evaluation.trials={size.trials}",
            f"evaluation.envs={min(64, size.trials)}",
            f"env.kwargs={{median_s: {MEDIAN_S}, sigma: {SIGMA[case]}}}",
        ]  # fmt: skip
        path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    return read(run)


def read(run: Path) -> Run:
    """Rates between the first turns and the last one."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    turns = np.array([row["policy/turns"] for row in rows])
    wall = np.array([row["wall_s"] for row in rows])
    first = int(np.flatnonzero(turns >= max(3, turns[-1] // 6))[0])
    last = int(np.flatnonzero(turns == turns[-1])[0])
    spent = np.diff(wall)[first:last]
    learner = [
        each["time/learner/turn_s"] for each in rows[first + 1 : last + 1] if "time/learner/turn_s" in each
    ]
    slots = np.array([each.get("rollout/slots_busy", np.nan) for each in rows])[first + 1 : last + 1]
    known = np.isfinite(slots)
    done = float(turns[last] - turns[first])
    returns = [row["env/return"] for row in rows[-len(rows) // 4 :] if "env/return" in row]
    return Run(
        float(spent.sum()) / done,
        float(np.mean(learner)),
        float(np.average(slots[known], weights=spent[known])),
        json.loads((run / "summary.json").read_text())["success_sampled"]["after"],
        float(np.mean(returns)),
    )


def slots_for(probe: Run) -> dict[str, int]:
    """Slots by case, from a run of the loop with ``PROBE_SLOTS`` and no tails."""
    collecting_s = probe.turn_s - probe.learner_s
    equal = PROBE_SLOTS * collecting_s / probe.learner_s
    return {case: max(4, round(equal * math.exp(sigma**2 / 2))) for case, sigma in SIGMA.items()}


def measure(folder: Path, size: Size) -> dict[str, dict[str, list[Run]]]:
    """Every mode in every case, seed by seed, so that a machine that gets slower does so for all."""
    probe = train(folder, LOOP, "equal", PROBE_SLOTS, 1000, replace(size, turns=6, trials=4))
    slots = slots_for(probe)
    print(f"a turn of the learner takes {probe.learner_s:.2f} s: {slots['equal']} slots without tails, "
          f"{slots['tails']} with")  # fmt: skip
    modes = (LOOP, *size.presets)
    runs: dict[str, dict[str, list[Run]]] = {case: {mode: [] for mode in modes} for case in SIGMA}
    for seed in range(size.seeds):
        for case in SIGMA:
            for mode in modes:
                runs[case][mode].append(train(folder, mode, case, slots[case], seed, size))
    return runs


def row(case: str, mode: str, runs: list[Run], loop: list[Run]) -> dict[str, Any]:
    """One line of the table; ratios are of times measured under one seed, one after the other."""
    learner, slots = (
        float(np.median([getattr(run, name) for run in runs])) for name in ("learner_s", "slots_busy")
    )
    turn = float(np.median([run.turn_s for run in runs]))
    return {
        "case": case,
        "mode": mode,
        "turn_s": turn,
        "learner_busy": float(np.median([run.learner_s / run.turn_s for run in runs])),
        "learner_s": learner,
        "slots_busy": slots,
        "share_of_limit": float(np.median([max(run.learner_s / run.turn_s, run.slots_busy) for run in runs])),
        "speedup": float(np.median([a.turn_s / b.turn_s for a, b in zip(loop, runs, strict=True)])),
        "limit": float(np.median([a.turn_s / a.learner_s for a in loop])),
        "return": float(np.mean([run.rollout_return for run in runs])),
        "success": [run.success for run in runs],
    }


def report(runs: dict[str, dict[str, list[Run]]]) -> dict[str, Any]:
    """The table, and what the last line holds."""
    rows = [
        row(case, mode, of_mode, by_mode[LOOP])
        for case, by_mode in runs.items()
        for mode, of_mode in by_mode.items()
    ]
    print(f"{'case':<7}{'mode':<18}{'s/turn':>8}{'speed-up':>10}{'learner busy':>14}{'slots busy':>12}"
          f"{'return':>8}{'success after':>15}")  # fmt: skip
    for line in rows:
        success = np.mean([each["rate"] for each in line["success"]])
        print(f"{line['case']:<7}{line['mode']:<18}{line['turn_s']:>8.3f}{line['speedup']:>10.2f}"
              f"{line['learner_busy']:>14.2f}{line['slots_busy']:>12.2f}{line['return']:>8.2f}{success:>15.2f}")  # fmt: skip
    best = {
        case: max((line for line in rows if line["case"] == case and line["mode"].startswith("async")),
                  key=lambda line: float(line["speedup"]))
        for case in SIGMA
    }  # fmt: skip
    return {
        "speedup_equal": round(best["equal"]["speedup"], 3),
        "speedup_tails": round(best["tails"]["speedup"], 3),
        "share_of_limit": round(min(line["share_of_limit"] for line in best.values()), 3),
        "targets": {**TARGET, "share_of_limit": 0.95},
        "modes": {case: line["mode"] for case, line in best.items()},
        "limit_equal": round(best["equal"]["limit"], 3),
        "limit_tails": round(best["tails"]["limit"], 3),
        "rows": rows,
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Speed-up of each mode, one group per case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    modes = list(dict.fromkeys(line["mode"] for line in rows))
    figure, axis = plt.subplots(figsize=(8, 4), constrained_layout=True)
    width = 0.8 / len(modes)
    for number, mode in enumerate(modes):
        bars = [line["speedup"] for line in rows if line["mode"] == mode]
        places = np.arange(len(bars)) + (number - (len(modes) - 1) / 2) * width
        axis.bar_label(axis.bar(places, bars, width, label=mode), fmt="%.2f", fontsize=8)
    for place, case in enumerate(SIGMA):
        axis.hlines(TARGET[case], place - 0.45, place + 0.45, color="black", linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(SIGMA)), ["10 ms each", f"median 10 ms, sigma {SIGMA['tails']:g}"])
    axis.set_ylabel("turns per second, synchronous loop = 1\n(dotted: target)")
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, compare, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one preset, few turns")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--presets", default=None, help="some of: " + ", ".join(presets()))
    parser.add_argument("--turns", type=int, default=None)
    parser.add_argument(
        "--out", type=Path, default=None, help="folder of the runs; runs that are there are not repeated"
    )
    options = parser.parse_args()
    size = Size(6, 32, 4, 1, ("async_partial",)) if options.quick else Size(12, 128, 128, 1, presets())
    chosen = tuple(options.presets.split(",")) if options.presets else size.presets
    size = replace(size, turns=options.turns or size.turns, seeds=options.seeds or size.seeds, presets=chosen)
    folder = options.out or Path("outputs") / "async_vs_sync" / time.strftime("%Y-%m-%d_%H-%M-%S")
    began = time.monotonic()
    runs = measure(folder, size)
    result = report(runs)
    result |= {
        "quick": options.quick, "turns": size.turns, "seeds": size.seeds, "wall_s": round(time.monotonic() - began),
        "cores": os.cpu_count(),
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    name = "async_vs_sync_quick" if options.quick else "async_vs_sync"
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    plot(result["rows"], RESULTS / f"{name}.png")
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}))


if __name__ == "__main__":
    main()
