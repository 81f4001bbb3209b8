"""The learners of the observation and the reward model: the same loop with another trainer and other batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from buffers.replay import Modelling

from .context import OBS_MODEL, REWARD_MODEL, Context
from .metrics import Averages
from .model_batches import ObsModelBatches, RewardModelBatches
from .role import State
from .weights import Board, Weights, load_arrays, module_arrays

if TYPE_CHECKING:
    import torch


class Trainer(Protocol):
    """What ``world_models.training`` offers for either model."""

    updates: int

    @property
    def averaged(self) -> torch.nn.Module:
        """The weights that imagine or judge."""
        ...

    def update(self, batch: Any) -> dict[str, float]:
        """One optimizer step."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything to continue from."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        ...


class Batches(Protocol):
    """Where a learner's batches come from."""

    def draw(self) -> Any:
        """The next batch."""
        ...

    def learned(self) -> None:
        """The trainer was updated with what was drawn last."""
        ...

    def ready(self) -> bool:
        """Whether ``B_real`` holds what a batch is made of."""
        ...

    def metrics(self) -> dict[str, float]:
        """What the last batch was made of, where that tells something."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything to continue from."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        ...


class ModelLearner:
    """Takes a turn of ``burst`` updates every ``every`` policy turns, then publishes the averaged weights.

    While imagination is shut and the policy learns from nothing else, turns follow each other: only better models can
    open it again.
    One ``step`` is one update. Turns that come due while one runs are merged into one: a slow model learner never holds
    the policy back, and never owes work.
    """

    def __init__(
        self,
        name: str,
        trainer: Trainer,
        batches: Batches,
        validate: Callable[[], dict[str, Any]],
        weights: Weights,
        board: Board,
        *,
        every: int,
        burst: int,
        validate_every: int,
    ) -> None:
        self.name = f"{name}_learner"
        self._model_name = name
        self._trainer = trainer
        self._batches, self._validate = batches, validate
        self._weights, self._board = weights, board
        self._every, self._burst, self._validate_every = every, burst, validate_every
        self.version = 0
        self.updates = 0
        self._served = 0
        self._left = 0
        self._averages = Averages()

    def step(self) -> bool:
        """One update, if a turn is due or under way."""
        due = self._served
        if self._left == 0:
            board = self._board.read()
            due = int(board.get("policy/turns", 0)) // self._every
            if due <= self._served and not policy_waits_for_models(board):
                return False
        # A run without demonstrations may have seen no success yet: the turn waits, nobody waits for it.
        if not self._batches.ready():
            return False
        if self._left == 0:
            self._served, self._left = max(due, self._served), self._burst
        began = time.monotonic()
        stats = self._trainer.update(self._batches.draw())
        self._batches.learned()
        self._averages.add({**stats, **self._batches.metrics()}, prefix=f"{self._model_name}/")
        self._averages.add({f"time/{self._model_name}_learner/update_s": time.monotonic() - began})
        self.updates += 1
        self._left -= 1
        if self._left == 0:
            self._finish_turn()
        return True

    def _finish_turn(self) -> None:
        self.version += 1
        # Before the weights leave: a reward model's calibration goes with them.
        looked = self._validate_every and self.version % self._validate_every == 0
        found = self._validate() if looked else {}
        self._weights.publish(self._model_name, self.version, module_arrays(self._trainer.averaged))
        self._board.put(
            {f"{self._model_name}/updates": self.updates, f"{self._model_name}/version": self.version}
        )
        if looked:
            self._board.put(found)

    def state(self) -> State:
        """The trainer, versions, what is due."""
        return {
            "trainer": self._trainer.state(),
            "batches": self._batches.state(),
            "version": self.version,
            "updates": self.updates,
            "served": self._served,
            "left": self._left,
        }

    def load(self, state: State) -> None:
        """Continue from ``state``."""
        self._trainer.load(state["trainer"])
        self._batches.load(state["batches"])
        self.version, self.updates = state["version"], state["updates"]
        self._served, self._left = state["served"], state["left"]

    def metrics(self) -> dict[str, float]:
        """Losses and times."""
        return self._averages.take()

    def close(self) -> None:
        """Nothing is held."""


def policy_waits_for_models(board: dict[str, Any]) -> bool:
    """Imagination is shut, and the policy learns from it alone."""
    return not board.get("imagination/open", True) and not board.get("policy/learns_from_real", True)


VALIDATION_WINDOWS = 64
CALIBRATION_FRAMES = 1024
VALIDATE_EVERY = 5
"""Turns between two looks at the held-out loss."""


def obs_model_learner(context: Context, real: Modelling, weights: Weights, board: Board) -> ModelLearner:
    """The learner of M_obs: windows from the training split, validation on held-out episodes."""
    from world_models.training import ObsModelTrainer

    config = context.world_model_config.obs_model
    model = context.make_obs_model()
    _start_from(model, weights, OBS_MODEL)
    # Beside the policy the model has been pretrained: chains of own predictions from the first update on.
    trainer = ObsModelTrainer(
        model, config, encode=context.vocabulary.encode, seed=context.seed + 301,
        learning_rate=config.online_learning_rate, total_updates=None, chains=True,
    )  # fmt: skip

    def validate() -> dict[str, Any]:
        if real.stats()["held_out_decisions"] == 0:
            return {}
        steps = context.decisions_of(config.rollout_steps + 1)
        losses = trainer.validation_loss(
            real.windows(VALIDATION_WINDOWS, context.history, steps, split="held_out")
        )
        return {"obs_model/val_loss": float(np.mean(losses)), "obs_model/val_loss_by_step": losses}

    batches = ObsModelBatches(real, trainer, config.batch, context.history, prioritise=real.prioritise)
    return ModelLearner(
        OBS_MODEL, trainer, batches, validate, weights, board,
        every=config.every, burst=config.burst, validate_every=VALIDATE_EVERY,
    )  # fmt: skip


def reward_model_learner(context: Context, real: Modelling, weights: Weights, board: Board) -> ModelLearner:
    """The learner of M_reward: frames labelled by the real outcome, real and imagined ones."""
    from world_models.calibration import calibrate
    from world_models.training import RewardModelTrainer

    config = context.world_model_config.reward_model
    model = context.make_reward_model()
    _start_from(model, weights, REWARD_MODEL)
    trainer = RewardModelTrainer(
        model, config, encode=context.vocabulary.encode, seed=context.seed + 302,
        learning_rate=config.online_learning_rate, total_updates=None,
    )  # fmt: skip
    batches = RewardModelBatches(
        context, real, context.make_obs_model().eval(), weights, judge=trainer.averaged
    )

    def calibrate_online() -> dict[str, Any]:
        if real.stats()["held_out_decisions"] == 0:
            return {}
        frames = real.outcomes(CALIBRATION_FRAMES, split="held_out", balance=False)
        held_out = calibrate(
            trainer.averaged, frames, batches.imagine_held_out(), encode=context.vocabulary.encode
        )
        return {
            "reward_model/threshold": held_out.threshold,
            "reward_model/calibration_error": held_out.error_after,
        }

    return ModelLearner(
        REWARD_MODEL, trainer, batches, calibrate_online, weights, board,
        every=config.every, burst=config.burst, validate_every=VALIDATE_EVERY if config.calibrated else 0,
    )  # fmt: skip


def _start_from(model: torch.nn.Module, weights: Weights, name: str) -> None:
    first = weights.fetch(name, -1)
    assert first is not None, f"the runner publishes the first weights of {name}"
    load_arrays(model, first.arrays)
