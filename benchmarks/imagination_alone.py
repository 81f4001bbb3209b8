"""What learning from imagination alone does to success in the real environment.

    python benchmarks/imagination_alone.py [--quick] [--prepared FOLDER] [--out FOLDER]

Three runs from one pretrained start, with the same objective and update sizes on the serial host: ``real+imagined``;
``imagined``, where real episodes only feed the models; and ``imagined`` with frozen models, where there is no real
environment at all but for the evaluation. Takes about 25 minutes on two cores with preparation, 12 without.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from sample_efficiency import FULL, QUICK, RESULTS, Size, command, curve, prepare, quickstart

RUNS: dict[str, tuple[str, ...]] = {
    "real+imagined": ("real+imagined",),
    "imagined": ("imagined",),
    "imagined, frozen models": ("imagined", "world_model.frozen=true"),
}
TURNS = 60


def train(prepared: Path, folder: Path, name: str, size: Size, turns: int) -> Path:
    """One run; an existing one is not repeated."""
    mode, *overrides = RUNS[name]
    run = folder / name.replace(", ", "_").replace(" ", "_").replace("+", "_")
    if not (run / "summary.json").is_file():
        command("train", mode, *quickstart(prepared, run, size), *overrides, f"run.stop.updates={turns}")
    return run


def row(run: Path) -> dict[str, Any]:
    """What one run did to real success."""
    summary = json.loads((run / "summary.json").read_text())
    steps = summary["real_steps"]
    return {
        "greedy": summary["success"],
        "sampled": summary["success_sampled"],
        "online_real_steps": steps["online"] + steps["warm_up"],
        "imagined_steps": summary["imagined_steps"],
        "wall_s": summary["wall_s"]["total"],
        "curve": curve(run),
    }


def main() -> None:
    """Prepare, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--prepared", type=Path, default=None, help="folder with demos/ and pretrained/")
    parser.add_argument(
        "--out", type=Path, default=None, help="folder of the runs; none that is there is repeated"
    )
    options = parser.parse_args()
    size = replace(QUICK if options.quick else FULL, seeds=1)
    turns = size.turns["real"] if options.quick else TURNS
    folder = options.out or Path("outputs") / "imagination_alone" / time.strftime("%Y-%m-%d_%H-%M-%S")
    prepared = options.prepared or folder
    prepare(prepared, size)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(lambda name: train(prepared, folder, name, size, turns), RUNS))
    rows = {name: row(run) for name, run in zip(RUNS, runs, strict=True)}
    print(
        f"{'mode':<24} {'greedy before':>14} {'after':>22} {'sampled after':>14} {'real steps':>11} {'imagined':>9}"
    )
    for name, each in rows.items():
        before, after = each["greedy"]["before"], each["greedy"]["after"]
        shown = f"{after['rate']:.3f} [{after['low']:.3f}, {after['high']:.3f}]"
        print(f"{name:<24} {before['rate']:>14.3f} {shown:>22} {each['sampled']['after']['rate']:>14.3f} "
              f"{each['online_real_steps']:>11} {each['imagined_steps']:>9}")  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    result = {"turns": turns, "quick": options.quick, "rows": rows}
    path = RESULTS / f"imagination_alone{'_quick' if options.quick else ''}.json"
    path.write_text(json.dumps(result, indent=1))
    short = {name: each["greedy"]["after"]["rate"] for name, each in rows.items()}
    print(json.dumps({"turns": turns, "quick": options.quick, "greedy_after": short}))


if __name__ == "__main__":
    main()
