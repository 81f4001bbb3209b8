"""What the tabletop can ask for: tasks, their words, their starts and when they succeed.

Lengths are in table widths; x points right and y down, as in the picture. Block 0 of a world is the one meant.
Shape letters: n worlds, B blocks, C candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from configs.env import TabletopConfig, TaskName
from configs.errors import EnvError

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Keys = NDArray[np.uint64]

PALETTE: dict[str, tuple[int, int, int]] = {
    "red": (222, 45, 38),
    "green": (42, 157, 66),
    "blue": (33, 92, 214),
    "yellow": (250, 200, 30),
    "purple": (150, 60, 190),
    "cyan": (40, 200, 215),
}
REACH_START = 0.3
"""Least distance from gripper to target when a reach episode starts."""
GAP = 0.03
"""Least free space between things at the start."""
TRAVEL_SHARE = 0.55
"""Share of an episode's longest possible travel that gripper -> block -> pad may take at the start."""
LEAST_TRAVEL = 0.8
"""Travel that is always allowed: an episode too short for its task is the user's choice."""
CANDIDATES = 48
ATTEMPTS = 40
ABSENT = -1.0
"""Coordinate of a pad that a task does not have."""


@dataclass(frozen=True)
class Task:
    """One kind of request."""

    phrases: tuple[str, ...]
    """With ``{colour}`` for the block that is meant."""
    pad: bool
    """There is a pad to bring the block to."""
    pushes: bool
    """The arm carries a pusher, which moves blocks by contact, instead of a gripper."""
    margin: float
    """Least distance from the target block's centre to the table's edge at the start."""


TASKS: dict[TaskName, Task] = {
    "reach": Task(
        ("reach the {colour} block", "move to the {colour} block"), pad=False, pushes=False, margin=0.12
    ),
    "push": Task(
        ("push the {colour} block onto the pad", "slide the {colour} block to the pad"),
        pad=True,
        pushes=True,
        margin=0.22,
    ),
    "pick_place": Task(
        ("pick up the {colour} block and put it on the pad", "place the {colour} block on the pad"),
        pad=True,
        pushes=False,
        margin=0.12,
    ),
}
TASK_NAMES: tuple[TaskName, ...] = tuple(TASKS)
COLOURS: tuple[str, ...] = tuple(PALETTE)


@cache
def instruction(task: int, phrase: int, colour: int) -> str:
    """The request in words, from indices into ``TASKS``, its phrases and ``PALETTE``."""
    return TASKS[TASK_NAMES[task]].phrases[phrase].format(colour=COLOURS[colour])


def all_instructions(tasks: list[TaskName]) -> tuple[str, ...]:
    """Every instruction that episodes of ``tasks`` can carry."""
    return tuple(
        phrase.format(colour=colour)
        for name in TASK_NAMES
        if name in tasks
        for phrase in TASKS[name].phrases
        for colour in COLOURS
    )


def pad_half(config: TabletopConfig) -> float:
    """Half the side of the pad: a block whose centre is within tolerance of the pad's lies on it."""
    return config.tolerance + 0.03


def distance(a: Floats, b: Floats) -> Floats:
    """Euclidean over the last axis of size 2, written out so that batching cannot change a bit."""
    dx, dy = a[..., 0] - b[..., 0], a[..., 1] - b[..., 1]
    length: Floats = np.sqrt(dx * dx + dy * dy)
    return length


def travel(a: Floats, b: Floats) -> Floats:
    """Longest of the two axes: what an arm with one speed limit per axis needs."""
    longest: Floats = np.maximum(np.abs(a[..., 0] - b[..., 0]), np.abs(a[..., 1] - b[..., 1]))
    return longest


