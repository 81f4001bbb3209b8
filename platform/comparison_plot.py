"""Four panels of an experiment: success, horizon and model error over real steps, and wall time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .comparison import Comparison, Curve, binned

BINS = 24
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#e0a030", "#7b4fa3", "#4a4a4a", "#17a2a2", "#a0522d")


def draw(comparison: Comparison, path: Path) -> None:
    """Write a PNG. Lines are means over seeds, bands reach from the lowest to the highest seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(12, 8), constrained_layout=True)
    success, horizon, error, wall = axes.flat
    for number, arm in enumerate(comparison.arms):
        colour = COLOURS[number % len(COLOURS)]
        runs = comparison.of(arm)
        _interpolated(success, [run.success for run in runs], colour, arm)
        _means(horizon, [run.series["horizon"] for run in runs], colour, arm, "-")
        _means(horizon, [run.series["length"] for run in runs], colour, None, ":")
        wrong = [[(at, 1 - value) for at, value in run.series["agreement"]] for run in runs]
        _means(error, wrong, colour, arm, "-")
        seconds = [run.wall_s for run in runs]
        wall.barh(number, np.mean(seconds), color=colour, alpha=0.5)
        wall.plot(seconds, [number] * len(seconds), "o", color=colour)
    _label(success, "Success in the real environment", "share of evaluation episodes")
    success.axhline(comparison.target, color="grey", linewidth=0.8, linestyle="--")
    success.set_ylim(-0.02, 1.02)
    _label(horizon, "Horizon (dotted: decisions per segment)", "decisions")
    horizon.set_ylim(bottom=0)
    _label(error, "Model error at the horizon", "share of windows with another outcome")
    error.set_ylim(bottom=0)
    wall.set_title("Wall time")
    wall.set_xlabel("seconds of a run")
    wall.set_yticks(range(len(comparison.arms)), comparison.arms)
    wall.invert_yaxis()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _label(panel: Any, title: str, unit: str) -> None:
    panel.set_title(title)
    panel.set_xlabel("online real steps")
    panel.set_ylabel(unit)
    panel.grid(alpha=0.3)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize=8)


def _interpolated(panel: Any, curves: list[Curve], colour: str, label: str) -> None:
    """Evaluations of each run as points; mean and band as far as every run goes."""
    end = min(curve[-1][0] for curve in curves)
    grid = np.linspace(0, end, 60)
    heights = np.stack(
        [np.interp(grid, [at for at, _ in curve], [rate for _, rate in curve]) for curve in curves]
    )
    panel.plot(grid, heights.mean(0), color=colour, label=label)
    panel.fill_between(grid, heights.min(0), heights.max(0), color=colour, alpha=0.12)
    for curve in curves:
        panel.plot(*zip(*curve, strict=True), ".", color=colour, alpha=0.6, markersize=4)


def _means(panel: Any, curves: list[Curve], colour: str, label: str | None, style: str) -> None:
    """Means over seeds of the means in equal stretches of real steps."""
    longest = max((curve[-1][0] for curve in curves if curve), default=0)
    if not longest:
        return
    edges = np.linspace(0, longest + 1, BINS + 1)
    values = np.array([binned(curve, list(edges)) for curve in curves])
    seen = ~np.isnan(values).all(0)
    centres = ((edges[1:] + edges[:-1]) / 2)[seen]
    panel.plot(centres, np.nanmean(values[:, seen], axis=0), style, color=colour, label=label)
