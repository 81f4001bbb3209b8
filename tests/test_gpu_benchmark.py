"""The benchmark for a GPU: without one it says so in a line, and a rehearsal runs all of it with tiny shapes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.filterwarnings("ignore:.*adapter.*")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu as module

    return module


def test_without_a_gpu_one_line_says_so(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: no CUDA device on this machine (")
    assert printed.err.count("\n") == 1


def test_a_rehearsal_runs_every_part_and_says_what_it_could_not(
    gpu: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--rehearse"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["rehearsal"]
    by_part = {name: [row for row in result["rows"] if row["part"] == name] for name in gpu.PARTS}
    ran = {name: [row for row in rows if row["milliseconds"]] for name, rows in by_part.items()}
    assert {name: len(rows) for name, rows in ran.items()} == {
        "vla_full": 4,
        "vla_slim": 4,
        "inference": 8,
        "obs_model": 4,
    }
    full, slim = (by_part[name][0]["gigabytes"] for name in ("vla_full", "vla_slim"))
    assert (full - slim) * 1e9 == pytest.approx(4 * 64 * (640 - 256))
    refused = [row["note"] for row in by_part["obs_model"] if row["note"]]
    assert any(note.startswith("not run: FP8 needs a GPU") for note in refused)
    assert any("apart 0.0e+00" in row["note"] for row in by_part["inference"])


def test_the_true_shape_has_seven_and_a_half_billion_weights(gpu: Any) -> None:
    """OpenVLA-7B: 7,541,237,184 weights, of which the towers' last blocks, norms and pooling are not built."""
    from gpu_vla import SEVEN_B

    from policies.openvla.network import Network

    with torch.device("meta"):
        count = sum(each.numel() for each in Network(SEVEN_B, slim=False).parameters())
    unused = 7_541_237_184 - count
    dinov2 = 12 * 1024**2 + 13 * 1024 + 2 * 1024 + 2 * 1024
    siglip = 4 * 1152**2 + 2 * 1152 * 4304 + 9 * 1152 + 4304 + 2 * 1152
    pooling = 4 * 1152**2 + 2 * 1152 * 4304 + 4 * 1152 + 4304 + 1152 + 1152 + 2 * 1152
    assert unused == dinov2 + siglip + pooling


def test_what_a_part_measured_before_its_time_was_over_is_kept(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = gpu.Row("inference", "a batch", 8, 1.5, 0.5)
    printed = json.dumps(row.__dict__).encode() + b'\n{"part": "inference", "wh'

    def late(*_: Any, **how: Any) -> None:
        raise subprocess.TimeoutExpired("gpu.py", how["timeout"], output=printed)

    monkeypatch.setattr(subprocess, "run", late)
    assert gpu.in_child("inference") == [
        row,
        gpu.Row("inference", "the rest", note="not run: 80 s were over"),
    ]
    assert sum(part.seconds for part in gpu.PARTS.values()) <= 8 * 60


def test_a_part_that_breaks_is_a_row_and_an_exit_code(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(name: str, machine: Any) -> Any:
        yield gpu.Row(name, "first", milliseconds=1.0)
        raise RuntimeError("CUDA error: misaligned address\nmore")

    monkeypatch.setitem(gpu.PARTS, "inference", gpu.PARTS["inference"].__class__(breaks, 1.0))
    assert gpu.main(["--rehearse", "--only", "inference"]) == 1
    assert "failed: RuntimeError: CUDA error: misaligned address\n" in capsys.readouterr().out
