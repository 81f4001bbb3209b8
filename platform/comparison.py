"""Compares the runs of an experiment: success against real steps, and whether one arm is better beyond the seeds' spread."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from configs.horizon import ExperimentConfig

from .metrics import read_rows
from .sweep import Run

Curve = list[tuple[int, float]]
"""(online real steps, value), steps rising."""
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantile of Student's t by degrees of freedom from 1; beyond the last the normal one's with its first correction."""
SERIES = {
    "horizon": "imagine/horizon",
    "length": "imagine/length",
    "agreement": "imagine/agreement",
    "psnr": "imagine/psnr",
}
"""What is followed over real steps besides success: the metric of each."""


@dataclass(frozen=True)
class RunResult:
    """What one finished run did."""

    arm: str
    seed: int
    success: Curve
    """Evaluations, the one before training first."""
    series: dict[str, Curve]
    """By the names of ``SERIES``."""
    reached: bool
    """Ended since it was good enough (``run.stop.success``), not since its time or steps were over."""
    imagined_steps: int
    wall_s: float


@dataclass(frozen=True)
class Interval:
    """Mean over seeds with Student's 95 % interval; without limits where one seed is all there is."""

    mean: float
    half: float
    seeds: int

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        """From one value per seed, at least one."""
        count = len(values)
        if count == 1:
            return Interval(values[0], math.inf, 1)
        freedom = count - 1
        quantile = T_975[freedom - 1] if freedom <= len(T_975) else 1.96 + 2.4 / freedom
        return Interval(
            float(np.mean(values)), float(quantile * np.std(values, ddof=1) / math.sqrt(count)), count
        )

    def __str__(self) -> str:
        if math.isinf(self.half):
            return f"{self.mean:.3f} (one seed)"
        return f"{self.mean:.3f} [{self.mean - self.half:.3f}, {self.mean + self.half:.3f}]"


@dataclass(frozen=True)
class Comparison:
    """All finished runs and the verdict."""

    results: list[RunResult]
    steps: int
    """Real steps over which success is averaged."""
    scores: dict[str, Interval]
    """Mean success over these steps, by arm."""
    verdict: str
    target: float

    @property
    def arms(self) -> list[str]:
        """In the order of the runs."""
        return list(self.scores)

    def of(self, arm: str) -> list[RunResult]:
        """The arm's runs."""
        return [result for result in self.results if result.arm == arm]

    def to_json(self) -> dict[str, Any]:
        """For ``results.json``; an interval without limits has null for its half."""
        scores = {
            arm: {
                "mean": score.mean,
                "half": None if math.isinf(score.half) else score.half,
                "seeds": score.seeds,
            }
            for arm, score in self.scores.items()
        }
        runs = [asdict(result) for result in self.results]
        return {
            "steps": self.steps,
            "target": self.target,
            "scores": scores,
            "verdict": self.verdict,
            "runs": runs,
        }


def compare(runs: Sequence[Run], experiment: ExperimentConfig) -> Comparison:
    """Read the finished runs and judge them by their mean success over the real steps that all have had."""
    results = [read_result(run, experiment.decoding) for run in runs]
    steps = common_steps(results)
    by_arm: dict[str, dict[int, float]] = {}
    for result in results:
        by_arm.setdefault(result.arm, {})[result.seed] = mean_success(result.success, steps)
    scores = {arm: Interval.of(list(values.values())) for arm, values in by_arm.items()}
    return Comparison(results, steps, scores, verdict(by_arm, steps), experiment.target)


def read_result(run: Run, decoding: str) -> RunResult:
    """From ``metrics.jsonl`` and ``summary.json`` of a finished run."""
    rows = surviving(read_rows(run.folder / "metrics.jsonl"))
    summary = json.loads((run.folder / "summary.json").read_text())
    key = "success" if decoding == "greedy" else "success_sampled"
    before, after = summary[key]["before"]["rate"], summary[key]["after"]["rate"]
    seen = {int(row["evaluation/real_steps"]): float(row[f"evaluation/{decoding}"]["rate"]) for row in rows if "evaluation/real_steps" in row}  # fmt: skip
    # Without evaluations during the run there is the one after it.
    later = seen or {int(summary["real_steps"]["warm_up"] + summary["real_steps"]["online"]): after}
    series = {
        name: [(int(row["real_steps"]), float(row[metric])) for row in rows if metric in row]
        for name, metric in SERIES.items()
    }
    stop = run.config.run.stop.success
    return RunResult(
        run.arm, run.seed, [(0, before), *sorted(later.items())], series,
        reached=stop is not None and any(rate >= stop for rate in seen.values()),
        imagined_steps=summary["imagined_steps"], wall_s=summary["wall_s"]["total"],
    )  # fmt: skip


