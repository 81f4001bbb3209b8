"""Decisions of one running episode, collected until it is a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from buffers.records import Record
from buffers.samples import Admitted

from .envs.base import Observation
from .inference import Decisions


@dataclass
class EpisodeBuilder:
    """One slot's episode so far: frames and proprio have one row more than the decisions."""

    sample_id: int
    seed: int
    task: str
    instruction: str
    attempt: int = 0
    frames: dict[str, list[NDArray[np.uint8]]] = field(default_factory=dict)
    proprio: list[NDArray[np.float32]] = field(default_factory=list)
    between: dict[str, list[NDArray[np.uint8]]] = field(default_factory=dict)
    proprio_between: list[NDArray[np.float32]] = field(default_factory=list)
    tokens: list[NDArray[np.int16]] = field(default_factory=list)
    log_probs: list[NDArray[np.float32]] = field(default_factory=list)
    valid: list[NDArray[np.bool_]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    episode_id: int = -1
    """The sample that the episode began with; -1 is ``sample_id``: it has not been cut yet."""
    past_return: float = 0.0
    """Rewards of the segments that were cut off."""
    past_steps: int = 0
    """Their env steps."""

    @property
    def key(self) -> tuple[int, int, int]:
        """What the next decision's noise is drawn from: sample, attempt, index."""
        return self.sample_id, self.attempt, len(self.tokens)

    def see(self, observation: Observation, row: int) -> None:
        """Append row ``row`` of an observation."""
        for name, frames in observation.images.items():
            self.frames.setdefault(name, []).append(frames[row])
        self.proprio.append(observation.proprio[row])
        for name, frames in (observation.between or {}).items():
            self.between.setdefault(name, []).append(frames[row])
        if observation.proprio_between is not None:
            self.proprio_between.append(observation.proprio_between[row])

    def latest(self) -> Observation:
        """What the policy sees next, as one row, with the key of the decision that it asks for."""
        images = {name: frames[-1][None] for name, frames in self.frames.items()}
        return Observation(images, self.proprio[-1][None], [self.instruction], np.array([self.key], np.int64))

    def decide(self, decisions: Decisions, row: int, valid: NDArray[np.bool_], reward: float) -> None:
        """Append what was decided, what of it was executed and what it earned."""
        self.tokens.append(decisions.tokens[row])
        self.log_probs.append(decisions.log_probs[row])
        self.values.append(float(decisions.values[row]))
        self.version.append(decisions.version)
        self.valid.append(valid)
        self.rewards.append(reward)

    def finish(
        self,
        *,
        terminated: bool,
        truncated: bool,
        success: bool,
        source: Literal["real", "demonstration"] = "real",
        is_last: bool = True,
    ) -> Record:
        """The record of the episode since its start, or since it was cut."""
        return Record(
            images={name: np.stack(frames) for name, frames in self.frames.items()},
            proprio=np.stack(self.proprio).astype(np.float32),
            instruction=self.instruction,
            tokens=np.stack(self.tokens).astype(np.int16),
            log_probs=np.stack(self.log_probs).astype(np.float32),
            valid=np.stack(self.valid),
            rewards=np.array(self.rewards, np.float32),
            values=np.array(self.values, np.float32),
            version=np.array(self.version, np.int32),
            terminated=terminated,
            truncated=truncated,
            success=success,
            task=self.task,
            seed=self.seed,
            attempt=self.attempt,
            episode_id=self.sample_id if self.episode_id < 0 else self.episode_id,
            source=source,
            is_first=self.episode_id < 0,
            is_last=is_last,
            between={name: np.stack(frames) for name, frames in self.between.items()},
            proprio_between=np.stack(self.proprio_between) if self.proprio_between else None,
        )

    def cut(self) -> Record:
        """What there is so far, as a segment that bootstraps from the newest observation. The episode goes on from there
        once ``go_on`` gives it a sample; until then ``sample_id`` is -1.
        """
        record = self.finish(terminated=False, truncated=False, success=False, is_last=False)
        self.episode_id, self.sample_id = record.episode_id, -1
        self.past_return += float(record.rewards.sum())
        self.past_steps += record.env_steps
        self.frames = {name: frames[-1:] for name, frames in self.frames.items()}
        self.proprio = self.proprio[-1:]
        self.between = {name: frames[-1:] for name, frames in self.between.items()}
        self.proprio_between = self.proprio_between[-1:]
        for column in (self.tokens, self.log_probs, self.valid, self.rewards, self.values, self.version):
            column.clear()
        return record

    @property
    def is_cut(self) -> bool:
        """Whether it waits for a sample to go on in."""
        return self.sample_id < 0

    def go_on(self, sample: Admitted) -> None:
        """The episode after a cut fills ``sample``."""
        self.sample_id, self.attempt = sample.sample_id, sample.attempt

    def state(self) -> dict[str, Any]:
        """As a tree."""
        return {
            **vars(self),
            "frames": {name: list(frames) for name, frames in self.frames.items()},
            "between": {name: list(frames) for name, frames in self.between.items()},
        }
