"""Pretraining loops: the same fit for the policy (behaviour cloning), M_obs and M_reward.

A *job* knows its updates, its held-out loss and its weights; ``fit`` paces it, keeps the best weights, stops early,
checkpoints and reports.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from buffers.memory import MemoryBuffer
from configs.errors import DataError
from configs.schema import PretrainBudget

from .acceleration import denormals_flushed
from .context import Context
from .model_batches import ObsModelBatches, RewardModelBatches
from .storage import load_tree, new_folder, save_tree
from .weights import Arrays, module_arrays

if TYPE_CHECKING:
    from world_models.obs_model import ObservationModel

log = logging.getLogger(__name__)

REPORT_EVERY_S = 5.0
HELD_OUT_ROWS = 512
HELD_OUT_WINDOWS = 128


class Job(Protocol):
    """One model's pretraining."""

    name: str

    def update(self) -> dict[str, float]:
        """One optimizer step."""
        ...

    def held_out_loss(self) -> float:
        """On held-out episodes, the same ones each time."""
        ...

    def arrays(self) -> Arrays:
        """Weights to keep."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything to continue from."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        ...


@dataclass
class Fitted:
    """What a fit gives."""

    arrays: Arrays
    updates: int
    first_loss: float
    best_loss: float
    history: list[tuple[int, float]]
    wall_s: float


def fit(job: Job, budget: PretrainBudget, scratch: Path) -> Fitted:
    """Run ``job`` until the budget ends or its held-out loss no longer falls; the best weights count.

    ``scratch`` holds a checkpoint per look at the held-out loss; a fit that was interrupted goes on from the last one,
    and removes the folder when done. Raises DataError when the loss is not finite.
    """
    began = time.monotonic()
    fitted, stale, spent = _begin(job, scratch)
    said = time.monotonic()
    while fitted.updates < budget.updates and stale < budget.patience:
        with denormals_flushed():
            stats = job.update()
        fitted.updates += 1
        now = time.monotonic()
        if now - said >= REPORT_EVERY_S:
            said = now
            _say(job, fitted, budget, stats, spent + now - began)
        out_of_time = budget.wall_s is not None and spent + now - began >= budget.wall_s
        if fitted.updates % budget.validate_every == 0 or fitted.updates == budget.updates or out_of_time:
            stale = 0 if _look(job, fitted) else stale + 1
            fitted.wall_s = spent + time.monotonic() - began
            _checkpoint(job, fitted, stale, scratch)
        if out_of_time:
            break
    fitted.wall_s = spent + time.monotonic() - began
    shutil.rmtree(scratch, ignore_errors=True)
    why = "held-out loss stopped falling" if stale >= budget.patience else "budget used"
    log.info(
        "%s: %d updates in %.0f s, held-out loss %.4f -> %.4f (%s)",
        job.name, fitted.updates, fitted.wall_s, fitted.first_loss, fitted.best_loss, why,
    )  # fmt: skip
    return fitted


def _begin(job: Job, scratch: Path) -> tuple[Fitted, int, float]:
    steps = sorted(scratch.glob("[0-9]*")) if scratch.is_dir() else []
    if not steps:
        loss = job.held_out_loss()
        return Fitted(job.arrays(), 0, loss, loss, [(0, loss)], 0.0), 0, 0.0
    state = load_tree(steps[-1], "state")
    job.load(state["job"])
    log.info("%s: going on from update %d", job.name, state["fitted"]["updates"])
    fitted = Fitted(**state["fitted"])
    fitted.history = [(int(step), float(loss)) for step, loss in fitted.history]
    return fitted, int(state["stale"]), fitted.wall_s


def _look(job: Job, fitted: Fitted) -> bool:
    loss = job.held_out_loss()
    if not math.isfinite(loss):
        raise DataError(
            f"{job.name}: the held-out loss is {loss}", where="pretrain", remedy="lower the learning rate"
        )
    fitted.history.append((fitted.updates, loss))
    if loss >= fitted.best_loss:
        return False
    fitted.best_loss, fitted.arrays = loss, job.arrays()
    return True


def _checkpoint(job: Job, fitted: Fitted, stale: int, scratch: Path) -> None:
    target = scratch / f"{fitted.updates:07d}"
    with new_folder(target) as partial:
        save_tree(partial, "state", {"job": job.state(), "fitted": vars(fitted), "stale": stale})
    for old in sorted(scratch.glob("[0-9]*"))[:-1]:
        shutil.rmtree(old)


def _say(job: Job, fitted: Fitted, budget: PretrainBudget, stats: dict[str, float], spent: float) -> None:
    rate = fitted.updates / spent
    left = (budget.updates - fitted.updates) / rate
    if budget.wall_s is not None:
        left = min(left, budget.wall_s - spent)
    log.info(
        "%s: update %d of %d, loss %.4f, held-out %.4f, %.1f updates/s, at most %.0f s left",
        job.name, fitted.updates, budget.updates, stats["loss"], fitted.history[-1][1], rate, left,
    )  # fmt: skip


class ModelJob:
    """M_obs or M_reward: the trainer of ``world_models.training`` on a buffer that holds the dataset."""

    def __init__(self, name: str, trainer: Any, batches: Any, validate: Any) -> None:
        self.name = name
        self._trainer, self._batches, self._validate = trainer, batches, validate

    def update(self) -> dict[str, float]:
        """One optimizer step."""
        stats: dict[str, float] = self._trainer.update(self._batches.draw())
        return stats

    def held_out_loss(self) -> float:
        """Of the averaged weights."""
        return float(self._validate())

    def arrays(self) -> Arrays:
        """The averaged weights."""
        return module_arrays(self._trainer.averaged)

    def state(self) -> dict[str, Any]:
        """The trainer's, and that of its batches."""
        return {"trainer": self._trainer.state(), "batches": self._batches.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._trainer.load(state["trainer"])
        self._batches.load(state["batches"])


def obs_model_job(context: Context, data: MemoryBuffer, budget: PretrainBudget) -> ModelJob:
    """Windows of the training split; the held-out loss is the mean over the steps of a chain on own predictions."""
    from world_models.training import ObsModelTrainer

    config = context.world_model_config.obs_model
    trainer = ObsModelTrainer(
        context.make_obs_model(), config, encode=context.vocabulary.encode, seed=context.seed + 31,
        learning_rate=budget.learning_rate, total_updates=budget.updates,
    )  # fmt: skip
    held_out = data.windows(
        HELD_OUT_WINDOWS,
        config.history,
        config.rollout_steps + 1,
        split="held_out",
        generator=np.random.default_rng(0),
    )
    batches = ObsModelBatches(data, trainer, budget.batch or config.batch, config.history)

    def validate() -> float:
        return float(np.mean(trainer.validation_loss(held_out)))

    return ModelJob("obs_model", trainer, batches, validate)


def reward_model_job(
    context: Context,
    data: MemoryBuffer,
    budget: PretrainBudget,
    obs_model: ObservationModel | None,
) -> ModelJob:
    """Frames labelled by the real outcome, half of them imagined by ``obs_model``; held-out loss on frames of held-out
    episodes, drawn in the same way.
    """
    from world_models.outcomes import OutcomeFrames, imagine_outcomes
    from world_models.training import RewardModelTrainer

    config, encode = context.world_model_config.reward_model, context.vocabulary.encode
    trainer = RewardModelTrainer(
        context.make_reward_model(), config, encode=encode, seed=context.seed + 32,
        learning_rate=budget.learning_rate, total_updates=budget.updates,
    )  # fmt: skip
    fixed = np.random.default_rng(0)
    held_out = data.outcomes(HELD_OUT_ROWS, split="held_out", balance=True, generator=fixed)
    parts: list[Any] = [held_out]
    if obs_model is not None:
        import torch

        windows = data.windows(
            HELD_OUT_WINDOWS, context.world_model_config.obs_model.history, config.imagined_steps,
            split="held_out", generator=fixed,
        )  # fmt: skip
        generator = torch.Generator(context.torch_device).manual_seed(0)
        parts.append(imagine_outcomes(obs_model, windows, encode=encode, generator=generator))
    judged = OutcomeFrames.joined(parts)
    batches = RewardModelBatches(context, data, obs_model)
    return ModelJob("reward_model", trainer, batches, lambda: trainer.validation_loss(judged))
