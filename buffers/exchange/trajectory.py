"""One episode env step by env step, as other formats hold it, and its way into a record of decisions.

Shape letters: N env steps, T decisions, K actions per chunk, D action dimensions, P proprio numbers, H and W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from buffers.records import Images, Record, RecordSpec
from configs.errors import DataError

Encode = Callable[[NDArray[np.float32]], NDArray[np.int16]]
"""Actions ``[..., D]`` in env units to tokens ``[..., D]``."""


@dataclass
class Trajectory:
    """N actions between N + 1 observations."""

    images: Images
    """camera: ``[N+1, H, W, 3]`` uint8"""
    proprio: NDArray[np.float32]
    """``[N+1, P]``"""
    actions: NDArray[np.float32]
    """``[N, D]``, env units"""
    rewards: NDArray[np.float32]
    """``[N]``"""
    instruction: str
    task: str
    success: bool | None
    """None where the dataset does not say."""
    terminated: bool
    where: str
    """Names the episode in an error."""

    @property
    def length(self) -> int:
        """N."""
        return len(self.actions)

    def check(self) -> None:
        """Raise DataError unless there is an action, everything is finite, and observations and actions go together."""
        if not self.length:
            raise DataError(
                "the episode has no action", where=self.where, remedy="leave it out of the dataset"
            )
        rows = {name: len(frames) for name, frames in self.images.items()} | {"proprio": len(self.proprio)}
        for name, count in rows.items():
            assert count == self.length + 1, f"{self.where}: {count} rows of {name}, {self.length} actions"
        for name in ("proprio", "actions", "rewards"):
            if not np.isfinite(getattr(self, name)).all():
                raise DataError(
                    f"{name} has NaN or infinite numbers", where=self.where, remedy="leave that episode out"
                )

    def to_record(self, spec: RecordSpec, encode: Encode, *, gamma: float, episode_id: int) -> Record:
        """Decisions of ``spec.replan`` env steps each, as if a policy had made them.

        Tokens beyond what a decision executed are those of the actions that followed, the last one repeated at the
        end. Behaviour log-probabilities and values are unknown and 0, as for every demonstration.

        Args:
            spec: Shapes that the record must have.
            encode: Tokens of actions.
            gamma: Discount per env step with which rewards inside a decision are summed.
            episode_id: The record's.

        Raises:
            DataError: the trajectory has other cameras, sizes or dimensions than ``spec``, is longer, or does not say
                whether it succeeded.
        """
        self.check()
        if self.success is None:
            raise DataError(
                "the dataset does not record success", where=self.where,
                remedy="python -m platform.demos import with success=all or success=none",
            )  # fmt: skip
        self._require(spec)
        steps = np.arange(0, self.length, spec.replan)
        ahead = steps[:, None] + np.arange(spec.chunk)
        valid = (ahead < self.length) & (np.arange(spec.chunk) < spec.replan)
        inside = np.minimum(ahead, self.length - 1)
        discounts = gamma ** np.arange(spec.chunk)
        seen = [*steps, self.length]
        record = Record(
            images={name: frames[seen] for name, frames in self.images.items()},
            proprio=self.proprio[seen].astype(np.float32),
            instruction=self.instruction,
            tokens=encode(self.actions)[inside].astype(np.int16),
            log_probs=np.zeros((*ahead.shape, spec.action_dim), np.float32),
            valid=valid,
            rewards=(self.rewards[inside] * discounts * valid).sum(axis=1).astype(np.float32),
            values=np.zeros(len(steps), np.float32),
            version=np.zeros(len(steps), np.int32),
            terminated=self.terminated,
            truncated=not self.terminated,
            success=self.success,
            task=self.task,
            seed=episode_id,
            episode_id=episode_id,
            source="demonstration",
        )
        record.check(spec, where=self.where)
        return record

    def _require(self, spec: RecordSpec) -> None:
        cameras = {name: frames.shape[1:3] for name, frames in self.images.items()}
        found: dict[str, tuple[object, object]] = {
            "cameras": (_words(cameras), _words(spec.cameras)),
            "proprio_dim": (self.proprio.shape[1], spec.proprio_dim),
            "action_dim": (self.actions.shape[1], spec.action_dim),
        }
        for name, (theirs, ours) in found.items():
            if theirs != ours:
                raise DataError(f"{name} is {theirs}, expected {ours}", where=self.where, remedy=REMEDY)
        decisions = math.ceil(self.length / spec.replan)
        if decisions > spec.max_decisions:
            raise DataError(
                f"{self.length} env steps are {decisions} decisions, an episode has at most {spec.max_decisions}",
                where=self.where, remedy="raise env.max_episode_steps",
            )  # fmt: skip


REMEDY = "set env to the one that was recorded, or see cameras= and camera_size= of python -m platform.demos import"


def _words(cameras: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {size[0]}x{size[1]}" for name, size in sorted(cameras.items()))
