"""Pause and resume everything ten thousand times while versions appear, with random delays: nothing hangs, nothing is lost,
nothing older than the bound trains.

Collectors and a learner run over the real buffer, weight store and staleness rules: each a thread, then (fewer cycles)
each a Ray actor. Collectors fail, give samples back and die. At every pause the table of samples is audited, at some of
them a checkpoint is restored. ``--quick``: fewer cycles. Prints a table and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from platform.hosts.base import Host
from platform.staleness import Rules
from platform.weights import WeightStore
from typing import Any

import numpy as np
from stress_roles import Collector, Learner, make_buffer
from thread_host import ThreadHost

from buffers.memory import MemoryBuffer
from configs.system import RayHostConfig

RESULTS = Path(__file__).parent / "results"
COLLECTORS = 3
STALL_S, STALL_PAUSES = 60.0, 2000

CASES = {
    "mask": Rules(budget=1.0, bound=1, on_violation="mask"),
    "cut, groups": Rules(budget=1.0, bound=1, on_violation="cut", group=2),
    "drop, on-policy share": Rules(budget=2.0, bound=2, on_violation="drop", on_policy_min_ratio=0.3),
    "wait": Rules(budget=1.0, bound=1, on_violation="wait"),
    "drain, in order": Rules(budget=0.0, bound=2, on_violation="mask", drain=True, ordered=True),
}


@dataclass
class Result:
    """Of one case on one host."""

    case: str
    host: str
    cycles: int
    publishes: int
    turns: int
    samples: int
    restarted: int
    """Samples that were started more than once and are still in the table."""
    lags: dict[int, int]
    """Trained decisions by lag."""
    bound: int
    publish_waits: int
    restores: int
    pause_ms: list[float]
    """Of every pause, sorted: from the order until the last loop stood still."""
    seconds: float

    @property
    def largest_lag(self) -> int:
        """Of a decision that trained."""
        return max(self.lags)


class Progress:
    """Whether turns are still taken: another one within ``STALL_S`` or ``STALL_PAUSES``, whichever is later.

    A machine that others keep busy may give nobody a turn for a minute, but then it gives few pauses either.
    """

    def __init__(self, case: str) -> None:
        self._case = case
        self._turns, self._since, self._pauses = -1.0, time.monotonic(), 0

    def check(self, turns: float, buffer: MemoryBuffer) -> None:
        """After every pause; AssertionError when there was none for long."""
        self._pauses += 1
        if turns != self._turns:
            self._turns, self._since, self._pauses = turns, time.monotonic(), 0
        stuck = time.monotonic() - self._since > STALL_S and self._pauses > STALL_PAUSES
        assert not stuck, f"{self._case} is stuck: {buffer.stats()['lifecycle']}"


def run_case(case: str, host: Host, name: str, cycles: int, delay_s: float, seed: int = 0) -> Result:
    """``cycles`` pauses, and at least half as many publishes. AssertionError for anything lost, stuck or too old."""
    rules, began = CASES[case], time.monotonic()
    buffer, store = host.place_service("buffer", make_buffer), host.place_service("store", WeightStore)
    store.publish("policy", 0, {"weights": np.zeros(1000)})
    buffer.advance(0)
    for index in range(COLLECTORS):
        build = partial(Collector, f"rollout_{index}", buffer, store, rules, seed + index, delay_s)
        host.place_role(f"rollout_{index}", build)
    host.place_role(
        "policy_learner", partial(Learner, "policy_learner", buffer, store, rules, seed + 99, delay_s)
    )
    host.start()
    random, restores, progress = np.random.default_rng(seed), 0, Progress(case)
    pauses: list[float] = []
    learner: dict[str, float] = {"publishes": 0.0}
    while len(pauses) < cycles or learner["publishes"] < cycles / 2:
        host.resume()
        time.sleep(4 * delay_s * random.random())
        host.pump()
        asked = time.monotonic()
        late = host.pause(STALL_S)
        pauses.append(1e3 * (time.monotonic() - asked))
        assert not late, f"{late} did not stop"
        learner = host.metrics()["policy_learner"]
        audit(buffer, learner)
        if len(pauses) % 50 == 0:
            restore(buffer)
            restores += 1
        progress.check(learner["turns"], buffer)
    return Result(
        case, name, len(pauses), int(learner["publishes"]), int(learner["turns"]),
        sum(buffer.stats()["lifecycle"].values()),
        sum(sample["attempt"] > 0 for sample in buffer.state()["lifecycle"]["samples"]),
        {int(key[4:]): int(count) for key, count in sorted(learner.items()) if key.startswith("lag/")},
        rules.bound, int(learner["waits"]), restores, sorted(pauses), time.monotonic() - began,
    )  # fmt: skip


def audit(buffer: MemoryBuffer, learner: dict[str, float]) -> None:
    """While all stand still: every sample is somewhere, every use was counted, every buffered record is there."""
    stats, state = buffer.stats(), buffer.state()
    table = state["lifecycle"]
    assert sum(stats["lifecycle"].values()) == table["next_id"], "a sample is lost"
    assert stats["lifecycle"]["leased"] == 0, "the learner stands between two turns"
    assert table["ended_uses"] + sum(s["uses"] for s in table["samples"]) == learner["commits"], (
        "a use is lost"
    )
    stored = {item["id"] for item in state["shelf"]["items"]}
    waiting = {sample["id"] for sample in table["samples"] if sample["state"] == "buffered"}
    assert waiting <= stored, "a record is lost"


def restore(buffer: MemoryBuffer) -> None:
    """A checkpoint read back is the buffer that was written."""
    state = buffer.state()
    twin = make_buffer()
    twin.load(state)
    assert twin.state()["lifecycle"] == state["lifecycle"]
    assert twin.stats() == buffer.stats()
    buffer.load(state)


HEADER = (
    f"{'rules':<24}{'host':<9}{'pauses':>8}{'versions':>9}{'samples':>9}{'max lag':>9}{'bound':>7}{'s':>7}"
)


def told(result: Result) -> Result:
    """A line of the table."""
    r = result
    print(
        f"{r.case:<24}{r.host:<9}{r.cycles:>8}{r.publishes:>9}{r.samples:>9}{r.largest_lag:>9}{r.bound:>7}"
        f"{r.seconds:>7.0f}",
        flush=True,
    )
    return result


def row(result: Result) -> dict[str, Any]:
    """For JSON: of the pauses only what can be told."""
    shares = {
        f"p{share}": round(float(np.percentile(result.pause_ms, share)), 2) for share in (50, 95, 99, 100)
    }
    return {**asdict(result), "pause_ms": shares, "largest_lag": result.largest_lag}


def plot(results: list[Result], path: Path) -> None:
    """Trained decisions by lag, bounds marked; how long pauses took."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), constrained_layout=True)
    for place, result in enumerate(results):
        colour, label = f"C{place}", f"{result.case} ({result.host})"
        total = sum(result.lags.values())
        at = [lag + 0.13 * (place - len(results) / 2) for lag in result.lags]
        left.bar(at, [count / total for count in result.lags.values()], width=0.12, color=colour, label=label)
        left.plot([result.bound + 0.45] * 2, [0, 0.04 * (place + 1)], color=colour, linewidth=2)
        ranks = np.arange(1, len(result.pause_ms) + 1) / len(result.pause_ms)
        right.plot(np.maximum(result.pause_ms, 0.01), ranks, color=colour, label=label)
    left.set(
        xlabel="lag in versions (lines: the bounds)", ylabel="share of trained decisions", xticks=range(4),
        title="Nothing trains beyond its bound",
    )  # fmt: skip
    right.set(
        xscale="log",
        xlabel="ms from the order until the last loop stands",
        ylabel="share of pauses",
        title="Pauses",
    )
    right.grid(alpha=0.3)
    left.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def ray_host() -> Host:
    """A cluster of its own."""
    from platform.hosts.ray_host import RayHost

    return RayHost(RayHostConfig(object_store_bytes=80_000_000))


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cycles, at most a minute")
    quick = parser.parse_args().quick
    cycles, on_ray = (100, 10) if quick else (2000, 60)
    print(HEADER, flush=True)
    results = [told(run_case(case, ThreadHost(), "threads", cycles, 5e-4)) for case in CASES]
    host = ray_host()
    try:
        results.append(told(run_case("mask", host, "ray", on_ray, 5e-3)))
    finally:
        host.close()
    summary = {
        "cycles": sum(r.cycles for r in results),
        "publishes": sum(r.publishes for r in results),
        "lost_samples": 0,
        "hangs": 0,
        "lag_over_bound": max(r.largest_lag - r.bound for r in results),
        "restores": sum(r.restores for r in results),
        "quick": quick,
    }
    RESULTS.mkdir(exist_ok=True)
    name = "stress_quick" if quick else "stress"
    rows = {"rows": [row(r) for r in results]}
    (RESULTS / f"{name}.json").write_text(json.dumps(summary | rows, indent=1) + "\n")
    plot(results, RESULTS / f"{name}.png")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
