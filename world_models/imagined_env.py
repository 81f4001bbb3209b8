"""A batch of imagined worlds, stepped together: M_obs says what is seen next, M_reward whether it is success."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from configs.errors import DataError
from world_models.base import Frames, InstructionEncoder, frames_to_torch, normalized_actions
from world_models.disagreement import disagreement
from world_models.obs_model import ObservationModel
from world_models.reward_model import SuccessModel

Images = dict[str, NDArray[np.uint8]]
Rows = NDArray[np.int64]


@dataclass
class ImaginedObservation:
    """What the policy sees in n worlds: the same keys, shapes, dtypes and ranges as in the real environment."""

    images: Images
    """camera: ``[n, H, W, 3]`` uint8"""
    proprio: NDArray[np.float32]
    """``[n, P]``"""
    instructions: list[str]


@dataclass
class ImaginedStep:
    """Outcome of one decision in all B worlds. Rows that had ended before repeat their last observation, reward 0."""

    observation: ImaginedObservation
    rewards: NDArray[np.float32]
    """``[B]``: as ``imagination.reward`` says."""
    probabilities: NDArray[np.float32]
    """``[B]``: p(o_{t+1})."""
    stepped: NDArray[np.bool_]
    """``[B]``: the world was running when the decision was made."""
    terminated: NDArray[np.bool_]
    """``[B]``: success probability reached the threshold in this step."""
    failed: NDArray[np.bool_]
    """``[B]``: the models gave numbers that are not finite; the row's step must not be used."""
    uncertain: NDArray[np.bool_]
    """``[B]``: two draws of the next frame disagreed, which ended the world; the row's step must not be used."""


def success_reward(before: Tensor, after: Tensor, threshold: float) -> Tensor:
    """1 where the threshold is reached; ``before`` and ``after`` are success probabilities ``[B]``."""
    return (after >= threshold).to(before.dtype)


def change_reward(before: Tensor, after: Tensor, _threshold: float) -> Tensor:
    """``p(o_{t+1}) - p(o_t)`` (AcceRL)."""
    return after - before


REWARDS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "success": success_reward,
    "change": change_reward,
}


class _Opened(NamedTuple):
    """Worlds at their starts."""

    words: Tensor
    """``[n, W]``"""
    history: Tensor
    """``[n, L, C, h, w]``"""
    proprio: Tensor
    """``[n, P]``"""
    probability: Tensor
    """``[n]``"""


