"""What a batch of imagined worlds went through, step by step, and the records that are made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from buffers.records import Images, Record, RecordSpec

if TYPE_CHECKING:
    from buffers.batches import StartBatch


@dataclass(frozen=True)
class Makers:
    """Under what a batch was imagined."""

    policy: int
    obs_model: int
    reward_model: int
    """Versions."""
    horizon: int


@dataclass
class Trace:
    """What happened in B imagined worlds."""

    images: list[Images]
    proprio: list[NDArray[np.float32]]
    tokens: list[NDArray[np.int16]] = field(default_factory=list)
    log_probs: list[NDArray[np.float32]] = field(default_factory=list)
    values: list[NDArray[np.float32]] = field(default_factory=list)
    rewards: list[NDArray[np.float32]] = field(default_factory=list)
    executed: list[NDArray[np.int64]] = field(default_factory=list)
    lengths: NDArray[np.int64] = field(init=False)
    """``[B]``: decisions that count."""
    terminated: NDArray[np.bool_] = field(init=False)
    failed: NDArray[np.bool_] = field(init=False)
    uncertain: NDArray[np.bool_] = field(init=False)
    """Ended where two draws of the next frame disagreed."""

    def __post_init__(self) -> None:
        count = len(self.proprio[0])
        self.lengths = np.zeros(count, np.int64)
        self.terminated, self.failed, self.uncertain = (np.zeros(count, np.bool_) for _ in range(3))

    def decide(self, tokens: Any, log_probs: Any, values: Any) -> None:
        """What the policy did; tensors."""
        self.tokens.append(tokens.cpu().numpy().astype(np.int16))
        self.log_probs.append(log_probs.float().cpu().numpy())
        self.values.append(values.float().cpu().numpy())

    def note(
        self, images: Images, proprio: NDArray[np.float32], rewards: NDArray[Any], info: dict[str, Any]
    ) -> None:
        """What came of it; ``info`` as the imagined environment gives it."""
        self.images.append(images)
        self.proprio.append(proprio)
        self.rewards.append(rewards.astype(np.float32))
        self.executed.append(info["executed"])
        self.lengths += info["stepped"] & ~info["failed"] & ~info["uncertain"]
        self.terminated |= info["is_success"]
        self.failed |= info["failed"]
        self.uncertain |= info["uncertain"]

    @property
    def env_steps(self) -> int:
        """Actions that were executed in decisions that count."""
        executed = np.stack(self.executed, axis=1)
        return int(executed[np.arange(executed.shape[1]) < self.lengths[:, None]].sum())

    def records(self, starts: StartBatch, makers: Makers, spec: RecordSpec, *, first_id: int) -> list[Record]:
        """Segments, with ids from ``first_id`` on; worlds whose models failed keep what they had before that, or nothing."""
        images = {name: np.stack([frame[name] for frame in self.images], axis=1) for name in self.images[0]}
        proprio = np.stack(self.proprio, axis=1).astype(np.float32)
        tokens, log_probs = np.stack(self.tokens, axis=1), np.stack(self.log_probs, axis=1)
        values, rewards = np.stack(self.values, axis=1), np.stack(self.rewards, axis=1)
        valid = np.arange(spec.chunk) < np.stack(self.executed, axis=1)[..., None]
        records = []
        for number, row in enumerate(np.flatnonzero(self.lengths > 0)):
            T = int(self.lengths[row])
            records.append(
                Record(
                    images={name: frames[row, : T + 1] for name, frames in images.items()},
                    proprio=proprio[row, : T + 1],
                    instruction=starts.instructions[row],
                    tokens=tokens[row, :T],
                    log_probs=log_probs[row, :T],
                    valid=valid[row, :T],
                    rewards=rewards[row, :T],
                    values=values[row, :T],
                    version=np.full(T, makers.policy, np.int32),
                    terminated=bool(self.terminated[row]),
                    truncated=not self.terminated[row],
                    success=bool(self.terminated[row]),
                    task=starts.tasks[row],
                    seed=int(starts.seeds[row]),
                    episode_id=first_id + number,
                    source="imagined",
                    is_first=bool(starts.t[row] == 0),
                    is_last=bool(self.terminated[row]),
                    horizon=makers.horizon,
                    obs_model_version=makers.obs_model,
                    reward_model_version=makers.reward_model,
                )
            )
        return records

    def metrics(self) -> dict[str, float]:
        """By metric name."""
        return {
            "imagine/return": float(np.sum(self.rewards) / len(self.lengths)),
            "imagine/success": float(self.terminated.mean()),
            "imagine/failed": float(self.failed.mean()),
            "imagine/uncertain": float(self.uncertain.mean()),
            "imagine/length": float(self.lengths.mean()),
        }


def gap_to_real(starts: StartBatch, trace: Trace, horizon: int, *, longest: int) -> float | None:
    """Imagined minus real success within the horizon, from the same starts. Only starts of the policy's own episodes
    that had a horizon's time left compare (``longest``: decisions of the longest episode); None when there are too few to
    say anything.
    """
    left = longest - starts.t
    # What was cut short in imagination alone did not have its horizon's time either.
    comparable = ~starts.demonstration & (left >= horizon) & ~trace.uncertain
    if comparable.sum() < max(8, len(comparable) // 8):
        return None
    real = starts.success_within[comparable, horizon]
    return float(trace.terminated[comparable].mean() - real.mean())
