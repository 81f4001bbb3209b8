"""What the plots of success share."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def new_plot() -> tuple[Any, Any]:
    """A figure and its axes, drawn without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(8, 4.5), constrained_layout=True)


def save_plot(figure: Any, axis: Any, *, x: str, y: str, level: float, label: str | None, path: Path) -> None:
    """Success from 0 to 1, a dotted line at ``level``, a legend."""
    axis.axhline(level, color="black", linewidth=0.8, linestyle=":", label=label)
    axis.set(xlabel=x, ylabel=y, ylim=(0, 1))
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=120)
