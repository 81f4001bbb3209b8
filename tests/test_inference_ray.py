"""Inference replicas on Ray: a run outlives the death of one, and says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from platform.metrics import read_rows

from tests.test_ray_run import Run
from tests.test_restarts_ray import kill, wait_until_back


def test_a_replica_is_built_again_and_the_run_goes_on_without_one_that_dies_too_often(tmp_path: Path) -> None:
    run = Run(
        tmp_path / "run", "real", "run.stop.updates=100000", "rollout.workers=2", "inference.replicas=2",
        "run.stall_s=60", "host.restarts=1",
    )  # fmt: skip
    run.wait_for_turns(2)
    kill(run, "inference_0")
    wait_until_back(run, "inference_0")
    run.wait_for_turns(run.turns() + 2)
    kill(run, "inference_0")
    run.wait_for_turns(run.turns() + 8)
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
    # What was in flight is all that was lost: one request of the one worker that asked the dead replica, twice. It asks
    # that one again after a while, ever more rarely.
    asked_again = sum(value for key, value in rows[-1].items() if key.startswith("inference/asked_again/"))
    assert asked_again <= 8
    steps = [[row.get(f"real_steps/rollout_{worker}", 0) for row in rows] for worker in (0, 1)]
    assert all(worker == sorted(worker) for worker in steps)
    assert steps[0][-1] > next(row for row in rows if row["inference/replicas"] == 1).get(
        "real_steps/rollout_0", 0
    )
