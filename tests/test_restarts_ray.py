"""A run on Ray outlives the death of everything that trains nothing, and its counters prove it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from platform.metrics import read_rows
from typing import Any

import pytest

from tests.counted_env import FILE, counted
from tests.test_ray_run import Run

VICTIMS = ("rollout_0", "inference_0", "imagination", "evaluator")
SLOTS, REPLAN, BOUND = 4, 2, 6


def test_a_run_outlives_one_death_of_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from platform.checkpoint import read_checkpoint

    monkeypatch.setenv(FILE, str(tmp_path / "steps"))
    run = Run(
        tmp_path / "run", "real+imagined", "env=gymnasium", "env.id=tests.counted_env:Counted-v0",
        "env.camera_size=32", "env.max_episode_steps=12", "policy.chunk=2", "policy.replan=2",
        "run.stop.updates=100000", f"rollout.envs={SLOTS}", "evaluation.every=2", "evaluation.trials=2",
        "evaluation.online_trials=2", "evaluation.envs=2", "imagination.worlds=4", "algorithm.batch=16",
        "algorithm.micro_batch=16", f"staleness.bound={BOUND}", "run.stall_s=600",
    )  # fmt: skip
    run.wait_for_turns(1)
    for victim in VICTIMS:
        kill(run, victim)
    for victim in VICTIMS:
        wait_until_back(run, victim)
    run.wait_for_turns(run.turns() + 4)
    os.killpg(run.process.pid, signal.SIGINT)
    code, _, err = run.end()
    assert code == 130, err

    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["host/restarts"] == len(VICTIMS)
    assert all(rows[-1][f"host/restarts/{victim}"] == 1 for victim in VICTIMS)
    _, states = read_checkpoint(tmp_path / "run" / "checkpoints")
    check_steps(states)
    check_samples(states["b_real"])
    lags = [row["staleness/lag_max"] for row in rows if "staleness/lag_max" in row]
    assert max(lags) <= BOUND
    counts = [row["imagined_steps"] for row in rows if "imagined_steps" in row]
    assert counts == sorted(counts)
    assert counts[-1] > 0
    steps = [row["real_steps"] for row in rows]
    assert steps == sorted(steps)


def check_steps(states: dict[str, Any]) -> None:
    """What the environments counted is in the count, and little else: what the dead worker had reserved."""
    taken = states["rollout_0"]["steps"]["taken"]
    assert taken == states["store"]["board"]["real_steps/rollout_0"]
    in_flight = 2 * SLOTS * REPLAN
    assert counted() - in_flight <= taken <= counted() + in_flight


def check_samples(buffer: dict[str, Any]) -> None:
    """Every sample that was ever admitted is somewhere, the dead worker's too: they wait or run again, or have ended."""
    table = buffer["lifecycle"]
    assert len(table["samples"]) + sum(table["ended"].values()) == table["next_id"]
    assert {s["owner"] for s in table["samples"] if s["state"] == "running"} <= {"rollout_0"}
    assert sum(s["state"] == "running" for s in table["samples"]) <= SLOTS


def kill(run: Run, role: str) -> None:
    os.kill(run.process_of(role), signal.SIGKILL)


def wait_until_back(run: Run, role: str) -> None:
    run.wait(lambda: f"{role} is process" in again(run), f"{role} again")


def again(run: Run) -> str:
    """Lines of the log that tell of a restart."""
    lines = (run.folder / "log.txt").read_text().splitlines()
    return "\n".join(line for line in lines if " again (" in line and "is process" in line)
