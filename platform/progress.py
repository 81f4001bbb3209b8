"""Rows of metrics by design's names, and the line that a person follows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from configs.schema import TrainConfig

from .metrics import idle_ratio, joined

LEAST_S = 0.05


def metric_row(
    by_role: dict[str, dict[str, float]],
    buffers: dict[str, dict[str, Any]],
    board: dict[str, Any],
    wall_s: float,
) -> dict[str, Any]:
    """One row of ``metrics.jsonl``: every role's numbers, idle ratios, buffers, throughput since the last row, and the
    board with its step axes.
    """
    row: dict[str, Any] = {"wall_s": round(wall_s, 3)}
    idle: dict[str, float] = {}
    rows: list[dict[str, float]] = []
    for name, metrics in by_role.items():
        numbers = dict(metrics)
        idle[name] = idle_ratio(numbers.pop("busy_s"), numbers.pop("wall_s"))
        row[f"idle_ratio/{name}"] = idle[name]
        rows.append(numbers)
    row |= joined(rows)
    if "policy_learner" in idle:
        row["trainer/idle_ratio"] = idle["policy_learner"]
    rollouts = [value for name, value in idle.items() if name.startswith("rollout_")]
    if rollouts:
        row["rollouter/idle_ratio"] = sum(rollouts) / len(rollouts)
    for name, stats in buffers.items():
        for key in ("items", "bytes", "uses_per_sample", "lost_items"):
            row[f"buffer/{name}/{key}"] = stats[key]
        row[f"buffer/{name}/server_deaths"] = len(stats["server_deaths"])
    row |= {key: value for key, value in board.items() if value is not None}
    row["real_steps"] = sum(value for key, value in board.items() if key.startswith("real_steps/"))
    return row


class ProgressLine:
    """Rates since the last line, and the time that is left until the first limit, at the rates so far.

    ``spent_s``: wall time before ``started``, of a run that goes on.
    """

    def __init__(self, config: TrainConfig, started: float, spent_s: float = 0.0) -> None:
        self._config = config
        self._started = started
        self._spent_s = spent_s
        self._last: tuple[float, int, int] | None = None
        self._first: tuple[int, int] | None = None

    def wall_s(self, now: float) -> float:
        """Seconds since the loop started."""
        return now - self._started

    def text(self, row: dict[str, Any], board: dict[str, Any], now: float) -> str:
        """The line for ``row`` and ``board`` as of ``now``."""
        turns, real = int(board.get("policy/turns", 0)), int(row["real_steps"])
        imagined = int(board.get("imagined_steps", 0))
        if self._first is None:
            self._first = turns, real
        # A resumed run begins with counts that took it no time.
        then, real_then, imagined_then = self._last or (now, real, imagined)
        self._last = (now, real, imagined)
        parts = [
            f"turn {turns}/{self._config.run.stop.updates}",
            f"real steps {real}{_rate(real - real_then, now - then)}",
        ]
        if imagined:
            parts.append(f"imagined {imagined}{_rate(imagined - imagined_then, now - then)}")
        if "imagine/horizon" in row:
            parts.append(f"horizon {row['imagine/horizon']:.0f}")
        if "env/success_once" in row:
            parts.append(f"rollout success {row['env/success_once']:.2f}")
        if "imagine/success" in row:
            parts.append(f"imagined success {row['imagine/success']:.2f}")
        greedy = board.get("evaluation/greedy")
        if greedy is not None:
            parts.append(f"evaluated {greedy['rate']:.2f}")
        parts.append(self._left(turns, real, now))
        return ", ".join(parts)

    def _left(self, turns: int, real: int, now: float) -> str:
        stop, elapsed = self._config.run.stop, self.wall_s(now)
        first_turns, first_real = self._first or (0, 0)
        limits = [
            _until(stop.updates, first_turns, turns, elapsed),
            _until(stop.real_steps, first_real, real, elapsed),
            None if stop.wall_s is None else stop.wall_s - self._spent_s - elapsed,
        ]
        known = [left for left in limits if left is not None]
        if not known:
            return "remaining time unknown"
        return f"{timedelta(seconds=round(max(0.0, min(known))))} left"


def _until(limit: int | None, first: int, count: int, seconds: float) -> float | None:
    """Seconds until ``count`` is ``limit`` where ``seconds`` took it there from ``first``; none where that says nothing."""
    if limit is None or count <= first:
        return None
    return (limit - count) * seconds / (count - first)


def _rate(count: int, seconds: float) -> str:
    """Nothing where too little time has passed for a rate to mean anything."""
    return f" (+{count / seconds:.0f}/s)" if seconds > LEAST_S else ""
