"""The policy learner: leases samples from both buffers, recomputes values, trains, publishes versions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from buffers.replay import Learning
from configs.algorithm import AlgorithmConfig, DecoupledPPOConfig

from .acceleration import OptimizerStep, Precision, accelerator, autocast, summed
from .context import ANCHOR, POLICY, Context
from .logprob_gap import logprob_gap
from .metrics import Averages
from .policy_batch import DecisionBatch, decision_batch, proximal_log_probs
from .ranks import Team
from .role import State
from .staleness import Rules, lag_statistics, lengths, spans
from .weights import Board, Weights, load_arrays, module_arrays

if TYPE_CHECKING:
    import torch

    from buffers.batches import Lease
    from buffers.records import RecordBatch
    from policies.proximal import Counts


@dataclass(frozen=True)
class Pacing:
    """How a turn is made up and how often versions appear."""

    real_decisions: int
    """Decisions from ``B_real`` per turn."""
    imagined_decisions: int
    """Decisions from ``B_img`` per turn."""
    retired_decisions: int
    """Real decisions per turn that count as used without training the policy: they only feed the models."""
    turns_per_publish: int
    rules: Rules
    """How old decisions may be, what a turn waits for, and when a version may appear."""
    discount: float
    """Per decision."""
    max_turns: int
    """Turns after which it stops."""

    @property
    def bound(self) -> int:
        """Largest lag that trains."""
        return self.rules.bound


class PolicyLearner:
    """One turn per ``step``: lease, values, advantages, one optimizer step per batch, commit, publish."""

    def __init__(
        self,
        context: Context,
        algorithm: AlgorithmConfig,
        pacing: Pacing,
        real: Learning,
        imagined: Learning,
        weights: Weights,
        board: Board,
        *,
        precision: Precision,
        team: Team,
    ) -> None:
        """The actor always runs in float32, since ratios must be exact; ``precision`` is that of the critic's features and the anchor."""
        self.name = "policy_learner"
        self._precision = precision
        self._team = team
        self._context = context
        self._algorithm = algorithm
        self._pacing = pacing
        self._buffers = {"real": real, "imagined": imagined}
        self._weights = weights
        self._board = board
        self.policy = context.make_policy()
        self._anchor = context.make_policy().eval()
        first = weights.fetch(POLICY, -1)
        anchor = weights.fetch(ANCHOR, -1)
        assert first is not None, "the runner publishes the first weights"
        assert anchor is not None, "the runner publishes the anchor"
        load_arrays(self.policy, first.arrays)
        load_arrays(self._anchor, anchor.arrays)
        self.version = first.version
        self.turns = 0
        self.updates = 0
        self._unpublished = 0
        self._optimizer_steps = 0
        self._updates_of_version = 0
        self._actor = OptimizerStep(
            self.policy.actor_parameters(),
            learning_rate=algorithm.learning_rate,
            max_grad_norm=algorithm.max_grad_norm,
            device=context.device,
        )
        self._critic = OptimizerStep(
            self.policy.critic_parameters(),
            learning_rate=algorithm.critic_learning_rate,
            max_grad_norm=10 * algorithm.max_grad_norm,
            device=context.device,
        )
        self._shuffle = np.random.default_rng([context.seed, 7])
        self._haste = threading.Event()
        self._averages = Averages()

    def step(self) -> bool:
        """Take one turn if the buffers hold enough."""
        try:
            return self._step()
        finally:
            self._haste.clear()

    def cut_short(self) -> None:
        """The turn ends after the update under way: a turn like any other, with fewer updates. One that has not made any is
        given up, and its samples are given back.
        """
        self._haste.set()

    def _step(self) -> bool:
        leases = self._lease() if self.turns < self._pacing.max_turns else None
        if leases is None:
            # What a publish waits for may have left without being trained on.
            return self._publish()
        began = time.monotonic()
        before = self._optimizer_steps
        batch = self._team.turn(self, [lease.batch for lease in leases.values()])
        if self._haste.is_set() and self._optimizer_steps == before:
            self._give_back(leases)
            return True
        for name, lease in leases.items():
            self._buffers[name].commit(lease.lease_id)
        self._retire()
        self.turns += 1
        self._report(batch, leases, time.monotonic() - began)
        self._unpublished += 1
        if not self._publish() and self._unpublished % self._pacing.turns_per_publish == 0:
            self._advance()
        return True

    def train(self, batches: list[RecordBatch]) -> DecisionBatch:
        """One turn's updates on this rank's share of the leased records."""
        with autocast(self._context.device, self._precision):
            batch = decision_batch(
                self._context, batches, self.policy, self._algorithm,
                version=self.version, bound=self._pacing.bound, discount=self._pacing.discount,
            )  # fmt: skip
            warming = self.turns < self._algorithm.critic_warm_up
            batch.anchor_logits = None if warming else self._anchor_logits(batch)
        before = self._optimizer_steps
        if not warming and self._recomputes:
            batch.proximal_log_probs = proximal_log_probs(batch, self.policy)
        for _ in range(0 if warming else self._algorithm.epochs):
            self._pass(batch, self._update_actor)
        for _ in range(self._algorithm.critic_epochs):
            self._pass(batch, self._update_critic)
        if not warming and self._optimizer_steps > before:
            self._move_anchor()
        return batch

    def _lease(self) -> dict[str, Lease] | None:
        """Both shares or nothing."""
        wanted = {"real": self._pacing.real_decisions, "imagined": self._pacing.imagined_decisions}
        # While gate or guard hold imagination shut, a mode with real data goes on with it alone.
        if self._pacing.real_decisions and not self._board.read().get("imagination/open", True):
            wanted = {"real": sum(wanted.values()), "imagined": 0}
        wanted = {name: decisions for name, decisions in wanted.items() if decisions}
        if any(self._buffers[name].available_decisions() < decisions for name, decisions in wanted.items()):
            return None
        leases: dict[str, Lease] = {}
        for name, decisions in wanted.items():
            gate = self._pacing.rules.gate(self.version, decisions, real=name == "real")
            lease = self._buffers[name].lease(decisions, gate=gate)
            if lease is None:
                self._give_back(leases)
                return None
            leases[name] = lease
        return leases

    def _give_back(self, leases: dict[str, Lease]) -> None:
        for name, lease in leases.items():
            self._buffers[name].release(lease.lease_id)

    def _retire(self) -> None:
        if self._pacing.retired_decisions:
            lease = self._buffers["real"].lease(self._pacing.retired_decisions)
            if lease is not None:
                self._buffers["real"].commit(lease.lease_id)

    def _pass(self, batch: DecisionBatch, update: Callable[[list[DecisionBatch]], None]) -> None:
        """Every decision once, in batches of about ``algorithm.batch``, each in micro-batches.

        All ranks draw the same order of the joined batch and take what they hold: the batches are those of one rank.
        """
        import torch

        if self._must_end():
            return
        order = self._shuffle.permutation(batch.joined)
        for joined in np.array_split(order, max(1, len(order) // self._algorithm.batch)):
            self._optimizer_steps += 1
            rows = joined - batch.first
            rows = rows[(rows >= 0) & (rows < len(batch))]
            parts = np.array_split(rows, max(1, -(-len(rows) // self._algorithm.micro_batch)))
            on = self._context.torch_device
            update([batch.take(torch.from_numpy(part).to(on)) for part in parts if len(part)])
            if self._must_end():
                return

    def _must_end(self) -> bool:
        """Rank 0 alone is told to hurry, and all must stop before the same update."""
        return summed(self._context.device, float(self._haste.is_set())) > 0

    def _update_actor(self, pieces: list[DecisionBatch]) -> None:
        """One optimizer step; micro-batches divide by what all of them count, so their gradients add up."""
        from policies.objectives import policy_loss

        several = len(pieces) > 1 or accelerator(self._context.device).num_processes > 1
        over = self._counts(pieces) if several else None
        for piece in pieces:
            logits = self.policy(piece.observations, piece.tokens).logits
            if self._updates_of_version == 0:
                self._averages.add(logprob_gap(logits, piece))
            result = policy_loss(
                self._algorithm, logits, piece.tokens, piece.log_probs, piece.advantages, piece.valid,
                piece.anchor_logits, piece.age, over,
            )  # fmt: skip
            self._actor.backward(result.loss)
            self._note(result.statistics)
        self._actor.scale_rate(self._rate_share())
        norm = self._actor.apply()
        self._averages.add({} if norm is None else {"policy/grad_norm": norm})
        self.updates += 1
        self._updates_of_version += 1

    def _rate_share(self) -> float:
        """Rises over the first updates, falls over the run's turns."""
        rise = self._algorithm.learning_rate_warm_up
        risen = min(1.0, (self.updates + 1) / rise) if rise else 1.0
        done = min(1.0, self.turns / self._pacing.max_turns)
        return risen * (1.0 - (1.0 - self._algorithm.learning_rate_end) * done)

    @property
    def _recomputes(self) -> bool:
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
        device = self._context.device
        return Counts(summed(device, total.ratios), summed(device, total.tokens))

    def _update_critic(self, pieces: list[DecisionBatch]) -> None:
        """One optimizer step of the critic."""
        from policies.objectives import value_loss

        counted = [piece.valid.any(dim=1) for piece in pieces]
        total = summed(self._context.device, sum(int(mask.sum()) for mask in counted))
        for piece, mask in zip(pieces, counted, strict=True):
            values = self.policy.value(piece.features)
            result = value_loss(self._algorithm, values, piece.returns, piece.old_values, mask)
            self._critic.backward(result.loss * (result.count / max(1, total)))
            self._note(result.statistics)
        self._critic.apply()

    def _anchor_logits(self, batch: DecisionBatch) -> torch.Tensor | None:
        """``[N, K, D, bins]``: once for all passes of the turn."""
        import torch

        if self._algorithm.kl_anchor == 0:
            return None
        rows = torch.arange(len(batch), device=self._context.torch_device)
        with torch.no_grad():
            logits = [
                self._anchor(batch.observations.take(part), batch.tokens[part]).logits
                for part in torch.split(rows, self._algorithm.micro_batch)
            ]
        return torch.cat(logits)

    def _move_anchor(self) -> None:
        import torch

        kept = self._algorithm.anchor_decay
        if kept < 1:
            with torch.no_grad():
                pairs = zip(self._anchor.actor_parameters(), self.policy.actor_parameters(), strict=True)
                for anchor, current in pairs:
                    anchor.lerp_(current, 1 - kept)

    def _note(self, statistics: dict[str, Any]) -> None:
        self._averages.add({name: float(value) for name, value in statistics.items()}, prefix="policy/")

    def _report(self, batch: DecisionBatch, leases: dict[str, Lease], seconds: float) -> None:
        lag = lag_statistics(batch.version, batch.present, self.version, self._pacing.bound)
        self._averages.add(
            {
                "time/learner/turn_s": seconds,
                "policy/average_version": float(batch.version[batch.present].mean()),
                "policy/current_version": float(self.version),
                "policy/advantage_std": batch.advantage_std,
                "staleness/lag_mean": lag.mean,
                "staleness/lag_p95": lag.p95,
                "staleness/lag_max": float(lag.maximum),
                "staleness/dropped": float(
                    lag.over_bound + sum(lease.traffic.dropped for lease in leases.values())
                ),
                **spans([lease.batch for lease in leases.values()], self.version).metrics(),
                **lengths(leases),
                "staleness/stale_samples_processed": float(
                    (batch.version[batch.present] < self.version).sum()
                ),
                "policy/batch_decisions": float(batch.joined),
                "policy/batch_return": batch.return_mean,
                "policy/skipped_updates": float(self._actor.skipped + self._critic.skipped),
                "policy/real_share": float(leases["real"].batch.lengths.sum()) / max(1, batch.joined)
                if "real" in leases
                else 0.0,
            }
        )
        self._board.put({"policy/turns": self.turns, "policy/updates": self.updates})

    def _publish(self) -> bool:
        """The next version, if it is due and nothing that may still train would then be too old."""
        if self._unpublished < self._pacing.turns_per_publish:
            return False
        if not self._pacing.rules.may_publish(self.version, self._oldest()):
            self._averages.add({"staleness/publish_waits": 1.0})
            return False
        self._averages.add({"staleness/publish_waits": 0.0})
        self.version += 1
        self._unpublished = self._updates_of_version = 0
        self._weights.publish(POLICY, self.version, module_arrays(self.policy))
        self._board.put({"policy/version": self.version})
        self._advance()
        return True

    def _advance(self) -> None:
        """A new budget for the collectors: under a new version, or under the old one while that must wait."""
        for buffer in self._buffers.values():
            buffer.advance(self.version)

    def _oldest(self) -> int | None:
        """Oldest version among decisions that may still train."""
        if self._pacing.rules.on_violation != "wait":
            return None
        used = {"real": self._pacing.real_decisions, "imagined": self._pacing.imagined_decisions}
        found = [self._buffers[name].oldest_version() for name, decisions in used.items() if decisions]
        return min((version for version in found if version is not None), default=None)

    def state(self) -> State:
        """Weights, optimizers, counters, the shuffle's generator."""
        return {
            "policy": module_arrays(self.policy),
            "anchor": module_arrays(self._anchor),
            "actor": self._actor.state(),
            "critic": self._critic.state(),
            "version": self.version,
            "turns": self.turns,
            "updates": self.updates,
            "unpublished": self._unpublished,
            "shuffle": self._shuffle.bit_generator.state,
        }

    def load(self, state: State) -> None:
        """Continue from ``state``."""
        load_arrays(self.policy, state["policy"])
        load_arrays(self._anchor, state["anchor"])
        self._actor.load(state["actor"])
        self._critic.load(state["critic"])
        self.version, self.turns, self.updates = state["version"], state["turns"], state["updates"]
        self._unpublished = state["unpublished"]
        # Whether weights are still those of the version is not in old checkpoints; where they are not, no gap is told.
        self._updates_of_version = self._unpublished
        self._shuffle.bit_generator.state = state["shuffle"]
        self._team.load(state)

    @property
    def averages(self) -> Averages:
        """What ``metrics`` will tell."""
        return self._averages

    def metrics(self) -> dict[str, float]:
        """Losses, lags, times."""
        return self._averages.take()

    def close(self) -> None:
        """Nothing is held."""
