"""The rules of staleness by hand, and what the buffer does with each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffers.lending import Candidate, choose
from buffers.memory import MemoryBuffer
from buffers.samples import Admission, Gate, PartlyStale, Traffic
from buffers.shelf import bytes_per_row
from configs.system import BufferConfig, StalenessConfig, SyncConfig
from tests.records_helper import make_record, make_spec

if TYPE_CHECKING:
    from buffers.records import Record

SPEC = make_spec()


def make_buffer() -> MemoryBuffer:
    config = BufferConfig(max_bytes=400 * bytes_per_row(SPEC), reuse_limit=1, held_out=0.0)
    return MemoryBuffer(SPEC, config, seed=0, name="real")


def record(number: int, versions: list[int]) -> Record:
    """Decision t was made by ``versions[t]``."""
    made = make_record(SPEC, number, len(versions))
    made.version[:] = versions
    return made


def test_admission_limit_by_hand() -> None:
    from platform.staleness import admission_limit

    assert admission_limit(512, 0.0) == 512
    assert admission_limit(10, 0.55) == 15
    assert admission_limit(100, 0.15) == 115, "not lost to rounding"


def test_rules_from_the_config() -> None:
    from platform.staleness import Rules

    staleness = StalenessConfig(budget=0.5, bound=2, on_violation="cut", on_policy_min_ratio=0.25)
    sync = SyncConfig(partial=False, ordered=True, store_size=90)
    rules = Rules.of(staleness, sync, turn=60, group=4)
    assert rules.admission(60) == Admission(limit=90, group=4, ordered=True, drain=True)
    assert rules.ahead(60) == Admission(limit=90), "imagined segments neither run for long nor come in groups"
    assert rules.gate(7, 40, real=True) == Gate(5, "cut", 7, 0.25, 60, True)
    assert rules.gate(7, 20, real=False) == Gate(5, "cut", 7, 0.0, 30, False)
    waits = replace(rules, on_violation="wait").gate(7, 40, real=True)
    assert waits == Gate(5, "carry", 7, 0.25, 60, True, due=5)


def test_publishing_waits_only_where_the_next_version_would_break_the_bound() -> None:
    from platform.staleness import Rules

    wait = Rules(bound=2, on_violation="wait")
    assert wait.may_publish(4, None)
    assert wait.may_publish(4, 3)
    assert not wait.may_publish(4, 2), "version 5 would train what version 2 decided: a lag of 3"
    assert all(Rules(bound=2, on_violation=name).may_publish(4, 0) for name in ("mask", "cut", "drop"))


@pytest.mark.parametrize(
    ("partly_stale", "versions", "dropped", "stays"),
    [
        ("carry", [[3, 4, 5, 6], [5, 6]], 2, [4, 2]),
        ("cut", [[5, 6], [5, 6]], 2 + 2, [2, 2]),
        ("expire", [[5, 6]], 2 + 4, [2]),
    ],
)
def test_what_becomes_of_stale_decisions(
    partly_stale: PartlyStale, versions: list[list[int]], dropped: int, stays: list[int]
) -> None:
    """The bound lets version 5 and later ones through; the first record is older as a whole."""
    buffer = make_buffer()
    ids = [buffer.append(record(i, v)) for i, v in enumerate([[3, 4], [3, 4, 5, 6], [5, 6]])]
    assert buffer.lease(100, gate=Gate(oldest=5, partly_stale=partly_stale)) is None
    assert buffer.available_decisions() == sum(stays)
    lease = buffer.lease(sum(stays), gate=Gate(oldest=5, partly_stale=partly_stale))
    assert lease is not None
    assert lease.ids == ids[-len(stays) :]
    assert lease.batch.lengths.tolist() == stays
    assert [lease.batch.version[i, :n].tolist() for i, n in enumerate(stays)] == versions
    assert lease.traffic == Traffic(dropped=dropped, completed=3, completed_decisions=8)
    first = 0 if partly_stale == "carry" else 2
    if len(stays) == 2:
        assert lease.batch.images["camera0"][0, :3, 0, 0, 1].tolist() == [first, first + 1, first + 2]
    assert len(buffer.get(ids[1]).version) == 4, "the models keep all of it"


def test_a_cut_sample_fills_less_of_the_budget_and_survives_a_checkpoint() -> None:
    buffer = make_buffer()
    buffer.append(record(0, [3, 4, 5, 6]))
    assert buffer.room(Admission(8)) == 1
    assert buffer.lease(9, gate=Gate(oldest=6, partly_stale="cut")) is None
    assert buffer.room(Admission(8)) == 2, "7 decisions are free, a sample has 4"
    twin = make_buffer()
    twin.load(buffer.state())
    for each in (buffer, twin):
        lease = each.lease(1, gate=Gate(oldest=6, partly_stale="cut"))
        assert lease is not None
        assert lease.batch.version.tolist() == [[6]]
        assert lease.traffic == Traffic(dropped=3, completed=1, completed_decisions=4)


def test_a_turn_waits_for_its_store() -> None:
    buffer = make_buffer()
    buffer.append(record(0, [0] * 4))
    assert buffer.lease(4, gate=Gate(oldest=0, store=6)) is None
    buffer.append(record(1, [0] * 2))
    lease = buffer.lease(4, gate=Gate(oldest=0, store=6))
    assert lease is not None
    assert lease.ids == [0]


def test_a_turn_waits_for_its_on_policy_share() -> None:
    buffer = make_buffer()
    gate = Gate(oldest=0, current=2, on_policy=0.5)
    old = [buffer.append(record(i, [1] * 4)) for i in range(2)]
    assert buffer.lease(8, gate=gate) is None
    half = buffer.append(record(2, [1, 2]))
    assert buffer.lease(8, gate=gate) is None, "one of ten decisions"
    new = buffer.append(record(3, [2] * 4))
    lease = buffer.lease(8, gate=gate)
    assert lease is not None
    assert lease.ids == [old[0], new], "the first ones, as far as the share allows"
    assert half in buffer.ids()


def test_old_samples_that_fill_every_place_leave_for_on_policy_ones() -> None:
    buffer, admission = make_buffer(), Admission(8)
    buffer.advance(1)
    for sample in buffer.admit(1, admission):
        buffer.append(record(0, [1] * 8), sample.sample_id)
    buffer.advance(2)
    assert buffer.admit(1, admission) == []
    gate = Gate(oldest=0, current=2, on_policy=0.5)
    assert buffer.lease(8, gate=gate) is None
    (sample,) = buffer.admit(1, admission)
    assert buffer.lease(8, gate=gate) is None
    buffer.append(record(1, [2] * 8), sample.sample_id)
    lease = buffer.lease(8, gate=gate)
    assert lease is not None
    assert lease.traffic.dropped == 8


CANDIDATES = st.lists(
    st.tuples(st.integers(1, 9), st.floats(0, 1), st.integers(0, 5)).map(
        lambda t: Candidate(0, t[0], round(t[0] * t[1]), t[2])
    ),
    max_size=20,
)


@settings(deadline=None)
@given(CANDIDATES, st.integers(1, 40), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_a_choice_keeps_its_promises(offered: list[Candidate], decisions: int, share: float) -> None:
    offered = [Candidate(i, c.decisions, c.on_policy, c.group) for i, c in enumerate(offered)]
    ids = choose(offered, decisions, share)
    if ids is None:
        assert share > 0 or sum(c.decisions for c in offered) < decisions
        return
    taken = [offered[i] for i in ids]
    total = sum(c.decisions for c in taken)
    assert total >= decisions
    assert sum(c.on_policy for c in taken) >= share * total - 1e-9
    for group in {c.group for c in taken}:
        assert {c.id for c in offered if c.group == group} <= set(ids), "whole groups"


@pytest.mark.parametrize(
    ("decisions", "share", "chosen"),
    [
        (4, 0.0, [2, 3]),
        (4, 0.5, [1, 2]),
        (2, 0.3, [1, 2]),
        (2, 1.0, [1]),
    ],
)
def test_what_the_next_version_waits_for_comes_first(decisions: int, share: float, chosen: list[int]) -> None:
    """One sample of it at least, where the share of the learner's own version leaves room for any."""
    offered = [Candidate(0, 2, 0, 0), Candidate(1, 2, 2, 1), Candidate(2, 2, 0, 2, True), Candidate(3, 2, 0, 3, True)]  # fmt: skip
    assert choose(offered, decisions, share) == chosen


