"""Comparing runs: means over real steps, intervals, the verdict, and what is read from a run directory; by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from platform.comparison import (
    Comparison,
    Interval,
    RunResult,
    binned,
    common_steps,
    compare,
    mean_success,
    report_text,
    steps_to,
    surviving,
    verdict,
)
from platform.sweep import make_plan
from typing import Any

import pytest


def result(
    *, arm: str = "fixed", seed: int = 0, end: int = 100, last: float = 0.8, reached: bool = False
) -> RunResult:
    """Rises from 0.2 in one line."""
    series = {name: [(10, 2.0), (20, 4.0)] for name in ("horizon", "length", "psnr")} | {
        "agreement": [(10, 0.9)]
    }
    return RunResult(arm, seed, [(0, 0.2), (end, last)], series, reached, 1000, 60.0)


def test_mean_success_is_the_area_under_the_evaluations() -> None:
    """0.2 to 0.6 in 100 steps, then level: over 100 steps 0.4, over 200 steps 0.5, over 50 steps 0.3."""
    curve = [(0, 0.2), (100, 0.6)]
    assert [mean_success(curve, steps) for steps in (100, 200, 50, 0)] == pytest.approx([0.4, 0.5, 0.3, 0.2])
    assert mean_success([(0, 0.0), (100, 1.0), (200, 0.0)], 200) == pytest.approx(0.5)


def test_steps_are_those_that_every_run_had() -> None:
    """A run that ended since it was good enough shortens nobody's; when all did, the longest counts."""
    slow, quick = result(end=300), result(end=100, reached=True)
    assert common_steps([slow, result(end=200), quick]) == 200
    assert common_steps([quick, result(end=150, reached=True)]) == 150


def test_interval_against_the_published_quantile() -> None:
    """1, 2, 3: deviation 1, t(2) = 4.303, half 4.303 / sqrt(3). 41 values use the normal quantile's correction."""
    three = Interval.of([1.0, 2.0, 3.0])
    assert (three.mean, three.half) == pytest.approx((2.0, 4.303 / math.sqrt(3)))
    many = Interval.of([0.0, 2.0] * 20 + [1.0])
    assert many.half == pytest.approx(2.021 * 1.0 / math.sqrt(41), rel=2e-3)
    assert math.isinf(Interval.of([0.5]).half)
    assert str(Interval.of([0.5])) == "0.500 (one seed)"


def test_a_winner_is_better_than_each_other_one() -> None:
    """Seeds differ much and the arms little, but the same way in each seed: pairs tell what the means cannot."""
    by_arm = {"fixed": {0: 0.2, 1: 0.5, 2: 0.8}, "drift": {0: 0.30, 1: 0.61, 2: 0.90}}
    said = verdict(by_arm, 1000)
    assert said.startswith("drift wins: mean success over the first 1000 real steps 0.603 [")
    assert "fixed 0.103 [0.089, 0.118]" in said


def test_no_winner_within_the_spread() -> None:
    """Better than one but not told apart from another; one seed tells nothing."""
    by_arm = {"a": {0: 0.9, 1: 0.90}, "b": {0: 0.95, 1: 0.84}, "c": {0: 0.1, 1: 0.101}}
    said = verdict(by_arm, 10)
    assert said.startswith("No difference beyond the seeds' spread: a is ahead")
    assert "not told apart from b. " in said
    assert "not told apart from b. " in verdict({"a": {0: 0.9}, "b": {0: 0.1}}, 10)
    assert "has no seed in common" in verdict({"a": {0: 0.9}, "b": {1: 0.1}}, 10)
    assert "nothing to compare" in verdict({"a": {0: 0.9}}, 10)


def test_rows_of_a_killed_run_count_once() -> None:
    """Continued from the checkpoint after turn 2, turns 3 and 4 are run anew."""
    rows = [{"policy/turns": turns, "row": row} for row, turns in enumerate([1, 2, 3, 4, 2, 3])]
    assert [row["row"] for row in surviving(rows)] == [0, 1, 4, 5]


def test_small_readings() -> None:
    """First evaluation at the target; means between edges."""
    assert steps_to([(0, 0.1), (50, 0.8), (90, 0.7)], 0.8) == 50
    assert steps_to([(0, 0.1)], 0.8) is None
    means = binned([(0, 1.0), (5, 3.0), (10, 7.0)], [0, 10, 20, 30])
    assert means[:2] == [2.0, 7.0]
    assert math.isnan(means[2])


def write_run(folder: Path, rows: list[dict[str, Any]]) -> None:
    """What a finished run leaves."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rate = {"before": {"rate": 0.25}, "after": {"rate": 0.75}}
    (folder / "summary.json").write_text(
        json.dumps(
            {
                "success": rate, "success_sampled": rate, "imagined_steps": 640, "wall_s": {"total": 12.5},
                "real_steps": {"warm_up": 40, "online": 160},
            }
        )
    )  # fmt: skip


def test_from_run_directories_to_table_and_plot(tmp_path: Path) -> None:
    """Two arms: one with an evaluation on the way, one without, which has the one at the end."""
    plan = make_plan(["imagination/schedule=fixed,drift", "run.seed=0", f"experiment.dir={tmp_path}"])
    row = {
        "policy/turns": 1,
        "real_steps": 60,
        "imagine/horizon": 5.0,
        "imagine/agreement": 0.9,
        "imagine/psnr": 25.0,
    }
    seen = {"evaluation/real_steps": 100, "evaluation/greedy": {"rate": 0.65}}
    write_run(
        plan.runs[0].folder,
        [row, {**row, **seen, "policy/turns": 2, "real_steps": 120, "imagine/horizon": 3.0}],
    )
    write_run(plan.runs[1].folder, [{"policy/turns": 1, "real_steps": 60}])
    comparison = compare(plan.runs, plan.experiment)
    assert [each.success for each in comparison.results] == [
        [(0, 0.25), (100, 0.65)],
        [(0, 0.25), (200, 0.75)],
    ]
    assert comparison.steps == 100
    text = report_text(comparison)
    fixed, drift = text.splitlines()[2:4]
    assert (
        fixed
        == "| fixed | 1 | 0.450 (one seed) | 0.650 (0.650 to 0.650) | none of 1 | 5.0, 3.0 | – | 0.900 | 25.0 | 640 | 12 |"
    )
    assert (
        drift
        == "| drift | 1 | 0.375 (one seed) | 0.750 (0.750 to 0.750) | none of 1 | –, – | – | – | – | 640 | 12 |"
    )
    assert "No difference" in text
    assert json.loads(json.dumps(comparison.to_json()))["scores"]["fixed"]["half"] is None
    _drawn(comparison, tmp_path / "curves.png")


def _drawn(comparison: Comparison, path: Path) -> None:
    from platform.comparison_plot import draw

    from PIL import Image

    draw(comparison, path)
    assert Image.open(path).size == (1320, 880)
