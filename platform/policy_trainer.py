"""The policy on one rank: network, anchor and optimizers, and the updates of one turn. It knows no buffer and publishes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from configs.algorithm import AlgorithmConfig, DecoupledPPOConfig

from .acceleration import OptimizerStep, Precision, accelerator, autocast, summed
from .context import ANCHOR, POLICY, Context
from .lean_optimizer import Lean, merge
from .logprob_gap import logprob_gap
from .metrics import Averages, Largest
from .pieces import local_part
from .policy_batch import DecisionBatch, decision_batch, proximal_log_probs
from .role import State
from .sharding import join_arrays, load_own, own_arrays, padded, share_out
from .weights import Weights, load_arrays

if TYPE_CHECKING:
    import torch

    from buffers.records import RecordBatch
    from policies.base import Policy
    from policies.proximal import Counts

T = TypeVar("T")


class PolicyTrainer:
    """Trains on whole turns. ``version`` is that of the newest published weights, ``turns`` those before this one.

    ``bound`` is the largest lag that trains, ``discount`` is per decision, and the learning rate falls over ``max_turns``.
    """

    def __init__(
        self,
        context: Context,
        algorithm: AlgorithmConfig,
        weights: Weights,
        *,
        bound: int,
        discount: float,
        max_turns: int,
        precision: Precision,
        lean: Lean | None = None,
    ) -> None:
        """The actor always runs in float32, since ratios must be exact; ``precision`` is that of the critic's features and
        the anchor. ``lean`` says where moments lie; offloaded ones take a whole anchor along, between the turns' looks at it.
        """
        self.context = context
        self.lean = lean or Lean()
        self._algorithm = algorithm
        self._bound, self._discount, self._max_turns = bound, discount, max_turns
        self._precision = precision
        self._together = self.lean.shard == "weights"
        self.policy = context.make_policy()
        self.anchor = context.make_policy().eval().to(self._anchor_rests)
        first, anchor = weights.fetch(POLICY, -1), weights.fetch(ANCHOR, -1)
        assert first is not None, "the runner publishes the first weights"
        assert anchor is not None, "the runner publishes the anchor"
        load_arrays(self.policy, first.arrays)
        load_arrays(self.anchor, anchor.arrays)
        if self._together:
            share_out(self.policy)
            share_out(self.anchor)
        self.version = first.version
        self.turns = 0
        self.updates = 0
        self.optimizer_steps = 0
        """The critic's too."""
        self._moved_from: int | None = None
        """Version after which the weights last moved."""
        self.actor = OptimizerStep(
            self.policy.actor_parameters(),
            learning_rate=algorithm.learning_rate,
            max_grad_norm=algorithm.max_grad_norm,
            device=context.device,
            lean=lean,
        )
        self.critic = OptimizerStep(
            self.policy.critic_parameters(),
            learning_rate=algorithm.critic_learning_rate,
            max_grad_norm=10 * algorithm.max_grad_norm,
            device=context.device,
            lean=lean,
        )
        self._shuffle = np.random.default_rng([context.seed, 7])
        self._haste = threading.Event()
        self.averages = Averages()
        """Metrics since they were last taken."""

    def hurry(self, hurried: bool = True) -> None:
        """The turn ends after the update under way, and later ones before their first; until told otherwise. Any thread may
        call it.
        """
        if hurried:
            self._haste.set()
        else:
            self._haste.clear()

    @property
    def skipped(self) -> int:
        """Optimizer steps that were refused because a gradient was not finite."""
        return self.actor.skipped + self.critic.skipped

    def train(self, batches: list[RecordBatch]) -> DecisionBatch:
        """One turn's updates on this rank's share of the leased records."""
        with autocast(self.context.device, self._precision):
            batch = decision_batch(
                self.context, batches, self.policy, self._algorithm,
                version=self.version, bound=self._bound, discount=self._discount, evened=self._evened,
            )  # fmt: skip
            warming = self.turns < self._algorithm.critic_warm_up
            batch.anchor_logits = None if warming else self._anchor_logits(batch)
        if len(batch):
            self.averages.add({"staleness/lag_max": Largest(batch.lag.max())})
        before = self.optimizer_steps
        if not warming and self.recomputes:
            batch.proximal_log_probs = proximal_log_probs(batch, self.policy, self._evened)
        for _ in range(0 if warming else self._algorithm.epochs):
            self._pass(batch, self.update_actor)
        for _ in range(self._algorithm.critic_epochs):
            self._pass(batch, self.update_critic)
        if not warming and self.optimizer_steps > before:
            self._move_anchor()
        return batch

    def _pass(self, batch: DecisionBatch, update: Callable[[list[DecisionBatch]], None]) -> None:
        """Every decision once, in batches of about ``algorithm.batch``, each in micro-batches.

        All ranks draw the same order of the joined batch and take what they hold: the batches are those of one rank.
        """
        import torch

        if self._must_end():
            return
        order = self._shuffle.permutation(batch.joined)
        for joined in np.array_split(order, max(1, len(order) // self._algorithm.batch)):
            self.optimizer_steps += 1
            rows = joined - batch.first
            rows = rows[(rows >= 0) & (rows < len(batch))]
            parts = np.array_split(rows, max(1, -(-len(rows) // self._algorithm.micro_batch)))
            on = self.context.torch_device
            own = [torch.from_numpy(part).to(on) for part in parts if len(part)]
            update([batch.blank if part is None else batch.take(part) for part in self._evened(own)])
            if self._must_end():
                return

    def _evened(self, pieces: list[T]) -> list[T | None]:
        """Ranks that share out weights run their forwards together: whoever has fewer runs along where there is None."""
        return padded(pieces, self.context.device) if self._together else [*pieces]

    def _must_end(self) -> bool:
        """Rank 0 alone is told to hurry, and all must stop before the same update."""
        return summed(self.context.device, float(self._haste.is_set())) > 0

    def update_actor(self, pieces: list[DecisionBatch]) -> None:
        """One optimizer step; micro-batches divide by what all of them count, so their gradients add up."""
        from policies.objectives import policy_loss

        several = len(pieces) > 1 or accelerator(self.context.device).num_processes > 1
        over = self._counts(pieces) if several else None
        for piece in pieces:
            logits = self.policy(piece.observations, piece.tokens).logits
            if self._moved_from != self.version:
                self.averages.add(logprob_gap(logits, piece))
            result = policy_loss(
                self._algorithm, logits, piece.tokens, piece.log_probs, piece.advantages, piece.valid,
                piece.anchor_logits, piece.age, over,
            )  # fmt: skip
            self.actor.backward(result.loss)
            if not piece.is_blank:
                self._note(result.statistics)
        self.actor.scale_rate(self._rate_share())
        norm = self.actor.apply()
        self.averages.add({} if norm is None else {"policy/grad_norm": norm})
        self.updates += 1
        self._moved_from = self.version

    def _rate_share(self) -> float:
        """Rises over the first updates, falls over the run's turns."""
        rise = self._algorithm.learning_rate_warm_up
        risen = min(1.0, (self.updates + 1) / rise) if rise else 1.0
        done = min(1.0, self.turns / self._max_turns)
        return risen * (1.0 - (1.0 - self._algorithm.learning_rate_end) * done)

    @property
    def recomputes(self) -> bool:
        """Whether the objective needs the policy that the turn began with."""
        return isinstance(self._algorithm, DecoupledPPOConfig) and self._algorithm.anchor == "recompute"

    def _counts(self, pieces: list[DecisionBatch]) -> Counts:
        """What the objective's means are taken over, in all of ``pieces`` together."""
        import torch

        from policies.proximal import Counts, training_counts

        total = Counts(0.0, 0.0)
        for piece in pieces:

            def current(piece: DecisionBatch = piece) -> torch.Tensor:
                with torch.no_grad():
                    return self.policy.log_probs(piece.observations, piece.tokens)[0]

            total += training_counts(self._algorithm, current, piece.log_probs, piece.valid, piece.age)
        device = self.context.device
        return Counts(summed(device, total.ratios), summed(device, total.tokens))

    def update_critic(self, pieces: list[DecisionBatch]) -> None:
        """One optimizer step of the critic."""
        from policies.objectives import value_loss

        counted = [piece.valid.any(dim=1) for piece in pieces]
        total = summed(self.context.device, sum(int(mask.sum()) for mask in counted))
        for piece, mask in zip(pieces, counted, strict=True):
            values = self.policy.value(piece.features)
            result = value_loss(self._algorithm, values, piece.returns, piece.old_values, mask)
            self.critic.backward(result.loss * (result.count / max(1, total)))
            if not piece.is_blank:
                self._note(result.statistics)
        self.critic.apply()

    def _anchor_logits(self, batch: DecisionBatch) -> torch.Tensor | None:
        """``[N, K, D, bins]``: once for all passes of the turn."""
        import torch

        if self._algorithm.kl_anchor == 0:
            return None
        pieces = batch.slices(self._algorithm.micro_batch)
        self.anchor.to(self.context.torch_device)
        with torch.no_grad():
            logits = [self.anchor(*batch.seen(rows)).logits for rows in self._evened(pieces)]
        self.anchor.to(self._anchor_rests)
        return torch.cat(logits[: len(pieces)]) if pieces else None

    @property
    def _anchor_rests(self) -> str:
        return "cpu" if self.lean.offload and not self._together else self.context.device

    def _move_anchor(self) -> None:
        import torch

        kept = self._algorithm.anchor_decay
        if kept < 1:
            with torch.no_grad():
                pairs = zip(self.anchor.actor_parameters(), self.policy.actor_parameters(), strict=True)
                for anchor, current in pairs:
                    local_part(anchor).lerp_(local_part(current).to(anchor.device), 1 - kept)

    def _note(self, statistics: dict[str, Any]) -> None:
        self.averages.add({name: float(value) for name, value in statistics.items()}, prefix="policy/")

    @property
    def shared_parts(self) -> list[str]:
        """Parts of the state of which no rank holds everything."""
        steps, modules = list(self._steps), list(self._modules)
        return {"nothing": [], "moments": steps, "weights": [*modules, *steps]}[self.lean.shard]

    @property
    def _modules(self) -> dict[str, Policy]:
        return {"policy": self.policy, "anchor": self.anchor}

    @property
    def _steps(self) -> dict[str, OptimizerStep]:
        return {"actor": self.actor, "critic": self.critic}

    def held(self, parts: Sequence[str]) -> State:
        """What this rank holds of ``parts`` of the state: weights, optimizers."""
        modules = {name: own_arrays(each) for name, each in self._modules.items() if name in parts}
        return modules | {name: each.state() for name, each in self._steps.items() if name in parts}

    def joined(self, parts: Sequence[str], held: list[State]) -> State:
        """Whole ``parts`` from what every rank holds, in the order of the ranks."""
        whole: State = {}
        for name in parts:
            own = [each[name] for each in held]
            if name in self._modules:
                whole[name] = join_arrays(self._modules[name], own)
            else:
                moments = merge([each["optimizer"] for each in own], self._steps[name].in_pieces)
                whole[name] = {**own[0], "optimizer": moments}
        return whole

    def state(self) -> State:
        """Weights, optimizers, as far as this rank holds them; counters, the shuffle's generator."""
        return {
            **self.held([*self._modules, *self._steps]),
            "version": self.version,
            "turns": self.turns,
            "updates": self.updates,
            "moved_from": self._moved_from,
            "shuffle": self._shuffle.bit_generator.state,
        }

    def load(self, state: State) -> None:
        """Continue from ``state``."""
        load_own(self.policy, state["policy"])
        load_own(self.anchor, state["anchor"])
        self.actor.load(state["actor"])
        self.critic.load(state["critic"])
        self.version, self.turns, self.updates = state["version"], state["turns"], state["updates"]
        self._moved_from = state["moved_from"]
        self._shuffle.bit_generator.state = state["shuffle"]
