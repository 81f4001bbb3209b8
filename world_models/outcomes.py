"""Imagined frames with the real outcome's label: what M_reward must judge once the models work together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from configs.reward_model import RewardModelConfig
from world_models.base import InstructionEncoder, ModelSpec, array_to_torch
from world_models.calibration import judge_logits
from world_models.env_steps import past_of
from world_models.obs_model import ObservationModel
from world_models.quality import JudgedWindows
from world_models.reward_model import SuccessModel
from world_models.training import LabelledFrames


@dataclass
class OutcomeFrames:
    """Labelled frames, as a buffer's ``outcomes`` are."""

    frames: dict[str, NDArray[np.uint8]]
    """camera: ``[n, H, W, 3]``"""
    instructions: list[str]
    label: NDArray[np.float32]
    """``[n]``: 1 where the decision that led to the frame brought success."""

    def take(self, rows: NDArray[np.int64]) -> OutcomeFrames:
        """Rows ``rows``."""
        return OutcomeFrames(
            {name: frame[rows] for name, frame in self.frames.items()},
            [self.instructions[i] for i in rows],
            self.label[rows],
        )

    @staticmethod
    def joined(parts: list[LabelledFrames]) -> OutcomeFrames:
        """One after the other."""
        return OutcomeFrames(
            {name: np.concatenate([part.frames[name] for part in parts]) for name in parts[0].frames},
            [text for part in parts for text in part.instructions],
            np.concatenate([part.label for part in parts]).astype(np.float32),
        )


@torch.no_grad()
def imagine_outcomes(
    obs_model: ObservationModel,
    windows: JudgedWindows,
    *,
    encode: InstructionEncoder,
    generator: torch.Generator,
) -> OutcomeFrames:
    """Every decision of the windows, imagined open loop from the real start under the recorded actions.

    Rows that a record no longer has are left out. The label says whether that very decision brought success.
    """
    device = next(obs_model.parameters()).device
    steps = windows.mask.shape[1]
    history, proprio = obs_model.start(past_of(windows, np.arange(len(windows.mask))), device)
    tokens, valid = array_to_torch(windows.tokens, device), array_to_torch(windows.valid, device)
    words = torch.from_numpy(encode(windows.instructions)).to(device)
    brought = windows.success_within[:, 1:] & ~windows.success_within[:, :-1]
    parts: list[LabelledFrames] = []
    for step in range(steps):
        rows = np.flatnonzero(windows.mask[:, step])
        if not len(rows):
            break
        on = torch.from_numpy(rows).to(device)
        *_, (history[on], proprio[on]) = obs_model.unroll(
            history[on], proprio[on], tokens[on, step], words[on], generator=generator, valid=valid[on, step]
        )
        frames = {name: frame.cpu().numpy() for name, frame in obs_model.frames(history[on][:, -1]).items()}
        said = [windows.instructions[i] for i in rows]
        parts.append(OutcomeFrames(frames, said, brought[rows, step].astype(np.float32)))
    return OutcomeFrames.joined(parts)


class OutcomePool:
    """The newest imagined outcomes, drawn in equal shares of success and failure and joined to real ones."""

    def __init__(
        self,
        spec: ModelSpec,
        config: RewardModelConfig,
        *,
        encode: InstructionEncoder,
        seed: int,
        device: torch.device,
    ) -> None:
        self._config = config
        self._encode = encode
        self._torch = torch.Generator(device).manual_seed(seed)
        self._numpy = np.random.default_rng(seed)
        self._frames = {
            name: np.zeros((config.imagined_pool, *size, 3), np.uint8) for name, size in spec.cameras.items()
        }
        self._label = np.zeros(config.imagined_pool, np.float32)
        self._believed = np.zeros(config.imagined_pool, np.bool_)
        self._instructions = [""] * config.imagined_pool
        self._next = 0
        self.size = 0

    @property
    def real_share(self) -> int:
        """Real frames that a batch needs."""
        return self._config.batch - round(self._config.batch * self._config.imagined_fraction)

    @property
    def hard_share(self) -> float:
        """Share of the pool's failures that were taken for success."""
        failures = self._label[: self.size] < 0.5
        return float(self._believed[: self.size][failures].mean()) if failures.any() else 0.0

    def add(
        self, obs_model: ObservationModel, windows: JudgedWindows, judge: SuccessModel | None = None
    ) -> None:
        """Imagine the windows and keep their frames; the oldest leave. ``judge`` says which it takes for success."""
        fresh = imagine_outcomes(obs_model, windows, encode=self._encode, generator=self._torch)
        count = min(len(fresh.label), len(self._label))
        at = (self._next + np.arange(count)) % len(self._label)
        for name, frame in fresh.frames.items():
            self._frames[name][at] = frame[:count]
        self._label[at] = fresh.label[:count]
        self._believed[at] = False
        if judge is not None:
            self._believed[at] = judge_logits(judge, fresh, self._encode)[:count] > 0
        for place, text in zip(at.tolist(), fresh.instructions, strict=False):
            self._instructions[place] = text
        self._next = (self._next + count) % len(self._label)
        self.size = min(self.size + count, len(self._label))

    def joined(self, real: LabelledFrames) -> OutcomeFrames:
        """``real`` with imagined frames to a full batch; while the pool lacks successes or failures, ``real`` alone.

        ``hard_negatives`` of the failures are drawn among those that were taken for success, as far as there are any.
        """
        wanted = self._config.batch - len(real.label)
        label = self._label[: self.size] > 0.5
        success, failure = np.flatnonzero(label), np.flatnonzero(~label)
        if wanted <= 0 or not len(success) or not len(failure):
            return OutcomeFrames.joined([real])
        half = wanted // 2
        hard = np.flatnonzero(~label & self._believed[: self.size])
        many = round(self._config.hard_negatives * (wanted - half)) if len(hard) else 0
        parts = [self._numpy.choice(success, half), self._numpy.choice(failure, wanted - half - many)]
        rows = np.concatenate([*parts, self._numpy.choice(hard, many)] if many else parts)
        pool = OutcomeFrames(self._frames, self._instructions, self._label)
        return OutcomeFrames.joined([real, pool.take(rows)])

    def state(self) -> dict[str, Any]:
        """Frames, labels and random states."""
        return {
            "frames": {name: frame[: self.size].copy() for name, frame in self._frames.items()},
            "label": self._label[: self.size].copy(),
            "believed": self._believed[: self.size].copy(),
            "instructions": self._instructions[: self.size],
            "next": self._next,
            "torch": self._torch.get_state(),
            "numpy": self._numpy.bit_generator.state,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.size = len(state["label"])
        for name, frame in state["frames"].items():
            self._frames[name][: self.size] = frame
        self._label[: self.size] = state["label"]
        self._believed[: self.size] = state["believed"]
        self._instructions[: self.size] = list(state["instructions"])
        self._next = int(state["next"])
        self._torch.set_state(state["torch"])
        self._numpy.bit_generator.state = state["numpy"]
