"""The table and the plot of ``inference.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def table(report: dict[str, Any]) -> str:
    """For people."""
    bare = report["bare_per_s"]
    lines = [f"{'':<42}{'observations/s':>15}"]
    lines += [f"bare forward, batches of {batch:<17}{rate:>15,}" for batch, rate in bare.items()]
    for name, key in (("threads", "threads"), ("Ray", "ray")):
        rate = np.median([p["served_per_s"] for p in report["pairs"][key]])
        lines.append(f"service, saturated through {name:<15}{rate:>15,.0f}")
    lines += [
        "",
        f"{'share of the bare forward in batches':<42}{'wall time':>15}{'processor time':>17}",
        f"{'  through Ray':<42}{report['share_of_bare_batch']:>15.2f}{report['share_by_processor_time']:>17.2f}",
        f"{'  in threads':<42}{report['share_in_threads']:>15.2f}{report['share_in_threads_by_processor_time']:>17.2f}",
        f"over one call per observation: {report['over_one_call_per_observation']:.1f} times",
        "",
        f"{report['publish']['versions']} versions published under load: a collector made at most "
        f"{report['publish']['old_decisions_max']} more decision(s) under old weights; the last one acted with new ones after "
        f"{report['publish']['last_collector_median_s']:.2f} s, where one decision took {report['publish']['one_decision_median_s']:.2f} s",
        "",
    ]
    for name, found in report["batches"].items():
        lines.append(f"batches of at most, {name}: {pretty(found)}")
    for name, found in report["waits"].items():
        lines.append(f"waits of at most, {name}: {pretty(found)}")
    return "\n".join(lines)


def pretty(found: dict[str, int]) -> str:
    """``2: 17, 4: 3``."""
    return ", ".join(f"{key.removeprefix('up_to_')}: {count}" for key, count in found.items())


def plot(report: dict[str, Any], target: Path) -> None:
    """Rates, batch sizes and waits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4), constrained_layout=True)
    rates = {f"bare\n{batch}": rate for batch, rate in report["bare_per_s"].items()}
    for name in ("threads", "ray"):
        rates[f"service\n{name}"] = float(np.median([p["served_per_s"] for p in report["pairs"][name]]))
    left.bar(list(rates), list(rates.values()), color=["tab:gray"] * (len(rates) - 2) + ["tab:blue"] * 2)
    left.set_title("Rate: bare forward by batch, saturated service")
    left.set_ylabel("observations per s")
    left.tick_params(axis="x", labelsize=8)
    for panel, key, title in ((middle, "batches", "Batch sizes"), (right, "waits", "Waits before the batch")):
        labels = sorted({label for found in report[key].values() for label in found}, key=bound)
        for number, (name, found) in enumerate(report[key].items()):
            total = max(1, sum(found.values()))
            places = np.arange(len(labels)) + 0.27 * (number - 1)
            panel.bar(places, [found.get(label, 0) / total for label in labels], width=0.27, label=name)
        shown = [label.removeprefix("up_to_").replace("_", " ") for label in labels]
        panel.set_xticks(range(len(labels)), shown, rotation=45)
        panel.set_title(title)
        panel.set_ylabel("share")
        panel.legend(fontsize=8)
    figure.savefig(target, dpi=110)
    plt.close(figure)


def bound(label: str) -> float:
    """What a bucket's name says; the open one comes last."""
    digits = "".join(filter(str.isdigit, label))
    return float(digits) if digits else float("inf")
