"""Pretraining loops: the same fit for the policy (behaviour cloning), M_obs and M_reward.

A *job* knows its updates, its held-out loss and its weights; ``fit`` paces it, keeps the best weights, stops early,
checkpoints and reports.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from configs.errors import DataError
from configs.schema import PretrainBudget

from .acceleration import denormals_flushed
from .offline_data import OfflineData
from .storage import load_tree, new_folder, save_tree
from .weights import Arrays, load_arrays, module_arrays

log = logging.getLogger(__name__)

REPORT_EVERY_S = 5.0
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

    def finish(self, arrays: Arrays) -> Finished:
        """The last touch on the best weights, and what they are worth on held-out episodes."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything to continue from."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        ...


@dataclass
class Finished:
    """A fitted model as it is written."""

    arrays: Arrays
    quality: dict[str, Any] = field(default_factory=dict)


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
    and one that had ended is not repeated. Raises DataError when the loss is not finite.
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
    why = "held-out loss stopped falling" if stale >= budget.patience else "budget used"
    log.info(
        "%s: %d updates in %.0f s, held-out loss %.4f -> %.4f (%s)",
        job.name, fitted.updates, fitted.wall_s, fitted.first_loss, fitted.best_loss, why,
    )  # fmt: skip
    if fitted.updates and fitted.best_loss == fitted.first_loss:
        log.warning("%s: no update lowered the held-out loss; the weights it began with are kept", job.name)
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

    def __init__(
        self,
        name: str,
        trainer: Any,
        data: OfflineData,
        batches: Any,
        *,
        validate: Callable[[], float],
        measure: Callable[[], dict[str, Any]],
    ) -> None:
        """``measure`` looks at the averaged weights when they are the best ones, and may calibrate them."""
        self.name = name
        self._trainer, self._data, self._batches = trainer, data, batches
        self._validate, self._measure = validate, measure

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

    def finish(self, arrays: Arrays) -> Finished:
        """Measured, and calibrated where the model is."""
        load_arrays(self._trainer.averaged, arrays)
        quality = self._measure()
        return Finished(module_arrays(self._trainer.averaged), quality)

    def state(self) -> dict[str, Any]:
        """The trainer's, that of its batches, and where the draws stand."""
        return {
            "trainer": self._trainer.state(), "batches": self._batches.state(), "data": self._data.state(),
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._trainer.load(state["trainer"])
        self._batches.load(state["batches"])
        self._data.load(state["data"])
