"""One trainer per world model: optimizer, averaged weights, clipping, skipped updates, and a state that is exact."""

from __future__ import annotations

import copy
import math
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from configs.obs_model import ObsModelConfig, Optimizer
from configs.reward_model import RewardModelConfig
from world_models.base import InstructionEncoder, array_to_torch, frames_to_torch, normalized_actions
from world_models.consistency import ConsistencyAim, sample_loss
from world_models.env_steps import StepWindows, TransitionWindows, step_windows
from world_models.obs_model import ObservationModel
from world_models.optimizers import OPTIMIZERS, load_into, state_of
from world_models.reward_model import SuccessModel

WARM_UP = 50
"""Updates over which the learning rate rises from zero."""
FINAL_RATE = 0.05
"""Where the cosine ends, as a fraction of the peak rate."""

PROPRIO_RATE = 5.0
"""Learning rate of the small proprio head relative to the U-Net's, which waits for its predictions."""

Frames = dict[str, NDArray[np.uint8]]
ModelT = TypeVar("ModelT", bound=nn.Module)


class LabelledFrames(Protocol):
    """Frames of a buffer for M_reward."""

    frames: Frames
    """camera: ``[B, H, W, 3]``"""
    instructions: list[str]
    label: NDArray[np.float32]
    """``[B]``: 1 where the frame shows success."""


