"""Metrics: the jsonl file that every run has, optional trackers, busy clocks, the Wilson interval."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from configs.errors import ConfigError
from configs.system import TrackConfig

from .storage import disk_errors


@dataclass(frozen=True)
class SuccessRate:
    """Successes out of trials with the Wilson 95 % interval (Wilson 1927)."""

    rate: float
    low: float
    high: float
    trials: int

    @staticmethod
    def of(successes: int, trials: int) -> SuccessRate:
        """From counts; ``trials`` must be positive."""
        assert 0 <= successes <= trials
        assert trials > 0
        z = 1.959963984540054
        p, n = successes / trials, float(trials)
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return SuccessRate(p, max(0.0, centre - half), min(1.0, centre + half), trials)

    def to_json(self) -> dict[str, float | int]:
        """Keys of ``summary.json``."""
        return {"rate": self.rate, "low": self.low, "high": self.high, "trials": self.trials}

    def __str__(self) -> str:
        return f"{100 * self.rate:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


class BusyClock:
    """Busy seconds of one loop. Idle is the rest of the wall time, so idle + busy = wall by construction.

    A step that is under way at ``take`` counts where its time lies: the part before it there, the rest in the next one.
    The loop's thread begins and ends steps, another one may take.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._origin = now()
        self._busy = 0.0
        self._began: float | None = None
        self._taken = 0.0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A step begins."""
        with self._lock:
            self._began, self._taken = self._now(), 0.0

    def end(self, *, worked: bool) -> None:
        """It ends; one that found nothing to do was idle, and what was taken of it before is made good."""
        with self._lock:
            if self._began is not None:
                seconds = self._now() - self._began - self._taken
                self._busy += seconds if worked else -self._taken
                self._began = None

    def take(self) -> tuple[float, float]:
        """(busy, wall) seconds since the last call, the first of them at most the second."""
        with self._lock:
            now = self._now()
            if self._began is not None:
                self._busy += now - self._began - self._taken
                self._taken = now - self._began
            wall, self._origin = now - self._origin, now
            busy = min(max(0.0, self._busy), wall)
            self._busy -= busy
            return busy, wall


def idle_ratio(busy_s: float, wall_s: float) -> float:
    """Share of the wall time in which a loop did nothing, in [0, 1]."""
    return 0.0 if wall_s <= 0 else min(1.0, max(0.0, 1.0 - busy_s / wall_s))


class Mean(float):
    """A mean that knows of how many numbers it is."""

    __slots__ = ("count",)
    count: int

    def __new__(cls, value: float, count: int) -> Mean:
        """``value`` over ``count`` numbers."""
        mean = super().__new__(cls, value)
        mean.count = count
        return mean

    def __getnewargs__(self) -> tuple[float, int]:  # type: ignore[override]
        """For its way out of an actor."""
        return float(self), self.count


class Count(float):
    """How often something happened."""


class Largest(float):
    """The largest of several numbers."""


def joined(rows: Iterable[dict[str, float]]) -> dict[str, float]:
    """One row of several loops: means are weighted by what they are of, counts add up, the largest of the largest
    stays, and of other numbers the last.
    """
    whole: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            held = whole.get(name)
            if isinstance(held, Mean) and isinstance(value, Mean):
                count = held.count + value.count
                whole[name] = Mean((held * held.count + value * value.count) / count, count)
            elif isinstance(held, Count) and isinstance(value, Count):
                whole[name] = Count(held + value)
            elif isinstance(held, Largest) and isinstance(value, Largest):
                whole[name] = max(held, value)
            else:
                whole[name] = value
    return whole


class Averages:
    """Means of named numbers between two reads, and the largest of those added as `Largest`. Threads may add while another
    reads.
    """

    def __init__(self) -> None:
        self._largest: dict[str, Largest] = {}
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, values: dict[str, float], prefix: str = "") -> None:
        """Add one observation of each; non-finite numbers are left out, since JSON has none."""
        for name, value in values.items():
            if math.isfinite(value):
                key = prefix + name
                with self._lock:
                    if isinstance(value, Largest):
                        self._largest[key] = max(self._largest.get(key, value), value)
                        continue
                    self._sums[key] = self._sums.get(key, 0.0) + value
                    self._counts[key] = self._counts.get(key, 0) + 1

    def merge(self, other: Averages) -> None:
        """Add every observation of ``other``, which nobody adds to meanwhile."""
        with self._lock:
            for name, total in other._sums.items():
                self._sums[name] = self._sums.get(name, 0.0) + total
                self._counts[name] = self._counts.get(name, 0) + other._counts[name]
            for name, value in other._largest.items():
                self._largest[name] = max(self._largest.get(name, value), value)

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which stays in its process."""
        return {"_sums": self._sums, "_counts": self._counts, "_largest": self._largest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """With a lock of its own."""
        vars(self).update(state, _lock=threading.Lock())

    def take(self) -> dict[str, float]:
        """Means and largest numbers since the last call."""
        with self._lock:
            sums, counts, largest = self._sums, self._counts, self._largest
            self._sums, self._counts, self._largest = {}, {}, {}
        means = {name: Mean(total / counts[name], counts[name]) for name, total in sums.items()}
        return {**means, **largest}


class Tracker(Protocol):
    """Where rows of metrics go."""

    def write(self, row: dict[str, Any], step: int) -> None:
        """Record one row."""
        ...

    def close(self) -> None:
        """Flush."""
        ...


class JsonlTracker:
    """One JSON object per line; flushed at once, so a killed run keeps its history."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with disk_errors(path):
            self._file = path.open("a")

    def write(self, row: dict[str, Any], step: int) -> None:
        """Append the row. ResourceError when the disk refuses."""
        with disk_errors(self._path):
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with disk_errors(self._path):
            self._file.close()


class TensorBoardTracker:
    """TensorBoard events; the step axis is the policy update."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Typed or not by the version that is installed.
        make: Any = SummaryWriter
        self._writer = make(str(folder))

    def write(self, row: dict[str, Any], step: int) -> None:
        """Write every number of the row."""
        for name, value in row.items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()


class WandbTracker:
    """Weights & Biases; the run id is kept in the checkpoint so that a resumed run goes on in the same one."""

    def __init__(self, config: TrackConfig, folder: Path, run_id: str) -> None:
        import wandb

        self._run = wandb.init(
            project=config.wandb_project, dir=str(folder), id=run_id, resume="allow", mode=config.wandb
        )

    def write(self, row: dict[str, Any], step: int) -> None:
        """Log the row at the policy update."""
        self._run.log({**row, "policy_update": step})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def make_trackers(config: TrackConfig, folder: Path, run_id: str) -> list[Tracker]:
    """The trackers that the config asks for. Raises ConfigError when a package is missing."""
    trackers: list[Tracker] = [JsonlTracker(folder / "metrics.jsonl")]
    try:
        if config.tensorboard:
            trackers.append(TensorBoardTracker(folder / "tensorboard"))
        if config.wandb != "off":
            trackers.append(WandbTracker(config, folder, run_id))
    except ImportError as error:
        raise ConfigError(
            f"a tracker needs a package that is not installed ({error.name})",
            where="track",
            remedy="pip install 'reverie-rl[track]' or turn track.* off",
        ) from error
    return trackers


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a ``metrics.jsonl``; a last line that a killed run left unfinished is ignored."""
    lines = path.read_text().splitlines() if path.is_file() else []
    rows = []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number != len(lines) - 1:
                raise
    return rows
