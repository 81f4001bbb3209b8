"""Inference replicas on Ray: a run outlives the death of one, and says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from platform.metrics import read_rows

from tests.test_ray_run import Run


def test_a_run_goes_on_without_a_killed_replica(tmp_path: Path) -> None:
    run = Run(
        tmp_path / "run", "real", "run.stop.updates=100000", "rollout.workers=2", "inference.replicas=2",
        "run.stall_s=60", "host.restarts=0",
    )  # fmt: skip
    run.wait_for_turns(2)
    log = (tmp_path / "run" / "log.txt").read_text()
    os.kill(int(log.split("inference_0 is process ")[1].split()[0]), signal.SIGKILL)
    run.wait_for_turns(8 + last_turn(log))
    os.killpg(run.process.pid, signal.SIGINT)
    code, _, err = run.end()
    assert code == 130, err
    assert (
        "inference_0 died; still serving, and asked what it left unanswered: inference_1"
        in (tmp_path / "run" / "log.txt").read_text()
    )
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "inference/replicas" in row]
    assert rows[0]["inference/replicas"] == 2
    assert rows[-1]["inference/replicas"] == 1
    # What was in flight is all that was lost: one request of the one worker that asked the dead replica. It asks that one
    # again after a while, ever more rarely.
    asked_again = sum(value for key, value in rows[-1].items() if key.startswith("inference/asked_again/"))
    assert asked_again <= 8
    steps = [[row.get(f"real_steps/rollout_{worker}", 0) for row in rows] for worker in (0, 1)]
    assert all(worker == sorted(worker) for worker in steps)
    assert steps[0][-1] > next(row for row in rows if row["inference/replicas"] == 1).get(
        "real_steps/rollout_0", 0
    )


def last_turn(log: str) -> int:
    """Policy turns that the log has told of."""
    return int(log.rsplit("turn ", 1)[1].split("/")[0])
