"""A batch of imagined worlds, stepped together: M_obs says what is seen next, M_reward whether it is success."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from configs.errors import DataError
from world_models.base import Frames, InstructionEncoder, frames_to_torch
from world_models.disagreement import disagreement
from world_models.env_steps import FinePast
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
    executed: NDArray[np.int64]
    """``[B]``: actions of the decision that were executed, fewer than R where success came inside it."""


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


class Starts(FinePast, Protocol):
    """Real observations that n worlds start from: T of decisions in a row, the present last."""

    instructions: list[str]


class _Seen(NamedTuple):
    """What a step of M_obs is predicted from."""

    history: Tensor
    proprio: Tensor
    actions: Tensor
    instruction: Tensor


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
    def reset(self, starts: Starts) -> ImaginedObservation:
        """Start B worlds from real observations. Raises DataError where shapes are not the models'."""
        self._check(starts)
        self._words, self._history, self._proprio, self._probability = self._open(starts)
        self._instructions = list(starts.instructions)
        self._images = {name: frame[:, -1].copy() for name, frame in starts.frames.items()}
        self._running = np.ones(len(starts.instructions), np.bool_)
        return self.observe()

    @torch.no_grad()
    def restart(self, rows: Rows, starts: Starts) -> None:
        """Start worlds ``rows`` ``[n]`` anew from n real observations; the others go on. As ``reset``."""
        self._check(starts)
        opened = self._open(starts)
        index = torch.from_numpy(rows).to(self._device)
        self._words[index], self._history[index] = opened.words, opened.history
        self._proprio[index], self._probability[index] = opened.proprio, opened.probability
        for name, frame in starts.frames.items():
            self._images[name][rows] = frame[:, -1]
        for row, text in zip(rows.tolist(), starts.instructions, strict=True):
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

    def _open(self, starts: Starts) -> _Opened:
        present = {name: frame[:, -1].copy() for name, frame in starts.frames.items()}
        words = torch.from_numpy(self.encode(list(starts.instructions))).to(self._device)
        history, proprio = self.obs_model.start(starts, self._device)
        return _Opened(
            words,
            history,
            proprio,
            self.reward_model.probability(frames_to_torch(present, self._device), words),
        )

    @torch.no_grad()
    def step(self, tokens: NDArray[np.integer[Any]]) -> ImaginedStep:
        """One decision in every running world; ``tokens`` ``[B, K, D]`` for all B (rows of ended worlds are ignored)."""
        stepped = self._running.copy()
        count = len(stepped)
        rewards, taken = np.zeros(count, np.float32), np.zeros(count, np.int64)
        terminated, failed, uncertain = (np.zeros(count, np.bool_) for _ in range(3))
        rows = np.flatnonzero(stepped)
        if len(rows):
            index = torch.from_numpy(rows).to(self._device)
            before = self._probability[index]
            finite, certain, taken[rows] = self._advance(
                index, torch.from_numpy(tokens[rows]).to(self._device)
            )
            after = self._probability[index]
            failed[rows], uncertain[rows] = ~finite, finite & ~certain
            moved = finite & certain
            earned = self._reward(before, after, self.threshold)
            rewards[rows] = torch.where(torch.from_numpy(moved).to(before.device), earned, 0.0).cpu().numpy()
            terminated[rows] = (after >= self.threshold).cpu().numpy() & moved
            self._running = stepped & ~terminated & ~failed & ~uncertain
        executed = taken * self.obs_model.spec.actions_per_step
        return ImaginedStep(
            self.observe(), rewards, self.probabilities, stepped, terminated, failed, uncertain, executed
        )

    def _advance(
        self, index: Tensor, tokens: Tensor
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
        """Move worlds ``index`` on whose prediction is finite and certain. Returns which were finite, which certain, and how
        many steps of the model each took: a world that succeeds inside a decision stops there.
        """
        words, history, proprio = self._words[index], self._history[index], self._proprio[index]
        probability = self._probability[index].clone()
        finite, certain, going = (torch.ones_like(index, dtype=torch.bool) for _ in range(3))
        taken, rows = torch.zeros_like(index), index.cpu().numpy()
        shown = {name: frame[rows] for name, frame in self._images.items()}
        for actions in self.obs_model.step_actions(tokens):
            on = going.nonzero()[:, 0]
            if not len(on):
                break
            seen = _Seen(history[on], proprio[on], actions[on], words[on])
            pixels, after = self.obs_model.imagine(*seen, generator=self._generator)
            frames = self.obs_model.frames(pixels)
            judged = self.reward_model.probability(frames, words[on])
            finite[on] = pixels.flatten(1).isfinite().all(1) & after.isfinite().all(1) & judged.isfinite()
            certain[on] = self._certain(seen, frames)
            history[on] = torch.cat([seen.history[:, 1:], pixels[:, None]], dim=1)
            proprio[on], probability[on] = after, judged
            for name, frame in frames.items():
                shown[name][on.cpu().numpy()] = frame.cpu().numpy()
            taken[on] += 1
            going = finite & certain & (probability < self.threshold)
        kept = finite & certain
        moved = index[kept]
        self._history[moved], self._proprio[moved] = history[kept], proprio[kept]
        self._probability[moved] = probability[kept]
        keep = kept.cpu().numpy()
        for name, frame in shown.items():
            self._images[name][rows[keep]] = frame[keep]
        return finite.cpu().numpy(), certain.cpu().numpy(), taken.cpu().numpy()

    def _certain(self, seen: _Seen, frames: Frames) -> Tensor:
        """Which worlds a second draw of the same step confirms, ``[n]`` bool."""
        if self._max_disagreement is None:
            return torch.ones(len(seen.proprio), dtype=torch.bool, device=self._device)
        again, _ = self.obs_model.imagine(*seen, generator=self._generator)
        return disagreement(frames, self.obs_model.frames(again)) <= self._max_disagreement

    def observe(self) -> ImaginedObservation:
        """The present observations of all worlds: copies, so that a record keeps what it was given."""
        return ImaginedObservation(
            {name: frame.copy() for name, frame in self._images.items()},
            self._proprio.cpu().numpy().copy(),
            list(self._instructions),
        )

    def _check(self, starts: Starts) -> None:
        spec, rows = self.obs_model.spec, starts.proprio.shape[0]
        length = self.obs_model.lookback
        remedy = "use models, starts and policy of one environment"
        if set(starts.frames) != set(spec.cameras):
            raise DataError(
                f"start has cameras {sorted(starts.frames)}, M_obs {sorted(spec.cameras)}",
                where="imagination",
                remedy=remedy,
            )
        for name, size in spec.cameras.items():
            wanted, frames = (rows, length, *size, 3), starts.frames[name]
            if frames.shape != wanted or frames.dtype != np.uint8:
                raise DataError(
                    f"start frames {name} are {frames.dtype}{list(frames.shape)}, not uint8{list(wanted)}",
                    where="imagination",
                    remedy=remedy,
                )
        expected, proprio = (rows, length, spec.proprio_dim), starts.proprio
        if proprio.shape != expected or proprio.dtype != np.float32:
            raise DataError(
                f"start proprio is {proprio.dtype}{list(proprio.shape)}, not float32{list(expected)}",
                where="imagination",
                remedy=remedy,
            )
        if spec.model_steps > 1 and starts.proprio_between is None:
            raise DataError(
                "starts have no frames between decisions, which M_obs steps through", where="imagination",
                remedy="record a dataset with frames_between=true, or use a model whose step is a decision",
            )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Random state; worlds live only within a segment."""
        return {"generator": self._generator.get_state()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._generator.set_state(state["generator"])