def surviving(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without those that a killed run wrote after the checkpoint from which it was continued."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        while kept and kept[-1]["policy/turns"] > row["policy/turns"]:
            kept.pop()
        kept.append(row)
    return kept


def common_steps(results: Sequence[RunResult]) -> int:
    """Real steps that every run had which did not end early because it was good enough; that one keeps its last success."""
    ends = [result.success[-1][0] for result in results if not result.reached]
    return min(ends) if ends else max(result.success[-1][0] for result in results)


def mean_success(curve: Curve, steps: int) -> float:
    """Mean over the first ``steps`` real steps of the line through the evaluations; flat after the last one."""
    if steps == 0:
        return curve[0][1]
    at, value = (np.array(each, np.float64) for each in zip(*curve, strict=True))
    inside = np.unique(np.concatenate([[0.0, float(steps)], at[(at > 0) & (at < steps)]]))
    heights = np.interp(inside, at, value)
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(inside)).sum() / steps)


def steps_to(curve: Curve, target: float) -> int | None:
    """Real steps of the first evaluation at or above ``target``; None when there is none."""
    return next((steps for steps, rate in curve if rate >= target), None)


def verdict(by_arm: dict[str, dict[int, float]], steps: int) -> str:
    """Who is best, and against whom that stands: paired differences over common seeds whose 95 % interval lies above 0.

    To win, an arm must be better than each other one by such an interval. By {arm: {seed: mean success}}.
    """
    ranked = sorted(by_arm, key=lambda arm: -float(np.mean(list(by_arm[arm].values()))))
    best, rest = ranked[0], ranked[1:]
    score = Interval.of(list(by_arm[best].values()))
    head = f"mean success over the first {steps} real steps {score}"
    if not rest:
        return f"One arm, {best}: {head}; nothing to compare it with."
    differences = {arm: _difference(by_arm[best], by_arm[arm]) for arm in rest}
    open_ones = [arm for arm, gap in differences.items() if gap is None or gap.mean <= gap.half]
    told = "; ".join(f"{arm} {_gap_text(differences[arm])}" for arm in rest)
    if open_ones:
        return (
            f"No difference beyond the seeds' spread: {best} is ahead ({head}), but not told apart from "
            f"{', '.join(open_ones)}. Its lead by paired seeds: {told}."
        )
    return f"{best} wins: {head}. Its lead by paired seeds: {told}."


def _difference(best: dict[int, float], other: dict[int, float]) -> Interval | None:
    """Over common seeds; None where there are none."""
    common = sorted(set(best) & set(other))
    return Interval.of([best[seed] - other[seed] for seed in common]) if common else None


def _gap_text(gap: Interval | None) -> str:
    return "has no seed in common" if gap is None else str(gap)


def report_text(comparison: Comparison) -> str:
    """Markdown: the table, and the verdict under it."""
    target = comparison.target
    lines = [
        f"| arm | seeds | success over {comparison.steps} real steps | last evaluation | real steps to {100 * target:g} % "
        "| horizon first, last | decisions per segment | agreement at the horizon | PSNR there dB | imagined steps | wall s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in comparison.arms:
        results = comparison.of(arm)
        last = [result.success[-1][1] for result in results]
        cells = [
            arm,
            str(len(results)),
            str(comparison.scores[arm]),
            f"{np.mean(last):.3f} ({min(last):.3f} to {max(last):.3f})",
            _steps_cell([steps_to(result.success, target) for result in results]),
            f"{_mean_end(results, 'horizon', 0)}, {_mean_end(results, 'horizon', -1)}",
            _mean_of(results, "length", ".1f"),
            _mean_of(results, "agreement", ".3f"),
            _mean_of(results, "psnr", ".1f"),
            f"{np.mean([result.imagined_steps for result in results]):.0f}",
            f"{np.mean([result.wall_s for result in results]):.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", comparison.verdict, ""])


def _steps_cell(steps: Sequence[int | None]) -> str:
    there = [each for each in steps if each is not None]
    return f"{np.median(there):.0f} ({len(there)} of {len(steps)})" if there else f"none of {len(steps)}"


def _mean_end(results: Sequence[RunResult], name: str, place: int) -> str:
    ends = [result.series[name][place][1] for result in results if result.series[name]]
    return f"{np.mean(ends):.1f}" if ends else "–"


def _mean_of(results: Sequence[RunResult], name: str, form: str) -> str:
    """Mean over seeds of each run's mean over its rows."""
    means = [
        float(np.mean([value for _, value in result.series[name]]))
        for result in results
        if result.series[name]
    ]
    return format(float(np.mean(means)), form) if means else "–"


def binned(curve: Curve, edges: Sequence[float]) -> list[float]:
    """Mean value between neighbouring edges; NaN where there is none."""
    at, value = np.array([s for s, _ in curve], np.float64), np.array([v for _, v in curve], np.float64)
    means = []
    for low, high in itertools.pairwise(edges):
        inside = value[(at >= low) & (at < high)]
        means.append(float(inside.mean()) if len(inside) else math.nan)
    return means
