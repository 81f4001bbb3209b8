"""How much of what a run needs, by mode and turn: decisions from either world, and what collectors may start for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from buffers.samples import Admission
from configs.schema import TrainConfig

from .context import Context
from .mixing import make_mix, split_turn
from .staleness import Rules


@dataclass(frozen=True)
class Shares:
    """What each part of the run does in its mode."""

    collects: bool
    """Real environments are stepped."""
    imagines: bool
    trains_models: bool
    real_decisions: int
    """Per turn, for the policy learner."""
    imagined_decisions: int
    retired_decisions: int
    """Real decisions per turn that only feed the models and are then counted as used."""

    @property
    def real_needed(self) -> int:
        """Real decisions per turn that collectors must supply."""
        return self.real_decisions + self.retired_decisions

    @property
    def needed_alone(self) -> int:
        """The same while imagination is shut: a policy that learns from real data then learns from it alone."""
        return (
            self.real_decisions + self.imagined_decisions if self.real_decisions else self.retired_decisions
        )


def shares(config: TrainConfig, turns: int = 0) -> Shares:
    """The mode in numbers, for the turn after ``turns`` turns."""
    turn = config.algorithm.batch * config.sync.batches_per_update
    part, rest = split_turn(turn, make_mix(config.mix).real_fraction(turns))
    frozen = config.world_model.frozen
    modes = {
        "real": Shares(True, False, False, turn, 0, 0),
        "imagined": Shares(not frozen, True, not frozen, 0, turn, 0 if frozen else part),
        "real+imagined": Shares(True, True, True, part, rest, 0),
    }
    return modes[config.mode]


def first_and_last(config: TrainConfig) -> tuple[Shares, Shares]:
    """Shares of the first turn and of those at the end of the mixing schedule; all others lie between them."""
    return shares(config), shares(config, make_mix(config.mix).turns)


def shares_of_version(config: TrainConfig, turns: int) -> list[Shares]:
    """Of every turn that the version takes in which the turn after ``turns`` turns lies."""
    length = config.sync.updates_per_publish
    first = turns - turns % length
    if first >= make_mix(config.mix).turns:
        return [shares(config, first)] * length
    return [shares(config, first + turn) for turn in range(length)]


def real_admission(config: TrainConfig, turns: int) -> Admission:
    """What collectors may start while ``turns`` turns have been taken."""
    needed = sum(part.real_needed for part in shares_of_version(config, turns))
    return staleness_rules(config).admission(needed)


def imagined_admission(config: TrainConfig, turns: int) -> Admission:
    """What imagination may start then."""
    needed = sum(part.imagined_decisions for part in shares_of_version(config, turns))
    return staleness_rules(config).ahead(needed)


def needed_alone(config: TrainConfig, context: Context) -> int:
    """Real decisions per version that collectors must supply while imagination is shut.

    A mode whose policy learns from imagination alone then takes no turn, and the gate opens only once the models were
    measured: so enough episodes for some to be held out.
    """
    part, held_out = shares(config), config.buffers.real.held_out
    needed = part.needed_alone * config.sync.updates_per_publish
    if part.real_decisions or not held_out:
        return needed
    return max(needed, math.ceil(2 / held_out) * context.record_spec.max_decisions)


def staleness_rules(config: TrainConfig) -> Rules:
    """How far collectors run ahead, and how old data may be."""
    turn = config.algorithm.batch * config.sync.batches_per_update
    return Rules.of(config.staleness, config.sync, turn=turn, group=config.rollout.group)