class AveragedTrainer:
    """An optimizer on a model with an exponential average of its weights beside it.

    A loss or gradient that is not finite skips the update and is counted; parameters never become NaN.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        learning_rate: float,
        max_grad_norm: float,
        ema_decay: float,
        seed: int,
        total_updates: int | None,
        faster: nn.Module | None = None,
        optimizer: Optimizer = "adamw",
    ) -> None:
        """``total_updates``: length of a warm-up and cosine; None keeps the rate. ``faster``: part with its own rate."""
        from diffusers.training_utils import EMAModel

        self._model = model
        self._averaged = copy.deepcopy(model).requires_grad_(False).eval()
        self._rate = learning_rate
        self._max_grad_norm = max_grad_norm
        self._total = total_updates
        quick = list(faster.parameters()) if faster is not None else []
        known = {id(parameter) for parameter in quick}
        slow = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
        groups = [{"params": slow, "scale": 1.0}, {"params": quick, "scale": PROPRIO_RATE}]
        self._optimizer = OPTIMIZERS[optimizer]([g for g in groups if g["params"]], learning_rate)
        self._ema = EMAModel(model.parameters(), decay=ema_decay, foreach=True)
        # The average is kept in place in the copy's own parameters, so that it can be used at any time.
        self._ema.shadow_params = list(self._averaged.parameters())
        self.device = next(model.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.updates = 0
        self.skipped = 0

    def _learning_rate(self) -> float:
        if self._total is None:
            return self._rate
        warm = min(1.0, (self.updates + 1) / WARM_UP)
        progress = min(1.0, self.updates / max(1, self._total))
        return self._rate * warm * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * progress)))

    def _apply(self, loss: Tensor, stats: dict[str, float]) -> dict[str, float]:
        """Backward and step; the statistics with the gradient's norm."""
        self._optimizer.zero_grad(set_to_none=True)
        rate = self._learning_rate()
        norm = math.nan
        if math.isfinite(stats["loss"]):
            loss.backward()  # type: ignore[no-untyped-call]
            norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._max_grad_norm))
        applied = math.isfinite(norm)
        if applied:
            for group in self._optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            self._optimizer.step()
            self._ema.step(self._model.parameters())
        else:
            self.skipped += 1
        self.updates += 1
        return {**stats, "grad_norm": norm, "learning_rate": rate, "skipped": float(not applied)}

    def state(self) -> dict[str, Any]:
        """Weights, average, optimizer, counters and random state: tensors and numbers only."""
        return {
            "model": _clone(self._model.state_dict()),
            "averaged": _clone(self._averaged.state_dict()),
            "optimizer": state_of(self._optimizer),
            "ema_step": self._ema.optimization_step,
            "generator": self.generator.get_state(),
            "updates": self.updates,
            "skipped": self.skipped,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state`` as if nothing had happened."""
        self._model.load_state_dict(state["model"])
        self._averaged.load_state_dict(state["averaged"])
        load_into(self._optimizer, state["optimizer"])
        self._ema.optimization_step = int(state["ema_step"])
        self.generator.set_state(state["generator"])
        self.updates, self.skipped = int(state["updates"]), int(state["skipped"])


def _clone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}


class ObsModelTrainer(AveragedTrainer):
    """Trains M_obs; its own average rolls the chains of multi-step training forward."""

    def __init__(
        self,
        model: ObservationModel,
        config: ObsModelConfig,
        *,
        encode: InstructionEncoder,
        seed: int,
        learning_rate: float | None = None,
        total_updates: int | None = None,
        chains: bool = False,
        teacher: ObservationModel | None = None,
    ) -> None:
        """``chains``: train on own predictions from the first update, as suits a model that has been pretrained.

        ``teacher``: what consistency training distils; without it that trains on the data alone.
        """
        super().__init__(
            model,
            learning_rate=config.learning_rate if learning_rate is None else learning_rate,
            max_grad_norm=config.max_grad_norm,
            ema_decay=config.ema_decay,
            seed=seed,
            total_updates=total_updates,
            faster=model.proprio_head,
            optimizer=config.optimizer,
        )
        self.model = model
        self._first_chain = 0 if chains else config.rollout_start
        self.averaged: ObservationModel = self._averaged  # type: ignore[assignment]
        self._config = config
        self._encode = encode
        self.window_losses: NDArray[np.float64] = np.empty(0)
        """``[B]`` of the last update's windows; NaN for those that its transition left out."""
        self._aim: ConsistencyAim | None = None
        if config.sampler == "consistency":
            self._aim = ConsistencyAim(config, self.averaged, teacher)

    @property
    def window_steps(self) -> int:
        """Decisions S that the next batch of windows should hold: 1 until chains begin."""
        steps = self._config.rollout_steps + 1 if self.updates >= self._first_chain else 1
        return -(-steps // self.model.spec.model_steps)

    def update(self, batch: TransitionWindows) -> dict[str, float]:
        """One optimizer step. Statistics: loss, image_loss, proprio_loss, chain, grad_norm, learning_rate, skipped."""
        chains = self.updates >= self._first_chain
        loss, stats, by_window = self.model.loss(
            *self._tensors(batch, skip=self._skip()),
            generator=self.generator,
            rollout_model=self.averaged if chains else None,
            aim=self._aim,
        )
        self.window_losses = by_window.double().cpu().numpy()
        return self._apply(loss, stats)

    def validation_loss(self, batch: TransitionWindows) -> list[float]:
        """Loss of the averaged weights by decision of the windows; the first entry is the one-step loss.

        In consistency training: how far their frames are from the teacher's, or without one from the real ones.
        """
        frames, proprio, actions, mask, words = self._tensors(batch)
        if self._aim is None:
            return self.averaged.validation_loss(frames, proprio, actions, mask, words)
        window = self.averaged.pixels(frames)
        return sample_loss(self.averaged, self._aim.teacher, window, proprio, actions, mask, words)

    def untrained_loss(self, untrained: ObservationModel, batch: TransitionWindows) -> list[float]:
        """The same of a model that was never trained, measured as it is beside the policy: without a teacher."""
        frames, proprio, actions, mask, words = self._tensors(batch)
        if self._aim is None:
            return untrained.validation_loss(frames, proprio, actions, mask, words)
        return sample_loss(untrained, None, untrained.pixels(frames), proprio, actions, mask, words)

    def _skip(self) -> int:
        """A model of env steps has to learn from every one of a decision, not from the first alone."""
        steps = self.model.spec.model_steps
        if steps == 1:
            return 0
        return int(torch.randint(steps, (1,), generator=self.generator, device=self.device))

    def _tensors(
        self, windows: TransitionWindows, skip: int = 0
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, Tensor]:
        device, steps = self.device, self.model.spec.model_steps
        batch: TransitionWindows | StepWindows = windows
        if steps > 1:
            batch = step_windows(windows, model_steps=steps, history=self._config.history, skip=skip)
        return (
            frames_to_torch(batch.frames, device),
            array_to_torch(batch.proprio, device),
            normalized_actions(array_to_torch(batch.tokens, device), self.model.spec.parts),
            array_to_torch(batch.mask, device),
            torch.from_numpy(self._encode(batch.instructions)).to(device),
        )


class RewardModelTrainer(AveragedTrainer):
    """Trains M_reward."""

    def __init__(
        self,
        model: SuccessModel,
        config: RewardModelConfig,
        *,
        encode: InstructionEncoder,
        seed: int,
        learning_rate: float | None = None,
        total_updates: int | None = None,
    ) -> None:
        super().__init__(
            model,
            learning_rate=config.learning_rate if learning_rate is None else learning_rate,
            max_grad_norm=config.max_grad_norm,
            ema_decay=config.ema_decay,
            seed=seed,
            total_updates=total_updates,
        )
        self.model = model
        self.averaged: SuccessModel = self._averaged  # type: ignore[assignment]
        self._encode = encode

    def update(self, batch: LabelledFrames) -> dict[str, float]:
        """One optimizer step. Statistics: loss, accuracy, grad_norm, learning_rate, skipped."""
        loss, stats = self.model.loss(
            frames_to_torch(batch.frames, self.device),
            torch.from_numpy(self._encode(batch.instructions)).to(self.device),
            torch.from_numpy(batch.label.astype(np.float32)).to(self.device),
            generator=self.generator,
        )
        return self._apply(loss, stats)

    def validation_loss(self, batch: LabelledFrames) -> float:
        """Loss of the averaged weights on ``batch``, with the same noise each time."""
        with torch.no_grad():
            loss, _ = self.averaged.loss(
                frames_to_torch(batch.frames, self.device),
                torch.from_numpy(self._encode(batch.instructions)).to(self.device),
                torch.from_numpy(batch.label.astype(np.float32)).to(self.device),
                generator=torch.Generator(self.device).manual_seed(0),
            )
        return float(loss)
