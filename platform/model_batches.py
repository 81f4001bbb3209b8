"""What the model learners train on, in pretraining and beside the policy alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .context import OBS_MODEL, Context
from .weights import Weights, load_arrays

if TYPE_CHECKING:
    from buffers.batches import OutcomeBatch, WindowBatch
    from buffers.index import Split
    from world_models.obs_model import ObservationModel
    from world_models.reward_model import SuccessModel
    from world_models.training import LabelledFrames, ObsModelTrainer


HELD_OUT_WINDOWS = 128
Prioritise = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]], int]
"""``Modelling.prioritise``."""


class Draws(Protocol):
    """Where the batches are drawn: ``B_real``, or a dataset."""

    def windows(self, batch: int, history: int, steps: int, *, split: Split = "train") -> WindowBatch:
        """Windows of consecutive decisions."""
        ...

    def outcomes(self, batch: int, *, split: Split, balance: bool) -> OutcomeBatch:
        """Frames labelled by success."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts: what could be drawn now."""
        ...


class ObsModelBatches:
    """Windows of the training split, as long as the trainer's chains want them."""

    def __init__(
        self,
        real: Draws,
        trainer: ObsModelTrainer,
        batch: int,
        history: int,
        *,
        prioritise: Prioritise | None = None,
    ) -> None:
        """``prioritise``: takes the windows' losses as their priorities, where they are drawn by these."""
        self._real, self._trainer = real, trainer
        self._batch, self._history = batch, history
        self._prioritise = prioritise
        self._drawn: WindowBatch | None = None

    def draw(self) -> WindowBatch:
        """A batch of windows."""
        self._drawn = self._real.windows(self._batch, self._history, self._trainer.window_steps)
        return self._drawn

    def learned(self) -> None:
        """What was hardest comes up again soonest."""
        drawn, self._drawn = self._drawn, None
        if drawn is None or drawn.probability is None or self._prioritise is None:
            return
        losses = self._trainer.window_losses
        known = np.isfinite(losses)
        self._prioritise(drawn.ids[known], drawn.t[known], losses[known])

    def ready(self) -> bool:
        """Whether there is a training episode."""
        return bool(self._real.stats()["train_decisions"])

    def metrics(self) -> dict[str, float]:
        """Nothing beside what the trainer says."""
        return {}

    def state(self) -> dict[str, Any]:
        """The buffer keeps its own generator."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to continue from."""


class RewardModelBatches:
    """Real frames with their outcome, joined to frames that M_obs imagined from real starts under the recorded actions.

    ``obs_model`` None: real frames alone. With ``weights`` the copy of M_obs follows its learner. ``judge``, the reward
    model as it is, tells which imagined failures it takes for success.
    """

    def __init__(
        self,
        context: Context,
        real: Draws,
        obs_model: ObservationModel | None,
        weights: Weights | None = None,
        judge: SuccessModel | None = None,
    ) -> None:
        from world_models.outcomes import OutcomePool

        self._context = context
        self._config = context.world_model_config.reward_model
        self._history = context.history
        self._real, self._obs_model, self._weights = real, obs_model, weights
        self._judge = judge if self._config.hard_negatives else None
        self._version = -1
        self._pool = OutcomePool(
            context.model_spec, self._config, encode=context.vocabulary.encode, seed=context.seed + 33,
            device=context.torch_device,
        )  # fmt: skip

    def draw(self) -> LabelledFrames:
        """A batch of labelled frames; successes and failures in equal shares with ``balance``."""
        config = self._config
        if self._obs_model is None or config.imagined_fraction == 0:
            return self._real.outcomes(config.batch, split="train", balance=config.balance)
        self._follow()
        windows = self._real.windows(config.imagined_windows, self._history, config.imagined_steps)
        self._pool.add(self._obs_model, windows, self._judge)
        return self._pool.joined(
            self._real.outcomes(self._pool.real_share, split="train", balance=config.balance)
        )

    def learned(self) -> None:
        """Outcomes are not drawn by priority."""

    def imagine_held_out(self) -> LabelledFrames | None:
        """Frames of held-out episodes as the present M_obs imagines them, labelled by the real outcome."""
        if self._obs_model is None:
            return None
        import torch

        from world_models.outcomes import imagine_outcomes

        self._follow()
        windows = self._real.windows(
            HELD_OUT_WINDOWS, self._history, self._config.imagined_steps, split="held_out"
        )
        generator = torch.Generator(self._context.torch_device).manual_seed(0)
        return imagine_outcomes(
            self._obs_model, windows, encode=self._context.vocabulary.encode, generator=generator
        )

    def ready(self) -> bool:
        """Whether there is a training episode and, for balanced draws, a success among them."""
        counts = self._real.stats()
        kind = "train_successes" if self._config.balance else "train_decisions"
        return bool(counts[kind])

    def metrics(self) -> dict[str, float]:
        """How many of the imagined failures in the pool this model took for success."""
        return {} if self._judge is None else {"hard_negatives": self._pool.hard_share}

    def _follow(self) -> None:
        published = None if self._weights is None else self._weights.fetch(OBS_MODEL, self._version)
        if published is not None and self._obs_model is not None:
            load_arrays(self._obs_model, published.arrays)
            self._version = published.version

    def state(self) -> dict[str, Any]:
        """The pool; M_obs comes from the store."""
        return {"pool": self._pool.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._pool.load(state["pool"])
        self._version = -1
