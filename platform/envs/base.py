"""The contract between environments, real or imagined, and the code that collects from them.

A *decision environment* takes one action chunk per call in each of N slots. It never resets by itself, so the true
final observation of an episode is always what ``step`` returned last.

``reset`` and ``step`` answer when every slot that was asked for is done. ``begin_reset``, ``begin`` and ``ready`` do the
same without that wait: what is begun goes on by itself where the environment overlaps, and ``ready`` tells which slots
have landed. A caller uses either the pair or the three, not both while something is under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from buffers.records import Images


@dataclass(frozen=True)
class EnvSpec:
    """What an environment offers; decides whether a policy, a dataset and models fit it."""

    name: str
    cameras: dict[str, tuple[int, int]]
    proprio_dim: int
    action_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    tasks: tuple[str, ...]
    instructions: tuple[str, ...]
    """Every instruction that can occur: the small policy's vocabulary is made of their words."""
    max_episode_steps: int
    """Env steps."""


@dataclass
class Observation:
    """What the policy sees in n slots: exactly the same keys, dtypes and ranges in both worlds."""

    images: Images
    """camera: ``[n, H, W, 3]`` uint8"""
    proprio: NDArray[np.float32]
    """``[n, P]``"""
    instructions: list[str]
    keys: NDArray[np.int64] | None = None
    """``[n, 3]``: sample, attempt and decision that each row asks for; its sampling noise is drawn from them alone."""
    between: Images | None = None
    """camera: ``[n, R-1, H, W, 3]`` uint8 of the env steps since the decision before, where they are kept."""
    proprio_between: NDArray[np.float32] | None = None
    """``[n, R-1, P]``, likewise."""

    def take(self, index: NDArray[np.int64]) -> Observation:
        """Rows ``index``."""
        return Observation(
            {name: frames[index] for name, frames in self.images.items()},
            self.proprio[index],
            [self.instructions[i] for i in index],
            None if self.keys is None else self.keys[index],
            None if self.between is None else {name: x[index] for name, x in self.between.items()},
            None if self.proprio_between is None else self.proprio_between[index],
        )

    @staticmethod
    def joined(parts: list[Observation]) -> Observation:
        """One after the other, without keys; all of them have what lies between decisions, or none."""
        between = [part.between for part in parts if part.between is not None]
        proprio = [part.proprio_between for part in parts if part.proprio_between is not None]
        assert len(between) == len(proprio) in (0, len(parts))
        return Observation(
            {name: np.concatenate([part.images[name] for part in parts]) for name in parts[0].images},
            np.concatenate([part.proprio for part in parts]),
            [text for part in parts for text in part.instructions],
            between={name: np.concatenate([x[name] for x in between]) for name in between[0]} if between else None,
            proprio_between=np.concatenate(proprio) if proprio else None,
        )  # fmt: skip


@dataclass
class StepResult:
    """Outcome of one chunk in n slots."""

    observation: Observation
    """After the chunk, or where the episode ended inside it."""
    rewards: NDArray[np.float32]
    """``[n, K]`` per env step; zero where not executed."""
    valid: NDArray[np.bool_]
    """``[n, K]``: the action was executed."""
    terminated: NDArray[np.bool_]
    """``[n]``"""
    truncated: NDArray[np.bool_]
    """``[n]``; never true together with ``terminated``."""
    success: NDArray[np.bool_]
    """``[n]``: success happened in this chunk."""

    def take(self, index: NDArray[np.int64]) -> StepResult:
        """Rows ``index``."""
        return StepResult(
            self.observation.take(index), self.rewards[index], self.valid[index], self.terminated[index],
            self.truncated[index], self.success[index],
        )  # fmt: skip

    @staticmethod
    def joined(parts: list[StepResult]) -> StepResult:
        """One after the other."""
        return StepResult(
            Observation.joined([part.observation for part in parts]),
            np.concatenate([part.rewards for part in parts]),
            np.concatenate([part.valid for part in parts]),
            np.concatenate([part.terminated for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            np.concatenate([part.success for part in parts]),
        )

    def chunk_rewards(self, gamma: float) -> NDArray[np.float32]:
        """``[n]``: rewards of the executed env steps, summed with the env-step discount ``gamma``.

        What was not executed may be anything.
        """
        discounts = gamma ** np.arange(self.rewards.shape[1])
        executed = np.where(self.valid, self.rewards, 0.0)
        total: NDArray[np.float32] = (executed * discounts).sum(axis=1).astype(np.float32)
        return total


@dataclass
class Landed:
    """Slots in which what was begun is done: an episode has started, or a chunk was executed."""

    slots: NDArray[np.int64]
    observation: Observation
    """After the reset, or ``result.observation``."""
    result: StepResult | None
    """None after a reset."""


class DecisionEnv(Protocol):
    """N slots stepped by whole decisions."""

    spec: EnvSpec
    num_slots: int
    overlaps: bool
    """Slots go on by themselves between ``begin`` and ``ready``; else the work is done inside the call."""

    def reset(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], tasks: list[str] | None = None
    ) -> Observation:
        """Start an episode in each of ``slots``; the same seed and task give the same start. Observation of those.

        ``tasks`` chooses among ``spec.tasks``, one per slot; without it the seed does.
        """
        ...

    def step(self, slots: NDArray[np.int64], actions: NDArray[np.float32]) -> StepResult:
        """Execute ``actions`` ``[n, K, D]`` (env units) in ``slots``; rows of the answer follow ``slots``."""
        ...

    def begin_reset(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], tasks: list[str] | None = None
    ) -> None:
        """``reset`` without waiting."""
        ...

    def begin(self, slots: NDArray[np.int64], actions: NDArray[np.float32]) -> None:
        """``step`` without waiting."""
        ...

    def ready(self, timeout_s: float | None) -> list[Landed]:
        """What has landed since the last call, after at most ``timeout_s`` seconds of waiting for the first.

        None waits until everything begun has landed and answers in the order of the slots, whoever was first.

        Raises:
            RoleFailure: a slot's environment raised; names it. Never a failed episode.
        """
        ...

    def tasks(self, slots: NDArray[np.int64]) -> list[str]:
        """Task of the running episode in each slot."""
        ...

    def state(self) -> dict[str, Any] | None:
        """Arrays and numbers that ``load`` continues from bit for bit; None where the environment cannot."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        ...

    def close(self) -> None:
        """Free what the environment holds."""
        ...


class Immediate(ABC):
    """``begin`` and ``ready`` of an environment that computes: the work is done by the call that begins it."""

    overlaps = False

    def __init__(self) -> None:
        self._landed: list[Landed] = []

    @abstractmethod
    def reset(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], tasks: list[str] | None = None
    ) -> Observation:
        """As ``DecisionEnv.reset``."""

    @abstractmethod
    def step(self, slots: NDArray[np.int64], actions: NDArray[np.float32]) -> StepResult:
        """As ``DecisionEnv.step``."""

    def begin_reset(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], tasks: list[str] | None = None
    ) -> None:
        """Reset now; ``ready`` tells."""
        self._landed.append(Landed(slots, self.reset(slots, seeds, tasks), None))

    def begin(self, slots: NDArray[np.int64], actions: NDArray[np.float32]) -> None:
        """Step now; ``ready`` tells."""
        result = self.step(slots, actions)
        self._landed.append(Landed(slots, result.observation, result))

    def ready(self, timeout_s: float | None) -> list[Landed]:
        """Everything begun since the last call: there is nothing to wait for."""
        landed, self._landed = self._landed, []
        return landed