class ImaginedWorlds:
    """Steps imagined worlds from real starts. Ended worlds leave the forward pass."""

    def __init__(
        self,
        obs_model: ObservationModel,
        reward_model: SuccessModel,
        *,
        encode: InstructionEncoder,
        threshold: float,
        reward: str,
        seed: int,
        max_disagreement: float | None = None,
    ) -> None:
        """``reward`` is a name of ``REWARDS``. Worlds end where two draws of a frame differ by more than
        ``max_disagreement`` (see ``disagreement``); with None one draw is made.
        """
        self.obs_model = obs_model
        self.reward_model = reward_model
        self.encode = encode
        self.threshold = threshold
        """Success probability at which a world terminates."""
        self._reward = REWARDS[reward]
        self._max_disagreement = max_disagreement
        self._device = next(obs_model.parameters()).device
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._instructions: list[str] = []
        self._words = torch.zeros(0)
        self._history = torch.zeros(0)
        self._proprio = torch.zeros(0)
        self._probability = torch.zeros(0)
        self._running = np.zeros(0, np.bool_)
        self._images: Images = {}

    @property
    def running(self) -> NDArray[np.bool_]:
        """``[B]``: worlds that go on: they neither terminated nor failed, and were not stopped."""
        return self._running.copy()

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """``[B]``: success probability of the present observation; right after ``reset`` p(o_0) of the real start."""
        return self._probability.cpu().numpy().copy()

    @torch.no_grad()
    def reset(
        self, frames: Images, proprio: NDArray[np.float32], instructions: list[str]
    ) -> ImaginedObservation:
        """Start B worlds from real observations.

        ``frames`` is {camera: uint8 ``[B, L, H, W, 3]``}, the present last; ``proprio`` ``[B, L, P]`` likewise.
        Raises DataError where shapes are not the models'.
        """
        self._check(frames, proprio)
        self._words, self._history, self._proprio, self._probability = self._open(
            frames, proprio, instructions
        )
        self._instructions = list(instructions)
        self._images = {name: frame[:, -1].copy() for name, frame in frames.items()}
        self._running = np.ones(len(instructions), np.bool_)
        return self.observe()

    @torch.no_grad()
    def restart(
        self, rows: Rows, frames: Images, proprio: NDArray[np.float32], instructions: list[str]
    ) -> None:
        """Start worlds ``rows`` ``[n]`` anew from n real observations; the others go on. As ``reset``."""
        self._check(frames, proprio)
        opened = self._open(frames, proprio, instructions)
        index = torch.from_numpy(rows).to(self._device)
        self._words[index], self._history[index] = opened.words, opened.history
        self._proprio[index], self._probability[index] = opened.proprio, opened.probability
        for name, frame in frames.items():
            self._images[name][rows] = frame[:, -1]
        for row, text in zip(rows.tolist(), instructions, strict=True):
            self._instructions[row] = text
        self._running[rows] = True

    @property
    def words(self) -> NDArray[np.int64]:
        """``[B, W]``: ids of the instructions' words."""
        ids: NDArray[np.int64] = self._words.cpu().numpy().copy()
        return ids

    def stop(self, rows: Rows) -> None:
        """Worlds ``rows`` end where they are."""
        self._running[rows] = False

    def reseed(self, seed: int) -> None:
        """Draw from ``seed`` from now on."""
        self._generator.manual_seed(seed)

    def _open(self, frames: Images, proprio: NDArray[np.float32], instructions: list[str]) -> _Opened:
        present = {name: frame[:, -1].copy() for name, frame in frames.items()}
        words = torch.from_numpy(self.encode(list(instructions))).to(self._device)
        return _Opened(
            words,
            self.obs_model.pixels(frames_to_torch(frames, self._device)),
            torch.from_numpy(proprio[:, -1].copy()).to(self._device),
            self.reward_model.probability(frames_to_torch(present, self._device), words),
        )

    @torch.no_grad()
    def step(self, tokens: NDArray[np.integer[Any]]) -> ImaginedStep:
        """One decision in every running world; ``tokens`` ``[B, K, D]`` for all B (rows of ended worlds are ignored)."""
        stepped = self._running.copy()
        count = len(stepped)
        rewards = np.zeros(count, np.float32)
        terminated, failed, uncertain = (np.zeros(count, np.bool_) for _ in range(3))
        rows = np.flatnonzero(stepped)
        if len(rows):
            index = torch.from_numpy(rows).to(self._device)
            before = self._probability[index]
            finite, certain = self._advance(index, torch.from_numpy(tokens[rows]).to(self._device))
            after = self._probability[index]
            failed[rows], uncertain[rows] = ~finite, finite & ~certain
            moved = finite & certain
            earned = self._reward(before, after, self.threshold)
            rewards[rows] = torch.where(torch.from_numpy(moved).to(before.device), earned, 0.0).cpu().numpy()
            terminated[rows] = (after >= self.threshold).cpu().numpy() & moved
            self._running = stepped & ~terminated & ~failed & ~uncertain
        return ImaginedStep(
            self.observe(), rewards, self.probabilities, stepped, terminated, failed, uncertain
        )

    def _advance(self, index: Tensor, tokens: Tensor) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Move worlds ``index`` on whose prediction is finite and certain. Returns which were finite, and certain."""
        words, history = self._words[index], self._history[index]
        actions = normalized_actions(tokens, self.obs_model.spec.bins)
        pixels, proprio = self.obs_model.imagine(
            history, self._proprio[index], actions, words, generator=self._generator
        )
        frames = self.obs_model.frames(pixels)
        probability = self.reward_model.probability(frames, words)
        finite = pixels.flatten(1).isfinite().all(1) & proprio.isfinite().all(1) & probability.isfinite()
        certain = self._certain(index, actions, frames)
        kept = finite & certain
        moved = index[kept]
        self._history[moved] = torch.cat([history[:, 1:], pixels[:, None]], dim=1)[kept]
        self._proprio[moved] = proprio[kept]
        self._probability[moved] = probability[kept]
        target = moved.cpu().numpy()
        keep = kept.cpu().numpy()
        for name, frame in frames.items():
            self._images[name][target] = frame.cpu().numpy()[keep]
        return finite.cpu().numpy(), certain.cpu().numpy()

    def _certain(self, index: Tensor, actions: Tensor, frames: Frames) -> Tensor:
        """Which of worlds ``index`` a second draw of the same step confirms, ``[n]`` bool."""
        if self._max_disagreement is None:
            return torch.ones(len(index), dtype=torch.bool, device=self._device)
        again, _ = self.obs_model.imagine(
            self._history[index], self._proprio[index], actions, self._words[index], generator=self._generator
        )
        return disagreement(frames, self.obs_model.frames(again)) <= self._max_disagreement

    def observe(self) -> ImaginedObservation:
        """The present observations of all worlds: copies, so that a record keeps what it was given."""
        return ImaginedObservation(
            {name: frame.copy() for name, frame in self._images.items()},
            self._proprio.cpu().numpy().copy(),
            list(self._instructions),
        )

    def _check(self, frames: Images, proprio: NDArray[np.float32]) -> None:
        spec, rows = self.obs_model.spec, proprio.shape[0]
        length = self.obs_model.config.history
        remedy = "use models, starts and policy of one environment"
        if set(frames) != set(spec.cameras):
            raise DataError(
                f"start has cameras {sorted(frames)}, M_obs {sorted(spec.cameras)}",
                where="imagination",
                remedy=remedy,
            )
        for name, size in spec.cameras.items():
            wanted = (rows, length, *size, 3)
            if frames[name].shape != wanted or frames[name].dtype != np.uint8:
                raise DataError(
                    f"start frames {name} are {frames[name].dtype}{list(frames[name].shape)}, not uint8{list(wanted)}",
                    where="imagination",
                    remedy=remedy,
                )
        expected = (rows, length, spec.proprio_dim)
        if proprio.shape != expected or proprio.dtype != np.float32:
            raise DataError(
                f"start proprio is {proprio.dtype}{list(proprio.shape)}, not float32{list(expected)}",
                where="imagination",
                remedy=remedy,
            )

    def state(self) -> dict[str, Any]:
        """Random state; worlds live only within a segment."""
        return {"generator": self._generator.get_state()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._generator.set_state(state["generator"])