def mix(keys: Keys, counter: int | NDArray[np.uint64]) -> Keys:
    """Counter-based random bits: SplitMix64's output function (Steele, Lea & Flood 2014) of ``keys`` and ``counter``."""
    with np.errstate(over="ignore"):
        z: Keys = keys + (np.asarray(counter, np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(keys: Keys, stream: int, count: int) -> Floats:
    """``[n, count]`` in [0, 1): a function of each key and ``stream`` alone, never of the other worlds."""
    bits = mix(mix(keys, stream)[:, None], np.arange(count, dtype=np.uint64)[None])
    return ((bits >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)


@dataclass
class Starts:
    """Where n episodes begin."""

    task: NDArray[np.int64]
    phrase: NDArray[np.int64]
    colours: NDArray[np.int64]
    """``[n, B]``"""
    gripper: Floats
    """``[n, 2]``"""
    blocks: Floats
    """``[n, B, 2]``"""
    pad: Floats
    """``[n, 2]``; ``ABSENT`` where the task has none."""


def draw_starts(config: TabletopConfig, keys: Keys, tasks: NDArray[np.int64] | None = None) -> Starts:
    """Start of one episode per key ``[n]``; the same key gives the same start whatever the others are.

    ``tasks`` ``[n]`` (indices into ``TASKS``) are drawn among the configured ones unless they are given.

    Raises:
        EnvError: the configured blocks do not fit on the table.
    """
    n = len(keys)
    offered = np.array([TASK_NAMES.index(name) for name in config.tasks], np.int64)
    picks = uniform(keys, 0, 2)
    task = offered[(picks[:, 0] * len(offered)).astype(np.int64)] if tasks is None else tasks
    assert np.isin(task, offered).all(), "a task was asked for that the configuration does not offer"
    phrases = np.array([len(TASKS[name].phrases) for name in TASK_NAMES], np.int64)
    colours = np.argsort(uniform(keys, 1, len(COLOURS)), axis=1, kind="stable")[:, : config.blocks].astype(
        np.int64
    )
    starts = Starts(
        task=task,
        phrase=(picks[:, 1] * phrases[task]).astype(np.int64),
        colours=colours,
        gripper=np.zeros((n, 2), np.float32),
        blocks=np.zeros((n, config.blocks, 2), np.float32),
        pad=np.zeros((n, 2), np.float32),
    )
    missing = np.arange(n)
    for attempt in range(ATTEMPTS):
        layout = _Layout(config, keys[missing], task[missing], attempt)
        fits = layout.draw()
        done = missing[fits]
        starts.gripper[done], starts.blocks[done] = layout.gripper[fits], layout.blocks[fits]
        starts.pad[done] = layout.pad[fits]
        missing = missing[~fits]
        if not len(missing):
            return starts
    raise EnvError(
        f"{config.blocks} blocks of radius {config.block_radius} do not fit on the table",
        where="env.blocks",
        remedy="use fewer or smaller blocks, or a smaller tolerance (it sizes the pad)",
    )


class _Layout:
    """One attempt at placing everything in n worlds: each thing takes its first candidate that fits the earlier ones."""

    def __init__(self, config: TabletopConfig, keys: Keys, task: NDArray[np.int64], attempt: int) -> None:
        self.config = config
        self.keys = keys
        self.fits = np.ones(len(keys), np.bool_)
        self._stream = 16 + attempt * 16
        kinds = [TASKS[name] for name in TASK_NAMES]
        self._has_pad = np.array([kind.pad for kind in kinds])[task]
        self._margin = np.array([kind.margin for kind in kinds], np.float32)[task]
        self._from_target = np.array(
            [2 * config.tolerance if kind.pad else max(REACH_START, 2 * config.tolerance) for kind in kinds],
            np.float32,
        )[task]
        self.gripper = np.zeros((len(keys), 2), np.float32)
        self.pad = np.full((len(keys), 2), ABSENT, np.float32)
        self.blocks = np.zeros((len(keys), config.blocks, 2), np.float32)

    def draw(self) -> Bools:
        """Place all; ``[n]``: everything found its place."""
        config = self.config
        reach = max(TRAVEL_SHARE * config.max_episode_steps * config.arm_speed, LEAST_TRAVEL)
        on_pad = pad_half(config) + config.block_radius + GAP
        edge = np.full(len(self.keys), config.block_radius + GAP, np.float32)
        with_pad = self._has_pad[:, None]

        pad = self._place(np.full_like(edge, 0.2), lambda c: np.ones(c.shape[:2], np.bool_))
        self.pad = np.where(with_pad, pad, self.pad)
        target = self._place(
            self._margin,
            lambda c: (
                ~with_pad
                | ((distance(c, self.pad[:, None]) > on_pad) & (travel(c, self.pad[:, None]) < reach * 0.7))
            ),
        )
        self.blocks[:, 0] = target
        carry = np.where(self._has_pad, travel(target, self.pad), 0)[:, None]
        self.gripper = self._place(
            edge,
            lambda c: (
                (distance(c, target[:, None]) > self._from_target[:, None])
                & (~with_pad | (travel(c, target[:, None]) + carry < reach))
            ),
        )
        for slot in range(1, config.blocks):
            self.blocks[:, slot] = self._place(edge, self._clear_of(slot, on_pad))
        return self.fits

    def _clear_of(self, slot: int, on_pad: float) -> Callable[[Floats], Bools]:
        apart = 2 * self.config.block_radius + GAP

        def accept(candidates: Floats) -> Bools:
            earlier = distance(candidates[:, :, None], self.blocks[:, None, :slot]).min(axis=2)
            fits: Bools = (earlier > apart) & (distance(candidates, self.pad[:, None]) > on_pad)
            return fits

        return accept

    def _place(self, margin: Floats, accept: Callable[[Floats], Bools]) -> Floats:
        """First of C candidates ``[n, C, 2]`` inside the margin that ``accept`` ``[n, C]`` takes."""
        draws = uniform(self.keys, self._stream, 2 * CANDIDATES).reshape(-1, CANDIDATES, 2)
        self._stream += 1
        low = margin[:, None, None]
        candidates: Floats = low + (1 - 2 * low) * draws
        accepted = accept(candidates)
        self.fits &= accepted.any(axis=1)
        first: Floats = candidates[np.arange(len(candidates)), accepted.argmax(axis=1)]
        return first


def succeeded(
    config: TabletopConfig,
    task: NDArray[np.int64],
    gripper: Floats,
    target: Floats,
    pad: Floats,
    holding: Bools,
) -> Bools:
    """``[n]``: reach: gripper within tolerance of the target; else the target rests within tolerance of the pad."""
    has_pad = np.array([TASKS[name].pad for name in TASK_NAMES])[task]
    on_pad = (distance(target, pad) <= config.tolerance) & ~holding
    return np.where(has_pad, on_pad, distance(gripper, target) <= config.tolerance)
