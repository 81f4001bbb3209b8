"""What is in a dataset: counts, lengths, success, actions, no-ops, tasks, cameras, a few frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.records import Images

THUMBNAILS = 6
"""Frames of an episode on the contact sheet."""


@dataclass
class Glimpse:
    """What the survey needs of one episode."""

    instruction: str
    task: str
    success: bool | None
    """None where the dataset does not say."""
    terminated: bool
    actions: NDArray[np.float32]
    """``[N, D]``: executed ones, in env units or, where these are unknown, in tokens."""
    frames: Images
    """camera: ``[n, H, W, 3]`` spread over the episode, the first and the last among them"""
    decisions: int | None = None


def spread(count: int) -> NDArray[np.int64]:
    """Indices of at most ``THUMBNAILS`` of ``count`` frames, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(THUMBNAILS, count)).round().astype(np.int64))


@dataclass
class Survey:
    """Adds up episodes."""

    noop_below: float
    """Share of half a dimension's range under which an action counts as none."""
    shown: int
    """Episodes kept for the contact sheet: of every task alike, the first ones."""
    limits: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    """Lowest and highest action ``[D]``; None takes those that occur."""
    episodes: int = 0
    successes: int = 0
    unknown: int = 0
    terminated: int = 0
    lengths: list[int] = field(default_factory=list)
    decisions: list[int] = field(default_factory=list)
    tasks: Counter[str] = field(default_factory=Counter)
    won: Counter[str] = field(default_factory=Counter)
    sheet: list[Glimpse] = field(default_factory=list)
    _actions: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, glimpse: Glimpse) -> None:
        """Count one episode."""
        self.episodes += 1
        self.successes += glimpse.success is True
        self.unknown += glimpse.success is None
        self.terminated += glimpse.terminated
        self.lengths.append(len(glimpse.actions))
        if glimpse.decisions is not None:
            self.decisions.append(glimpse.decisions)
        self.tasks[glimpse.instruction] += 1
        self.won[glimpse.instruction] += glimpse.success is True
        self._actions.append(glimpse.actions)
        self._keep(glimpse)

    def _keep(self, glimpse: Glimpse) -> None:
        """Keep the episode for the sheet where its task is the least shown there."""
        if len(self.sheet) < self.shown:
            self.sheet.append(glimpse)
            return
        counts = Counter(each.instruction for each in self.sheet)
        most, often = counts.most_common(1)[0] if counts else ("", 0)
        if counts[glimpse.instruction] + 1 < often:
            last = max(i for i, each in enumerate(self.sheet) if each.instruction == most)
            self.sheet[last] = glimpse

    def to_json(self) -> dict[str, Any]:
        """Every figure."""
        actions, lengths = np.concatenate(self._actions), np.array(self.lengths)
        low, high = self.limits or (actions.min(axis=0), actions.max(axis=0))
        noops = sum(int(noop_steps(each, low, high, self.noop_below).sum()) for each in self._actions)
        known = self.episodes - self.unknown
        return {
            "episodes": self.episodes,
            "env_steps": int(lengths.sum()),
            "decisions": sum(self.decisions) if self.decisions else None,
            "length": _distribution(lengths),
            "success": {"known": known, "rate": self.successes / known if known else None},
            "terminated": self.terminated,
            "truncated": self.episodes - self.terminated,
            "noop_share": noops / len(actions),
            "actions": [
                {**_distribution(column), "std": float(column.std())}
                for column in actions.T.astype(np.float64)
            ],
            "tasks": {
                name: {"episodes": count, "successes": self.won[name]} for name, count in self.tasks.items()
            },
        }


def noop_steps(
    actions: NDArray[np.float32], low: NDArray[np.float32], high: NDArray[np.float32], below: float
) -> NDArray[np.bool_]:
    """``[N]``: no dimension but the last moves, and the last, a gripper, is commanded the same way as a step before.

    What OpenVLA leaves out of LIBERO's demonstrations. It means something for relative actions only.

    Args:
        actions: ``[N, D]`` of one episode.
        low: ``[D]``, the lowest action.
        high: ``[D]``, the highest.
        below: Share of half the range under which a dimension does not move.
    """
    small: NDArray[np.bool_] = np.abs(actions) <= below * (high - low) / 2
    still: NDArray[np.bool_] = np.logical_and.reduce(small[:, : max(1, actions.shape[1] - 1)], axis=1)
    if actions.shape[1] > 1:
        side = actions[:, -1] > (low[-1] + high[-1]) / 2
        still[1:] &= side[1:] == side[:-1]
    return still


def _distribution(values: NDArray[Any]) -> dict[str, float]:
    return {
        "min": float(values.min()),
        "q01": float(np.quantile(values, 0.01)),
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "q99": float(np.quantile(values, 0.99)),
        "max": float(values.max()),
    }


def survey_text(found: dict[str, Any]) -> str:
    """``Survey.to_json`` for a person."""
    length, success = found["length"], found["success"]
    rate = "not recorded" if success["rate"] is None else f"{success['rate']:.1%} of {success['known']}"
    decisions = f" in {found['decisions']} decisions" if found["decisions"] else ""
    lines = [
        f"{found['episodes']} episodes, {found['env_steps']} env steps{decisions}",
        f"length: {length['min']:.0f} to {length['max']:.0f} env steps, mean {length['mean']:.1f}, median {length['median']:.0f}",
        f"success: {rate}; {found['terminated']} terminated, {found['truncated']} truncated",
        f"no-ops: {found['noop_share']:.1%} of the actions move nothing and keep the last dimension on its side",
        "actions:      min      q01     mean      q99      max      std",
    ]
    lines += [
        f"  {i:>4} {a['min']:>10.3f} {a['q01']:>8.3f} {a['mean']:>8.3f} {a['q99']:>8.3f} {a['max']:>8.3f} {a['std']:>8.3f}"
        for i, a in enumerate(found["actions"])
    ]
    lines.append("tasks:")
    for name, counts in found["tasks"].items():
        won = "" if success["rate"] is None else f", {counts['successes']} succeed"
        lines.append(f"  {counts['episodes']} x {name or '(no instruction)'}{won}")
    return "\n".join(lines)


def glimpses_of(records: Iterable[Any], decode: Any) -> Iterable[Glimpse]:
    """Of records; ``decode`` turns tokens into actions."""
    for record in records:
        shown = spread(record.length + 1)
        yield Glimpse(
            record.instruction, record.task, record.success, record.terminated, decode(record.tokens[record.valid]),
            {name: frames[shown] for name, frames in record.images.items()}, record.length,
        )  # fmt: skip
