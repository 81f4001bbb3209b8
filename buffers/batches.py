"""What a replay buffer hands out: plain dataclasses of arrays, fit for any remote call.

Shape letters: B samples, L history frames, S steps (decisions), K actions per chunk, D action dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from buffers.records import Images, RecordBatch
from buffers.samples import Traffic


@dataclass
class Lease:
    """Samples lent to the policy learner until it commits or releases them."""

    lease_id: int
    ids: list[int]
    batch: RecordBatch
    """In the order of ``ids``."""
    traffic: Traffic = field(default_factory=Traffic)
    """Since the lease before."""


@dataclass
class WindowBatch:
    """Windows around decisions t, for the observation model. No window crosses a record's border.

    Frame ``L - 1`` is the observation of decision t; frames before the record's first repeat that one, frames past its
    end repeat the last one.
    """

    frames: Images
    """camera: ``[B, L+S, H, W, 3]`` uint8"""
    proprio: NDArray[np.float32]
    """``[B, L+S, P]``"""
    tokens: NDArray[np.int16]
    """``[B, S, K, D]`` of decisions t .. t+S-1; where ``mask`` is false they repeat the record's last decision."""
    valid: NDArray[np.bool_]
    """``[B, S, K]``: the action was executed."""
    mask: NDArray[np.bool_]
    """``[B, S]``: the decision lies in the record, so frame ``L + s`` is what really followed."""
    success_within: NDArray[np.bool_]
    """``[B, S+1]``: the record succeeds within h decisions from t, for h = 0..S."""
    instructions: list[str]
    ids: NDArray[np.int64]
    """``[B]`` records."""
    t: NDArray[np.int64]
    """``[B]`` index of the first decision in its record."""
    probability: NDArray[np.float64] | None = None
    """``[B]``: of drawing this window, where the buffer draws by priority."""
    between: Images = field(default_factory=dict)
    """camera: ``[B, L+S, R-1, H, W, 3]`` uint8, where they are kept: env steps before each frame, since the decision before."""
    proprio_between: NDArray[np.float32] | None = None
    """``[B, L+S, R-1, P]``, likewise."""


@dataclass
class StartBatch:
    """Real states that imagination starts from."""

    frames: Images
    """camera: ``[B, L, H, W, 3]`` uint8; the last is the start's own observation."""
    proprio: NDArray[np.float32]
    """``[B, L, P]``"""
    instructions: list[str]
    tasks: list[str]
    seeds: NDArray[np.int64]
    """``[B]``"""
    ids: NDArray[np.int64]
    """``[B]`` records."""
    t: NDArray[np.int64]
    """``[B]`` decision index in the record."""
    remaining: NDArray[np.int64]
    """``[B]`` decisions from t to the record's end."""
    success_within: NDArray[np.bool_]
    """``[B, horizon+1]``: the real continuation succeeds within h decisions, for h = 0..horizon."""
    demonstration: NDArray[np.bool_]
    """``[B]``: an expert, not the policy, acted after the start."""
    kinds: dict[str, int] = field(default_factory=dict)
    """How many rows are starts of which kind, in their order."""
    between: Images = field(default_factory=dict)
    """camera: ``[B, L, R-1, H, W, 3]`` uint8, where they are kept: env steps before each frame, since the decision before."""
    proprio_between: NDArray[np.float32] | None = None
    """``[B, L, R-1, P]``, likewise."""


@dataclass
class OutcomeBatch:
    """Frames with the question whether they show success, for the reward model."""

    frames: Images
    """camera: ``[B, H, W, 3]`` uint8"""
    proprio: NDArray[np.float32]
    """``[B, P]``"""
    instructions: list[str]
    label: NDArray[np.float32]
    """``[B]``: 1 for the last observation of a successful record, 0 for every other one."""
