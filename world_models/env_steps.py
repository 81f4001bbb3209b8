"""Windows of decisions as windows of env steps, for a model that takes each executed action for a step of its own.

Shape letters as in ``base``; N model steps of a window, M of them in a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Frames = dict[str, NDArray[np.uint8]]
Number = TypeVar("Number", np.uint8, np.float32)


class FinePast(Protocol):
    """Observations in a row, with what lay between them."""

    frames: Frames
    """camera: ``[B, T, H, W, 3]``"""
    proprio: NDArray[np.float32]
    """``[B, T, P]``"""
    between: Frames
    """camera: ``[B, T, M-1, H, W, 3]``"""
    proprio_between: NDArray[np.float32] | None
    """``[B, T, M-1, P]``"""


class TransitionWindows(FinePast, Protocol):
    """Windows of a buffer for M_obs: L history frames, S decisions; T = L + S."""

    tokens: NDArray[np.int16]
    """``[B, S, K, D]``"""
    valid: NDArray[np.bool_]
    """``[B, S, K]``: the action was executed."""
    mask: NDArray[np.bool_]
    """``[B, S]``: the record has this decision."""
    instructions: list[str]


@dataclass
class StepWindows:
    """Windows of L history frames and N model steps."""

    frames: Frames
    """camera: ``[B, L+N, H, W, 3]``"""
    proprio: NDArray[np.float32]
    """``[B, L+N, P]``"""
    tokens: NDArray[np.int16]
    """``[B, N, 1, D]``"""
    mask: NDArray[np.bool_]
    """``[B, N]``: the action was executed."""
    instructions: list[str]


@dataclass
class Past:
    """Observations in a row."""

    frames: Frames
    proprio: NDArray[np.float32]
    between: Frames
    proprio_between: NDArray[np.float32] | None


def past_of(windows: TransitionWindows, rows: NDArray[np.int64]) -> Past:
    """The history of windows ``rows``: what comes before their first decision is over."""
    end = windows.proprio.shape[1] - windows.mask.shape[1]
    between = windows.proprio_between
    return Past(
        {name: frame[rows, :end] for name, frame in windows.frames.items()},
        windows.proprio[rows, :end],
        {name: frame[rows, :end] for name, frame in windows.between.items()},
        None if between is None else between[rows, :end],
    )


def fine_frames(past: FinePast) -> tuple[Frames, NDArray[np.float32]]:
    """Every env step in a row: {camera: ``[B, T*M, H, W, 3]``} and proprio ``[B, T*M, P]``."""
    assert past.proprio_between is not None, "frames between decisions were not kept"
    frames = {name: _woven(past.between[name], frame) for name, frame in past.frames.items()}
    return frames, _woven(past.proprio_between, past.proprio)


def _woven(between: NDArray[Number], present: NDArray[Number]) -> NDArray[Number]:
    joined = np.concatenate([between, present[:, :, None]], axis=2)
    woven: NDArray[Number] = joined.reshape(joined.shape[0], -1, *joined.shape[3:])
    return woven


def step_windows(windows: TransitionWindows, *, model_steps: int, history: int, skip: int = 0) -> StepWindows:
    """The windows in steps of the model, from step ``skip`` of their first decision on, ``history`` frames back.

    The first ``skip`` steps of a decision are part of the past then.
    """
    decisions = windows.mask.shape[1]
    frames, proprio = fine_frames(windows)
    first = proprio.shape[1] - decisions * model_steps + skip - history
    assert first >= 0, "the windows do not reach as far back as the model looks"
    tokens = windows.tokens[:, :, :model_steps].reshape(len(windows.mask), -1, 1, windows.tokens.shape[-1])
    executed = (windows.valid[:, :, :model_steps] & windows.mask[..., None]).reshape(len(windows.mask), -1)
    return StepWindows(
        {name: frame[:, first:] for name, frame in frames.items()},
        proprio[:, first:],
        tokens[:, skip:],
        executed[:, skip:],
        windows.instructions,
    )
