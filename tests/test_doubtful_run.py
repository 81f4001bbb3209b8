"""A run whose schedule believes no imagined decision: it says so and learns from real data alone."""

from __future__ import annotations

from pathlib import Path
from platform.metrics import read_rows
from platform.train import run

from tests.run_helper import FAST, summary, write_demos


def test_where_every_draw_is_doubted_real_data_carry_on(tmp_path: Path) -> None:
    """Two draws of an untrained model never agree to a billionth: every segment is cut before its first decision."""
    fast = [
        text for text in FAST if "imagination.schedule" not in text and "imagination/schedule" not in text
    ]
    data = write_demos(tmp_path / "demos", 30)
    schedule = [
        "imagination/schedule=uncertain",
        "imagination.schedule.end=2",
        "imagination.schedule.max_disagreement=1e-9",
    ]
    argv = [
        *fast,
        *schedule,
        f"data={data}",
        "host=serial",
        f"run.dir={tmp_path / 'run'}",
        "run.log_every_s=0.001",
    ]
    assert run(["real+imagined", *argv, "run.stop.updates=2"]) == 0
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert {row["imagine/uncertain"] for row in rows if "imagine/uncertain" in row} == {1.0}
    assert {row["imagine/length"] for row in rows if "imagine/length" in row} == {0.0}
    assert rows[-1]["imagination/open"] is False
    assert "no world its first decision" in rows[-1]["guard/last"]
    assert {row["policy/real_share"] for row in rows if "policy/real_share" in row} == {1.0}
    result = summary(tmp_path / "run")
    assert (result["imagined_steps"], result["updates"]["policy"] > 0) == (0, True)
