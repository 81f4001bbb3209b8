"""The inference service against the bare batched forward and against one call per request, in one run.

    python benchmarks/inference.py [--quick]

Saturated collectors ask again as soon as they are answered. They do so from threads of the service's process, and from
other processes through Ray, as in a run. Stretches of the service alternate with stretches of the bare forward (the same
policy, the same batch, nothing else), so that other programs on the machine slow both; shares are medians of such pairs.
Through Ray new weights are published meanwhile: how many decisions does a collector still make under the old ones? Batch
sizes and waits are counted with saturated collectors and with such as step an environment between two questions. Takes about
three minutes on two cores, ``--quick`` less than one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from platform.command import ENVIRONMENT
from platform.context import make_context
from platform.report import hardware
from typing import Any

import numpy as np
import torch
from inference_load import ROWS, SEED, Bare, Pair, Size, in_threads, light
from inference_ray import ThroughRay, through_ray
from inference_report import plot, table

from configs.loader import load_config
from configs.schema import TrainConfig

RESULTS = Path(__file__).parent / "results"
FULL, QUICK = Size(5.0, 7, 20, 10.0), Size(1.2, 3, 4, 2.0)


def counts(row: dict[str, float], name: str) -> dict[str, int]:
    """One histogram of a row of metrics."""
    prefix = f"inference/{name}/"
    return {key.removeprefix(prefix): int(value) for key, value in row.items() if key.startswith(prefix)}


def shares(pairs: list[Pair]) -> tuple[float, float]:
    """Of the bare forward: by wall time and by processor time; medians of the pairs."""
    return (
        float(np.median([p.served_per_s / p.bare_per_s for p in pairs])),
        float(np.median([p.served_per_processor_s / p.bare_per_processor_s for p in pairs])),
    )


def measure(size: Size) -> dict[str, Any]:
    """Everything, in one run."""
    torch.set_num_threads(1)
    config = load_config(TrainConfig, ["real"])
    context = make_context(config, seed=SEED, device="cpu")
    bare = Bare(context)
    sizes = (1, 8, ROWS, 64, 128, config.inference.max_batch)
    bare_rates = {batch: bare.rates(batch, 0.4 * size.stretch_s)[0] for batch in sizes}
    threads, threads_row = in_threads(context, bare, config.inference, size)
    light_row = light(context, config.inference, size)
    ray = through_ray(context, bare, config.inference, size)
    by_wall, by_processor = shares(ray.pairs)
    threads_by_wall, threads_by_processor = shares(threads)
    served = float(np.median([p.served_per_s for p in ray.pairs]))
    return {
        "benchmark": "inference",
        "share_of_bare_batch": round(by_wall, 3),
        "share_by_processor_time": round(by_processor, 3),
        "share_in_threads": round(threads_by_wall, 3),
        "share_in_threads_by_processor_time": round(threads_by_processor, 3),
        "target": 0.8,
        "max_batch": config.inference.max_batch,
        "rows_per_request": ROWS,
        "decisions_per_s": round(served),
        "over_one_call_per_observation": round(served / bare_rates[1], 2),
        "bare_per_s": {str(batch): round(rate) for batch, rate in bare_rates.items()},
        "pairs": {"ray": [asdict(p) for p in ray.pairs], "threads": [asdict(p) for p in threads]},
        "publish": {
            "versions": size.publishes,
            "old_decisions_max": max(ray.old_decisions),
            "old_decisions_mean": round(float(np.mean(ray.old_decisions)), 3),
            "last_collector_median_s": round(float(np.median(ray.last_collector_s)), 3),
            "one_decision_median_s": round(ray.one_decision_s, 3),
        },
        "batches": {name: counts(row, "batches") for name, row in histograms(threads_row, light_row, ray)},
        "waits": {name: counts(row, "waits") for name, row in histograms(threads_row, light_row, ray)},
        "load_average": os.getloadavg()[0],
        "hardware": hardware(),
    }


def histograms(
    threads: dict[str, float], light_row: dict[str, float], ray: ThroughRay
) -> tuple[tuple[str, dict[str, float]], ...]:
    """Rows of metrics by the load that they counted."""
    return (
        ("saturated, Ray", ray.row),
        ("saturated, threads", threads),
        ("collectors that simulate", light_row),
    )


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same measurement in less than a minute")
    quick = parser.parse_args().quick
    report = {**measure(QUICK if quick else FULL), "quick": quick}
    print(table(report))
    RESULTS.mkdir(exist_ok=True)
    name = "inference_quick" if quick else "inference"
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(report, RESULTS / f"{name}.png")
    print(json.dumps({key: value for key, value in report.items() if key != "pairs"}))


if __name__ == "__main__":
    # The allocator's settings count from a process's start.
    missing = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **missing})
    main()
