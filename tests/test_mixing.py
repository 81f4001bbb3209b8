"""The mixing schedule: shares by turn, what a turn is made of, and what collectors may start for it."""

from __future__ import annotations

from platform.mixing import make_mix, split_turn
from platform.plan import plan_text
from platform.policy_learner import Pacing
from platform.shares import first_and_last, imagined_admission, real_admission, shares
from platform.staleness import Rules

import pytest

from configs.errors import ConfigError
from configs.mix import ConstantMixConfig, LinearMixConfig
from tests.run_helper import config

LINEAR = ["mix=linear", "mix.start=0.75", "mix.end=0.25", "mix.turns=4"]


def settings(*overrides: str):
    return config(
        "real+imagined", "algorithm.batch=32", "algorithm.micro_batch=32", "staleness.budget=0.5", *overrides
    )


def linear(*overrides: str):
    from configs.loader import load_config
    from configs.schema import TrainConfig
    from tests.run_helper import FAST

    fast = [text for text in FAST if not text.startswith("mix.")]
    return load_config(TrainConfig, ["real+imagined", *fast, *LINEAR, *overrides])


def test_constant_and_linear_by_hand() -> None:
    constant = make_mix(ConstantMixConfig(real_fraction=0.2))
    assert [constant.real_fraction(turns) for turns in (0, 7, 10_000)] == [0.2, 0.2, 0.2]
    falling = make_mix(LinearMixConfig(start=0.5, end=0.1, turns=4))
    assert [falling.real_fraction(turns) for turns in (0, 1, 2, 4, 9)] == pytest.approx(
        [0.5, 0.4, 0.3, 0.1, 0.1]
    )
    rising = make_mix(LinearMixConfig(start=0.1, end=0.5, turns=2))
    assert [rising.real_fraction(turns) for turns in (0, 1, 2)] == pytest.approx([0.1, 0.3, 0.5])


def test_a_turn_always_has_a_real_decision() -> None:
    assert split_turn(32, 0.5) == (16, 16)
    assert split_turn(32, 0.001) == (1, 31)
    assert split_turn(100, 0.125) == (12, 88)


def test_the_learner_asks_for_what_the_turn_is_made_of() -> None:
    mixed = Pacing(24, 8, 0, 1, Rules(), 100, mix=make_mix(LinearMixConfig(start=0.75, end=0.25, turns=4)))
    assert [mixed.wanted(turns) for turns in (0, 2, 4, 50)] == [
        {"real": 24, "imagined": 8}, {"real": 16, "imagined": 16}, {"real": 8, "imagined": 24},
        {"real": 8, "imagined": 24},
    ]  # fmt: skip
    assert Pacing(32, 0, 0, 1, Rules(), 100).wanted(7) == {"real": 32, "imagined": 0}


def test_collectors_may_start_what_the_version_needs() -> None:
    """Turns of 24, 20, 16, 12, 8, 8, … real decisions of 32, two to a version, budget 0.5."""
    one = linear("staleness.budget=0.5")
    assert [real_admission(one, turns).limit for turns in range(6)] == [36, 30, 24, 18, 12, 12]
    assert [imagined_admission(one, turns).limit for turns in (0, 4)] == [12, 36]
    two = linear("staleness.budget=0.5", "sync.updates_per_publish=2")
    assert [real_admission(two, turns).limit for turns in range(6)] == [66, 66, 42, 42, 24, 24]
    assert [part.real_decisions for part in first_and_last(two)] == [24, 8]


def test_constant_admission_stays_as_it_was() -> None:
    one = settings("mix.real_fraction=0.25")
    assert {real_admission(one, turns).limit for turns in (0, 3, 999)} == {12}
    assert shares(one) == shares(one, 999)


def test_the_plan_tells_where_the_mix_ends() -> None:
    assert "24 real + 8 imagined decisions (in the end 8 + 24), " in plan_text(linear())
    assert "16 real + 16 imagined decisions, " in plan_text(settings())


def test_shares_outside_0_and_1_are_mistakes() -> None:
    for bad in ("mix.start=1", "mix.end=0", "mix.turns=0"):
        with pytest.raises(ConfigError, match=r"mix\.(start|end|turns)"):
            linear(bad)
