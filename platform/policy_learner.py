"""The policy learner: which samples a turn trains on, when versions appear, and what is told of a turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from buffers.replay import Learning

from .context import OBS_MODEL, POLICY, REWARD_MODEL
from .mixing import MixSchedule, split_turn
from .policy_batch import DecisionBatch
from .policy_trainer import PolicyTrainer
from .ranks import Team
from .role import State
from .staleness import ModelVersions, Rules, lag_statistics, lengths, spans
from .weights import Board, Weights

if TYPE_CHECKING:
    from buffers.batches import Lease


@dataclass(frozen=True)
class Pacing:
    """How a turn is made up and how often versions appear."""

    real_decisions: int
    """Decisions from ``B_real`` in the first turn."""
    imagined_decisions: int
    """Decisions from ``B_img`` in the first turn."""
    retired_decisions: int
    """Real decisions per turn that count as used without training the policy: they only feed the models."""
    turns_per_publish: int
    rules: Rules
    """How old decisions may be, what a turn waits for, and when a version may appear."""
    max_turns: int
    """Turns after which it stops."""
    mix: MixSchedule | None = None
    """Deals out real and imagined decisions anew each turn; with None they stay as they are."""

    def wanted(self, turns: int) -> dict[str, int]:
        """Decisions by source for the turn after ``turns`` turns."""
        real, imagined = self.real_decisions, self.imagined_decisions
        if self.mix is not None:
            real, imagined = split_turn(real + imagined, self.mix.real_fraction(turns))
        return {"real": real, "imagined": imagined}


def model_versions(board: dict[str, Any]) -> ModelVersions:
    """The newest ones, by what their learners left on the board."""
    return ModelVersions(*(int(board.get(f"{name}/version", 0)) for name in (OBS_MODEL, REWARD_MODEL)))


class PolicyLearner:
    """One turn per ``step``: lease samples, have the trainer train on them, commit, publish."""

    def __init__(
        self,
        trainer: PolicyTrainer,
        pacing: Pacing,
        real: Learning,
        imagined: Learning,
        weights: Weights,
        board: Board,
        *,
        team: Team,
    ) -> None:
        """``trainer`` is rank 0's; ``team`` has the others."""
        self.name = "policy_learner"
        self.trainer = trainer
        self._team = team
        self._pacing = pacing
        self._buffers = {"real": real, "imagined": imagined}
        self._weights = weights
        self._board = board
        self._unpublished = 0

    @property
    def version(self) -> int:
        """Of the newest published weights."""
        return self.trainer.version

    @property
    def turns(self) -> int:
        """Turns taken."""
        return self.trainer.turns

    def step(self) -> bool:
        """Take one turn if the buffers hold enough."""
        try:
            return self._step()
        finally:
            self.trainer.hurry(False)

    def cut_short(self) -> None:
        """The turn ends after the update under way: a turn like any other, with fewer updates. One that has not made any is
        given up, and its samples are given back.
        """
        self.trainer.hurry()

    def _step(self) -> bool:
        leases = self._lease() if self.turns < self._pacing.max_turns else None
        if leases is None:
            # What a publish waits for may have left without being trained on.
            return self._publish()
        began = time.monotonic()
        before = self.trainer.optimizer_steps
        batch = self._team.turn(self.trainer, [lease.batch for lease in leases.values()])
        if self.trainer.optimizer_steps == before:
            self._give_back(leases)
            return True
        for name, lease in leases.items():
            self._buffers[name].commit(lease.lease_id)
        self._retire()
        self.trainer.turns += 1
        self._report(batch, leases, time.monotonic() - began)
        self._unpublished += 1
        if not self._publish() and self._unpublished % self._pacing.turns_per_publish == 0:
            self._advance()
        return True

    def _lease(self) -> dict[str, Lease] | None:
        """Both shares or nothing."""
        board = self._board.read()
        wanted = self._pacing.wanted(self.turns)
        # While gate or guard hold imagination shut, a mode with real data goes on with it alone.
        if wanted["real"] and not board.get("imagination/open", True):
            wanted = {"real": sum(wanted.values()), "imagined": 0}
        wanted = {name: decisions for name, decisions in wanted.items() if decisions}
        if any(self._buffers[name].available_decisions() < decisions for name, decisions in wanted.items()):
            return None
        leases: dict[str, Lease] = {}
        models = model_versions(board)
        for name, decisions in wanted.items():
            gate = self._pacing.rules.gate(self.version, decisions, real=name == "real", models=models)
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

    def _report(self, batch: DecisionBatch, leases: dict[str, Lease], seconds: float) -> None:
        lag = lag_statistics(batch.version, batch.present, self.version, self._pacing.rules.bound)
        self.trainer.averages.add(
            {
                "time/learner/turn_s": seconds,
                "policy/average_version": float(batch.version[batch.present].mean()),
                "policy/current_version": float(self.version),
                "policy/advantage_std": batch.advantage_std,
                "staleness/lag_mean": lag.mean,
                "staleness/lag_p95": lag.p95,
                "staleness/dropped": float(
                    lag.over_bound + sum(lease.traffic.dropped for lease in leases.values())
                ),
                **spans([lease.batch for lease in leases.values()], self.version).metrics(),
                **lengths(leases),
                "staleness/dropped_with_models": float(
                    sum(lease.traffic.outdated for lease in leases.values())
                ),
                "staleness/stale_samples_processed": float(
                    (batch.version[batch.present] < self.version).sum()
                ),
                "policy/batch_decisions": float(batch.joined),
                "policy/batch_return": batch.return_mean,
                "policy/skipped_updates": float(self.trainer.skipped),
                "policy/real_share": float(leases["real"].batch.lengths.sum()) / max(1, batch.joined)
                if "real" in leases
                else 0.0,
            }
        )
        self._board.put({"policy/turns": self.turns, "policy/updates": self.trainer.updates})

    def _publish(self) -> bool:
        """The next version, if it is due and nothing that may still train would then be too old."""
        if self._unpublished < self._pacing.turns_per_publish:
            return False
        if not self._pacing.rules.may_publish(self.version, self._oldest()):
            self.trainer.averages.add({"staleness/publish_waits": 1.0})
            return False
        self.trainer.averages.add({"staleness/publish_waits": 0.0})
        self.trainer.version += 1
        self._unpublished = 0
        held = self.trainer.held(["policy"])
        if "policy" in self.trainer.shared_parts:
            held = self._whole(["policy"], held)
        self._weights.publish(POLICY, self.version, held["policy"])
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
        """The trainer's, with what other ranks hold of it, and what it has not published."""
        state = self.trainer.state()
        return {**state, **self._whole(self.trainer.shared_parts, state), "unpublished": self._unpublished}

    def _whole(self, parts: Sequence[str], own: State) -> State:
        """``parts``, which ranks share out, by what rank 0 holds and what the others do."""
        return self.trainer.joined(parts, [own, *self._team.held(parts)]) if parts else {}

    def load(self, state: State) -> None:
        """Continue from ``state``, on every rank."""
        self.trainer.load(state)
        self._unpublished = state["unpublished"]
        self._team.load(state)

    def metrics(self) -> dict[str, float]:
        """Losses, lags, times."""
        return self.trainer.averages.take()

    def close(self) -> None:
        """Nothing is held."""
