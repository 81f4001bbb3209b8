"""Env steps per second of the tabletop on one core, with and without drawing. ``--quick``: fewer steps.

Run with ``OMP_NUM_THREADS=1``. Prints a table and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from platform.envs.decision import TabletopDecisionEnv
from platform.envs.tabletop import TabletopVectorEnv
from typing import Literal

import numpy as np

from configs.env import TabletopConfig, TaskName

RESULTS = Path(__file__).parent / "results"
TASKS: tuple[TaskName, ...] = ("reach", "push", "pick_place")
SCENES: tuple[tuple[Literal[32, 64], int], ...] = ((32, 64), (64, 64), (32, 1))
"""Pixels and worlds."""


def steps_per_second(step: Callable[[int], int], seconds: float) -> float:
    """Per second of processor time, median of five stretches: other programs on the machine count as little as can be."""
    rates = []
    for stretch in range(5):
        began, done, count = time.process_time(), 0, 0
        while (elapsed := time.process_time() - began) < seconds / 5:
            done += step(stretch * 1_000_000 + count)
            count += 1
        rates.append(done / elapsed)
    return float(np.median(rates))


def drawn_every_step(config: TabletopConfig, worlds: int, seconds: float) -> float:
    """The Gymnasium vector environment: a frame at every env step, autoreset included."""
    env = TabletopVectorEnv(worlds, config)
    env.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (64, worlds, 3)).astype(np.float32)

    def step(number: int) -> int:
        env.step(actions[number % 64])
        return worlds

    return steps_per_second(step, seconds)


def drawn_per_decision(config: TabletopConfig, worlds: int, seconds: float) -> float:
    """The decision environment: four env steps to a frame, resets of the ended rows included."""
    env = TabletopDecisionEnv(config, worlds, chunk=4, replan=4)
    slots = np.arange(worlds)
    env.reset(slots, slots)
    actions = np.random.default_rng(0).uniform(-1, 1, (64, worlds, 4, 3)).astype(np.float32)

    def step(number: int) -> int:
        result = env.step(slots, actions[number % 64])
        ended = slots[result.terminated | result.truncated]
        if len(ended):
            env.reset(ended, ended + number * worlds)
        return int(result.valid.sum())

    return steps_per_second(step, seconds)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds in all")
    seconds = 0.5 if parser.parse_args().quick else 5.0
    rows: list[dict[str, str | int | float]] = []
    slowest = float("inf")
    print(
        f"{'task':<12}{'px':>4}{'worlds':>8}{'drawn every step':>18}{'drawn per decision':>20}   (env steps per processor second)"
    )
    for task in TASKS:
        for size, worlds in SCENES:
            config = TabletopConfig(tasks=[task], camera_size=size)
            every = drawn_every_step(config, worlds, seconds)
            decision = drawn_per_decision(config, worlds, seconds)
            slowest = min(slowest, every) if (size, worlds) == (32, 64) else slowest
            rows.append(
                {"task": task, "px": size, "worlds": worlds, "every_step": every, "per_decision": decision}
            )
            print(f"{task:<12}{size:>4}{worlds:>8}{every:>18,.0f}{decision:>20,.0f}")
    report = {
        "benchmark": "tabletop_speed",
        "env_steps_per_s": round(slowest),
        "target": 20_000,
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "tabletop_speed.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
