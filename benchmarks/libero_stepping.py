"""Env steps per second of LIBERO: as its package steps it, and as Reverie does. ``--quick``: fewer chunks.

One camera at 128 px, chunks of 8 actions, the same actions from the same init state. Stock draws every env step with shadows
and reflections; Reverie draws after each chunk, without them and from coarser shapes, and leaves out what robosuite
computes twice. Both simulations
are compared bit for bit after every chunk. The two take turns, so that whatever else the machine does slows both.

Prints a table and one JSON object as its last line; saves numbers and a plot under ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from platform.envs.libero_package import choose_graphics, quiet_robosuite, require_package
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.libero import LiberoConfig

RESULTS = Path(__file__).parent / "results"
CHUNK, PIXELS = 8, 128
SUITE, TASK, TRIAL = "libero_object", 0, 0


@dataclass
class Timing:
    """Seconds of each chunk."""

    name: str
    draws: str
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, began: tuple[float, float]) -> None:
        """One chunk that began then."""
        self.wall.append(time.perf_counter() - began[0])
        self.processor.append(time.process_time() - began[1])

    @property
    def steps_per_s(self) -> float:
        """From the median chunk's processor time: other programs on the machine count as little as can be."""
        return CHUNK / float(np.median(self.processor))

    @property
    def steps_per_wall_s(self) -> float:
        """As a clock sees it."""
        return CHUNK / float(np.median(self.wall))


def now() -> tuple[float, float]:
    """Wall and processor time."""
    return time.perf_counter(), time.process_time()


def stock(problem: str, state: NDArray[np.float64]) -> Any:
    """LIBERO's own environment at rest after ``state``."""
    from libero.libero.envs import OffScreenRenderEnv

    env = OffScreenRenderEnv(
        bddl_file_name=problem, camera_heights=PIXELS, camera_widths=PIXELS, camera_names=["agentview"],
        horizon=100_000,
    )  # fmt: skip
    np.random.seed(TRIAL)
    env.reset()
    env.set_init_state(state)
    return env


def measure(chunks: int) -> tuple[list[Timing], bool]:
    """Timings of stock, Reverie and Reverie with effects; whether all simulations were the same throughout."""
    from platform.envs.libero_sim import REST, LiberoSim
    from platform.envs.libero_suites import init_states, suite_tasks

    task = suite_tasks(SUITE)[TASK]
    config = LiberoConfig(suite=SUITE, camera_size=PIXELS, cameras=["agentview"])
    theirs = stock(task.problem_file, init_states(task)[TRIAL])
    ours, shadowed = (
        LiberoSim(task, config),
        LiberoSim(task, LiberoConfig(**{**vars(config), "effects": True})),
    )
    for simulator in (ours, shadowed):
        simulator.reset(TRIAL, TRIAL)
        simulator.draw()
    for _ in range(config.settle_steps):
        theirs.step(REST)
    rows = [
        Timing("LIBERO's own", "every env step, with effects"),
        Timing("Reverie", "every chunk, without effects"),
        Timing("Reverie, env.effects=true", "every chunk, with effects"),
    ]
    draws = np.random.default_rng(0)
    same = True
    for _ in range(chunks):
        actions = draws.uniform(-0.5, 0.5, (CHUNK, 7)).astype(np.float32).astype(np.float64)
        began = now()
        for action in actions:
            theirs.step(action)
        rows[0].add(began)
        for row, simulator in zip(rows[1:], (ours, shadowed), strict=True):
            began = now()
            for action in actions:
                simulator.step(action)
            simulator.draw()
            row.add(began)
            same = same and np.array_equal(simulator.get_state(), theirs.get_sim_state())
    for env in (theirs, ours, shadowed):
        env.close()
    return rows, same


def plot(rows: list[Timing], path: Path) -> None:
    """Bars of env steps per second."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 2.4), layout="constrained")
    bars = axes.barh([row.name for row in rows], [row.steps_per_s for row in rows])
    axes.bar_label(bars, fmt="%.0f")
    axes.invert_yaxis()
    axes.set_xlabel("env steps per processor second")
    figure.savefig(path)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute on a quiet machine")
    chunks = 5 if parser.parse_args().quick else 30
    require_package()
    graphics = choose_graphics("osmesa")
    quiet_robosuite()
    rows, same = measure(chunks)
    print(f"{'':<28}{'draws':<32}{'env steps/s':>12}{'of the clock':>14}{'times':>8}")
    for row in rows:
        times = row.steps_per_s / rows[0].steps_per_s
        print(
            f"{row.name:<28}{row.draws:<32}{row.steps_per_s:>12.1f}{row.steps_per_wall_s:>14.1f}{times:>8.1f}"
        )
    print(f"physics bit for bit the same after each of {chunks} chunks: {'yes' if same else 'NO'}")
    report = {
        "benchmark": "libero_stepping",
        "speedup": round(rows[1].steps_per_s / rows[0].steps_per_s, 2),
        "speedup_with_effects": round(rows[2].steps_per_s / rows[0].steps_per_s, 2),
        "speedup_of_the_clock": round(rows[1].steps_per_wall_s / rows[0].steps_per_wall_s, 2),
        "same_physics": same,
        "chunk": CHUNK,
        "pixels": PIXELS,
        "graphics": graphics,
        "rows": [vars(row) for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    plot(rows, RESULTS / "libero_stepping.png")
    (RESULTS / "libero_stepping.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: value for key, value in report.items() if key != "rows"}))


if __name__ == "__main__":
    main()