def test_spans_by_hand() -> None:
    from platform.staleness import spans

    buffer = make_buffer()
    for number, versions in enumerate([[4, 4], [2, 3, 5], [5]]):
        buffer.append(record(number, versions))
    lease = buffer.lease(6)
    assert lease is not None
    assert spans([lease.batch], current=5).metrics() == {
        "staleness/partial_ratio": pytest.approx(1 / 3),
        "staleness/max_partial_span": 3.0,
        "staleness/stale_trajectory_processed": 2.0,
    }


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8).map(sorted), min_size=1, max_size=9))
def test_the_partial_ratio_is_a_ratio(versions: list[list[int]]) -> None:
    from platform.staleness import spans

    buffer = make_buffer()
    for number, made_by in enumerate(versions):
        buffer.append(record(number, made_by))
    lease = buffer.lease(sum(map(len, versions)))
    assert lease is not None
    found = spans([lease.batch], current=9)
    assert 0 <= found.partial_ratio <= 1
    assert 0 <= found.stale <= len(versions)
    assert 0 <= found.max_partial_span <= 9


def test_trained_and_completed_lengths_show_a_bias() -> None:
    from platform.staleness import lengths

    buffer = make_buffer()
    for number, length in enumerate([1, 1, 7]):
        buffer.append(record(number, [0] * length))
    lease = buffer.lease(2)
    assert lease is not None
    assert lengths({"real": lease}) == {
        "staleness/trained_length/real": 1.0,
        "staleness/completed_length/real": 3.0,
    }
    again = buffer.lease(7)
    assert again is not None
    assert lengths({"real": again}) == {"staleness/trained_length/real": 7.0}


