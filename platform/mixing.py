"""What a turn of the policy learner is made of, by the turns before it: a schedule in the style of the horizon's.

``MIXES`` maps a config's class to its schedule.
"""

from __future__ import annotations

from typing import Protocol

from configs.mix import ConstantMixConfig, LinearMixConfig, MixConfig


class MixSchedule(Protocol):
    """Answers with the share of a turn's decisions that come from ``B_real``."""

    turns: int
    """Turns after which it stays as it is; before, it moves one way."""

    def real_fraction(self, turns: int) -> float:
        """Of the turn after ``turns`` turns."""
        ...


class ConstantMix:
    """The same throughout."""

    def __init__(self, config: ConstantMixConfig) -> None:
        self._share = config.real_fraction
        self.turns = 0

    def real_fraction(self, turns: int) -> float:
        """The configured share."""
        return self._share


class LinearMix:
    """From start to end in turns."""

    def __init__(self, config: LinearMixConfig) -> None:
        self._config = config
        self.turns = config.turns

    def real_fraction(self, turns: int) -> float:
        """``start + (end - start) * turns / config.turns``, ``end`` afterwards."""
        config = self._config
        return config.start + (config.end - config.start) * min(1.0, turns / config.turns)


MIXES: dict[type, type] = {ConstantMixConfig: ConstantMix, LinearMixConfig: LinearMix}


def make_mix(config: MixConfig) -> MixSchedule:
    """The schedule of a config."""
    mix: MixSchedule = MIXES[type(config)](config)
    return mix


def split_turn(decisions: int, real_fraction: float) -> tuple[int, int]:
    """Real and imagined decisions of a turn of ``decisions``; at least one is real."""
    real = max(1, round(real_fraction * decisions))
    return real, decisions - real
