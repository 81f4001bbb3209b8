"""Start states of imagination: how shares become counts, and which decisions each kind draws."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffers.start_states import WEIGHTS, choose_starts, newest_items, plan_starts, start_counts
from configs.errors import ConfigError
from configs.starts import StartsConfig
from tests.buffer_helper import SPEC, make_buffer
from tests.records_helper import make_record


def item(key: int, length: int, *, success: bool = False, first: bool = True, split: str = "train") -> Any:
    return SimpleNamespace(
        id=key, length=length, split=split, facts=SimpleNamespace(success=success, is_first=first)
    )


def only(**shares: Any) -> StartsConfig:
    return StartsConfig(**{"first": 0.0, "recent": 0.0, **shares})


def test_counts_by_hand() -> None:
    """Rounded down, then the largest remainders: 7 in 1 : 1 : 2 are 1.75, 1.75, 3.5."""
    assert start_counts({"a": 1, "b": 1, "c": 2}, 7) == {"a": 2, "b": 2, "c": 3}
    assert start_counts({"a": 0.5, "b": 0.5}, 7) == {"a": 4, "b": 3}
    assert start_counts({"a": 0.1, "b": 0.2, "c": 0.7}, 10) == {"a": 1, "b": 2, "c": 7}
    assert start_counts({"a": 1e-9, "b": 1}, 3) == {"b": 3}


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5), st.integers(0, 400))
def test_counts_give_each_its_share_within_one(shares: list[float], total: int) -> None:
    counts = start_counts({str(i): share for i, share in enumerate(shares)}, total)
    assert sum(counts.values()) == total
    for i, share in enumerate(shares):
        assert abs(counts.get(str(i), 0) - share / sum(shares) * total) < 1 + 1e-6


def test_weights_by_hand() -> None:
    config = StartsConfig(late_decisions=2, failure_weight=3.0)
    assert {kind: weigh(config, 4, True).tolist() for kind, weigh in WEIGHTS.items()} == {
        "recent": [1, 1, 1, 1], "late": [0, 0, 1, 1], "failures": [1, 1, 1, 1],
    }  # fmt: skip
    assert {kind: weigh(config, 1, False).tolist() for kind, weigh in WEIGHTS.items()} == {
        "recent": [1], "late": [0], "failures": [3],
    }  # fmt: skip
    assert WEIGHTS["late"](config, 1, True).tolist() == [1]


def test_every_kind_draws_in_proportion_to_its_weights() -> None:
    """A success of 3 and a failure of 2 decisions, weight 4: 11 parts."""
    newest = [item(7, 2), item(5, 3, success=True)]
    config = only(recent=1, late=1, failures=1, late_decisions=2)
    expected = {
        "recent": {(7, 0): 1, (7, 1): 1, (5, 0): 1, (5, 1): 1, (5, 2): 1},
        "late": {(5, 1): 1, (5, 2): 1},
        "failures": {(7, 0): 4, (7, 1): 4, (5, 0): 1, (5, 1): 1, (5, 2): 1},
    }
    for kind, weights in expected.items():
        choice = choose_starts(newest, kind, config, 11_000, np.random.default_rng(0))
        drawn = Counter(zip([each.id for each in choice.items], choice.t.tolist(), strict=True))
        assert set(drawn) == set(weights), kind
        for place, weight in weights.items():
            share = weight / sum(weights.values())
            # Five standard deviations of a binomial.
            assert abs(drawn[place] - 11_000 * share) < 5 * (11_000 * share * (1 - share)) ** 0.5, kind


@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=8),
    st.sampled_from(sorted(WEIGHTS)),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_choices_are_decisions_of_their_records(records: Any, kind: str, late: int, seed: int) -> None:
    newest = [item(key, length, success=success) for key, (length, success) in enumerate(records)]
    config = only(**{kind: 1}, late_decisions=late)
    if set(plan_starts(config, newest, 3, any_first=True)) == {"uniform"}:
        assert kind == "late"
        assert not any(success for _, success in records)
        return
    choice = choose_starts(newest, kind, config, 20, np.random.default_rng(seed))
    for each, t in zip(choice.items, choice.t.tolist(), strict=True):
        assert 0 <= t < each.length
        assert kind != "late" or (each.facts.success and each.length - t <= late)


def test_what_is_not_there_gives_its_share_away() -> None:
    config = StartsConfig(first=1, recent=1, late=2)
    won, lost = [item(0, 3, success=True)], [item(0, 3)]
    assert plan_starts(config, won, 8, any_first=True) == {"first": 2, "recent": 2, "late": 4}
    assert plan_starts(config, lost, 8, any_first=True) == {"first": 4, "recent": 4}
    assert plan_starts(config, lost, 8, any_first=False) == {"recent": 8}
    assert plan_starts(only(late=1), lost, 8, any_first=True) == {"uniform": 8}
    assert plan_starts(config, [], 8, any_first=False) == {"uniform": 8}


def test_only_the_splits_newest_records_count() -> None:
    items = {key: item(key, 2, split="held_out" if key == 3 else "train") for key in range(5)}
    assert [each.id for each in newest_items(items, "train", only(recent=1, episodes=2))] == [4, 2]


def test_a_buffer_tells_what_its_starts_are() -> None:
    """Ordered by kind: an episode's start, then the last two decisions before the only success."""
    buffer = make_buffer()
    buffer.append(make_record(SPEC, 0, 5, success=True))
    buffer.append(make_record(SPEC, 1, 4))
    starts = buffer.starts(40, 1, horizon=2, mix=only(first=1, late=3, late_decisions=2))
    assert starts.kinds == {"first": 10, "late": 30}
    assert set(starts.t[:10].tolist()) == {0}
    assert {*zip(starts.ids[10:].tolist(), starts.t[10:].tolist(), strict=True)} == {(0, 3), (0, 4)}
    assert (starts.remaining[10:] <= 2).all()


def test_no_share_at_all_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"every share of the starts is 0.*recent=1"):
        only()