def test_decisions_beyond_the_bound_are_masked() -> None:
    from platform.staleness import lag_mask

    version = np.array([[3, 4, 5], [1, 2, 5]], np.int32)
    present = np.array([[True, True, False], [True, True, True]])
    # lags 2 1 - / 4 3 0; bound 2
    expected = [[True, True, False], [False, False, True]]
    assert lag_mask(version, present, current=5, bound=2).tolist() == expected


def test_a_version_from_the_future_is_a_broken_invariant() -> None:
    from platform.staleness import lag_mask

    with pytest.raises(AssertionError, match="never published"):
        lag_mask(np.array([6], np.int32), np.array([True]), current=5, bound=2)


def test_lag_statistics_by_hand() -> None:
    from platform.staleness import lag_statistics

    version = np.array([10, 9, 8, 0], np.int32)
    present = np.array([True, True, True, False])
    lag = lag_statistics(version, present, current=10, bound=1)
    # Lags 0, 1, 2: the last is beyond the bound and does not train.
    assert lag.mean == 0.5
    assert lag.over_bound == 1
    assert lag.p95 == pytest.approx(0.95)


def test_lag_of_nothing_is_zero() -> None:
    from platform.staleness import lag_statistics

    empty = lag_statistics(np.zeros(0, np.int32), np.zeros(0, np.bool_), current=4, bound=1)
    assert (empty.mean, empty.p95, empty.over_bound) == (0.0, 0.0, 0)
