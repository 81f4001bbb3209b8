"""Replay buffers of runs on Ray: on a Reverb server too, and when what holds them is killed."""

from __future__ import annotations

import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path
from platform.metrics import read_rows
from typing import Any

import pytest

from tests.test_ray_run import Run

LONG = ("run.stop.updates=100000", "run.checkpoint_every=1")


def ids(state: dict[str, Any]) -> set[int]:
    """Of the records of a saved buffer."""
    return {item["id"] for item in (state.get("ledger") or state["shelf"])["items"]}


def check_goes_on(folder: Path) -> None:
    """Resumed, in one process, the run has what the checkpoint counted, and counts on from there."""
    from platform.checkpoint import read_checkpoint

    step, before = read_checkpoint(folder / "checkpoints")
    rows = len(read_rows(folder / "metrics.jsonl"))
    again = Run(folder, "real", f"run.resume={folder}", f"run.stop.updates={step + 1}", "host=serial")
    code, _, err = again.end()
    assert code == 0, err
    resumed, after = read_checkpoint(folder / "checkpoints")
    assert resumed == step + 1
    assert ids(before["b_real"]) <= ids(after["b_real"])
    old, new = before["b_real"]["lifecycle"], after["b_real"]["lifecycle"]
    assert new["next_id"] == len(new["samples"]) + sum(new["ended"].values()) >= old["next_id"]
    assert all(new["ended"][key] >= count for key, count in old["ended"].items())
    first = read_rows(folder / "metrics.jsonl")[rows]
    assert first["buffer/real/lost_items"] == before["b_real"].get("lost", 0)


@pytest.mark.skipif(find_spec("reverb") is None, reason="dm-reverb is not installed")
def test_a_run_outlives_its_reverb_server_and_resumes(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "real", *LONG, "buffers.backend=reverb")
    run.wait_for_checkpoints()
    servers = {
        folder: pid
        for pid, title in run.processes().items()
        for folder in re.findall(r"replay/(\w+)/\d+ ", title)
    }
    os.kill(servers["real"], signal.SIGKILL)
    run.wait(lambda: "another one was started" in (run.folder / "log.txt").read_text(), "new server")
    run.wait_for_turns(run.turns() + 2)
    os.killpg(run.process.pid, signal.SIGINT)
    code, _, err = run.end()
    assert code == 130, err
    assert "buffer real: the Reverb server was killed by signal 9; another one was started" in err
    told = [int(count) for count in re.findall(r"buffer real: lost (\d+) records", err)]
    row = read_rows(tmp_path / "run" / "metrics.jsonl")[-1]
    assert row["buffer/real/lost_items"] == sum(told)
    assert row["buffer/real/server_deaths"] == 1
    check_goes_on(tmp_path / "run")


def test_a_run_whose_buffer_is_killed_says_what_is_lost_and_resumes(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "real", *LONG)
    run.wait_for_checkpoints()
    os.kill(run.process_of("b_real"), signal.SIGKILL)
    code, _, err = run.end()
    assert code == 3, err
    last = err.strip().splitlines()[-1]
    assert "the process of b_real died" in last
    assert re.search(
        rf"run\.resume={tmp_path / 'run'} goes on from policy turn \d+(; lost since then: |$)", last
    )
    check_goes_on(tmp_path / "run")
