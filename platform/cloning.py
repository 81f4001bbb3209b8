"""Behaviour cloning as a pretraining job: the policy's first weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from buffers.records import Record
from configs.errors import DataError
from configs.obs_model import Optimizer
from configs.schema import CloningBudget

from .acceleration import WEIGHT_DECAY, MakeOptimizer, OptimizerStep, Precision, autocast
from .context import Context
from .envs.base import Observation
from .pretraining import Finished
from .weights import Arrays, load_arrays, module_arrays

if TYPE_CHECKING:
    import torch

    from policies.base import Policy

HELD_OUT_DECISIONS = 512


class CloningJob:
    """Behaviour cloning of successful demonstrations. The critic, a network of its own, learns the demonstrators' returns
    beside it: not yet the policy's, but a critic without features would push the first policy updates at random.
    """

    name = "policy"

    def __init__(
        self, context: Context, cloned: list[Record], valued: list[Record], held_out: list[Record],
        budget: CloningBudget, *, discount: float, precision: Precision, start: Arrays | None = None,
    ) -> None:  # fmt: skip
        """``cloned`` are imitated, ``valued`` teach the critic; ``discount`` is per decision. ``start``: weights to go on
        from, with the proprio statistics that they were trained on.
        """
        self._context, self._precision = context, precision
        self._policy: Policy = context.make_policy()
        self._cloned, self._held_out = _Decisions(cloned, discount), _Decisions(held_out, discount)
        self._valued = _Decisions(valued, discount)
        self._batch = budget.batch or 128
        if len(self._cloned) < self._batch:
            raise DataError(
                f"policy_budget.batch={self._batch} is larger than the data ({len(self._cloned)} decisions)",
                where="policy_budget.batch", remedy="give more episodes or a smaller batch",
            )  # fmt: skip
        if start is None:
            self._policy.set_proprio_statistics(*self._proprio_statistics())
        else:
            load_arrays(self._policy, start)
        self._select_by = budget.select_by
        self._rate, self._total = budget.learning_rate or 1e-3, budget.updates
        parameters = {"actor": self._policy.actor_parameters(), "critic": self._policy.critic_parameters()}
        self._steps = {
            name: OptimizerStep(
                each,
                learning_rate=self._rate,
                max_grad_norm=1.0,
                device=context.device,
                make=_maker(budget.optimizer),
            )
            for name, each in parameters.items()
        }
        self._rng = np.random.default_rng([context.seed, 21])
        self._updates = 0

    def update(self) -> dict[str, float]:
        """Cross-entropy on a batch of decisions, squared error of the returns on another; the rate warms up and follows
        a cosine.
        """
        progress = self._updates / self._total
        warm = min(1.0, (self._updates + 1) / 50)
        share = warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))
        loss, statistics = self._loss(self._cloned, self._draw(self._cloned))
        value_loss = self._value_loss(self._draw(self._valued))
        for step, each in zip(self._steps.values(), (loss, value_loss), strict=True):
            step.scale_rate(share)
            step.backward(each)
            step.apply()
        self._updates += 1
        return {"loss": float(loss.detach()), "value_loss": float(value_loss.detach()), **statistics}

    def _proprio_statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        device = self._context.torch_device
        mean, deviation = self._cloned.proprio_statistics()
        return torch.from_numpy(mean).to(device), torch.from_numpy(deviation).to(device)

    def _draw(self, data: _Decisions) -> NDArray[np.int64]:
        return self._rng.integers(len(data), size=self._batch)

    def _loss(self, data: _Decisions, rows: NDArray[np.int64]) -> tuple[torch.Tensor, dict[str, float]]:
        import torch

        from policies.cloning import cloning_loss

        observation = self._context.tensors(data.observation(rows))
        tokens = torch.from_numpy(data.tokens[rows].astype(np.int64)).to(self._context.torch_device)
        valid = torch.from_numpy(data.valid[rows]).to(self._context.torch_device)
        with autocast(self._context.device, self._precision):
            logits = self._policy(observation, tokens).logits
        result = cloning_loss(logits, tokens, valid)
        return result.loss, {name: float(value) for name, value in result.statistics.items()}

    def _value_loss(self, rows: NDArray[np.int64]) -> torch.Tensor:
        import torch

        observation = self._context.tensors(self._valued.observation(rows))
        returns = torch.from_numpy(self._valued.returns[rows]).to(self._context.torch_device)
        with autocast(self._context.device, self._precision):
            values = self._policy.value(self._policy.features(observation))
        return torch.nn.functional.mse_loss(values.float(), returns)

    def held_out_loss(self) -> float:
        """``policy_budget.select_by`` on held-out successful episodes.

        By default the mean distance, in bins, of the likeliest token from the demonstrator's. The cross-entropy rises as
        the policy grows sure of itself, while its actions still get better.
        """
        import torch

        rows = np.arange(min(len(self._held_out), HELD_OUT_DECISIONS))
        with torch.no_grad():
            return self._loss(self._held_out, rows)[1][self._select_by]

    def arrays(self) -> Arrays:
        """Actor and critic."""
        return module_arrays(self._policy)

    def finish(self, arrays: Arrays) -> Finished:
        """As they are; the command measures success, which needs an environment."""
        return Finished(arrays)

    def state(self) -> dict[str, Any]:
        """Weights, moments, counters."""
        from world_models.optimizers import pack

        return {
            "policy": self.arrays(),
            "steps": {name: pack(step.state()) for name, step in self._steps.items()},
            "updates": self._updates,
            "rng": self._rng.bit_generator.state,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        from world_models.optimizers import unpack

        load_arrays(self._policy, state["policy"])
        for name, step in self._steps.items():
            step.load(unpack(state["steps"][name]))
        self._updates = state["updates"]
        self._rng.bit_generator.state = state["rng"]


def _maker(optimizer: Optimizer) -> MakeOptimizer:
    from world_models.optimizers import OPTIMIZERS

    return lambda parameters, rate: OPTIMIZERS[optimizer](
        [{"params": parameters, "weight_decay": WEIGHT_DECAY}], rate
    )


class _Decisions:
    """All decisions of some records, row by row, with the discounted rewards that followed."""

    def __init__(self, records: list[Record], discount: float) -> None:
        self._images = {
            name: np.concatenate([r.images[name][:-1] for r in records])
            for name in (records[0].images if records else {})
        }
        self._proprio = np.concatenate([r.proprio[:-1] for r in records])
        self._instructions = [r.instruction for r in records for _ in range(r.length)]
        self.tokens = np.concatenate([r.tokens for r in records])
        self.valid = np.concatenate([r.valid for r in records])
        self.returns = np.concatenate([_returns(r, discount) for r in records])

    def __len__(self) -> int:
        return len(self.tokens)

    def proprio_statistics(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and deviation ``[P]`` over the decisions."""
        return self._proprio.mean(axis=0), self._proprio.std(axis=0)

    def observation(self, rows: NDArray[np.int64]) -> Observation:
        """Observations ``rows``."""
        return Observation(
            {name: frames[rows] for name, frames in self._images.items()},
            self._proprio[rows],
            [self._instructions[row] for row in rows],
        )


def _returns(record: Record, discount: float) -> NDArray[np.float32]:
    """``[T]``: rewards from each decision on; nothing is known beyond a truncation, so nothing is added there."""
    powers = discount ** np.arange(record.length)
    ahead = [float((record.rewards[t:] * powers[: record.length - t]).sum()) for t in range(record.length)]
    return np.array(ahead, np.float32)
