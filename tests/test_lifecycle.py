"""The lifecycle table: its budget and its moves by hand."""

from __future__ import annotations

import itertools

import pytest

from buffers.lifecycle import Lifecycle
from buffers.samples import Admission, SampleState
from configs.errors import ReplayError
from tests.lifecycle_helper import MANY, admit, make_table, room, store_all, train


def test_synchronous_budget() -> None:
    table = make_table()
    table.advance(0)
    ids = admit(table, 10, needed=4)
    assert len(ids) == 4
    store_all(table, ids)
    train(table, ids)
    assert admit(table, 10, needed=4) == [], "what was consumed keeps its place until the next version"
    table.advance(1)
    assert len(admit(table, 10, needed=4)) == 4


def test_carried_over_samples_use_the_next_versions_budget() -> None:
    table = make_table()
    table.advance(0)
    ids = admit(table, 10, needed=4, budget=0.5)
    assert len(ids) == 6
    store_all(table, ids)
    train(table, ids[:4])
    table.advance(1)
    assert len(admit(table, 10, needed=4, budget=0.5)) == 4, "6 less the 2 carried over"
    train(table, ids[4:])
    assert room(table, 4, 0.5) == 0, "carried-over samples count for the whole version"
    table.advance(2)
    assert room(table, 4, 0.5) == 2


def test_without_versions_a_place_is_free_at_once() -> None:
    table = make_table()
    ids = admit(table, 9, needed=4)
    store_all(table, ids)
    train(table, ids)
    assert room(table, 4, 0.0) == 4


def test_the_budget_is_counted_in_decisions() -> None:
    table = make_table(longest=8)
    assert room(table, 20, 0.0) == 3, "before anything is known a sample counts as the longest"
    (first,) = admit(table, 1, needed=20)
    assert room(table, 20, 0.0) == 2
    table.store(first, 4)
    assert table.stock().mean_length == 4.0
    assert room(table, 20, 0.0) == 4
    table.store(None, 14)
    assert table.stock().mean_length == pytest.approx(4 + 0.05 * 10)
    assert room(table, 20, 0.0) == 1, "2 decisions are left: one sample, whole"
    assert table.stock().available == 18


def test_a_lease_of_whole_samples_leaves_room_for_the_next_batch_while_it_is_trained() -> None:
    """Batches of 4 decisions in samples of 3, one version ahead: 4 are charged of the 6 that are lent."""
    table = make_table(longest=3)
    table.advance(0)
    ids = admit(table, 9, needed=4, budget=1.0)
    assert len(ids) == 3
    store_all(table, ids, 3)
    lease = table.lease(ids[:2], asked=4)
    assert room(table, 4, 1.0) == 1, "3 decisions wait and 8 - 4 - 3 places are free"
    twin = make_table(longest=3)
    twin.load(table.state())
    assert room(twin, 4, 1.0) == 0, "no lease survives a restart"
    table.release(lease)
    assert room(table, 4, 1.0) == 0


def test_failed_and_expired_samples_give_their_place_back() -> None:
    table = make_table()
    ids = admit(table, 3, needed=3)
    table.fail(ids[:1])
    store_all(table, ids[1:])
    table.expire(ids[1:2])
    assert room(table, 3, 0.0) == 2


def test_reuse() -> None:
    table = make_table(reuse_limit=2)
    key = table.store(None, 5)
    train(table, [key])
    assert (table.state_of(key), table.uses(key)) == (SampleState.BUFFERED, 1)
    table.release(table.lease([key], asked=1))
    assert table.uses(key) == 1
    lease = table.lease([key], asked=1)
    assert table.stock().leased == 5
    assert table.commit(lease) == [key]
    with pytest.raises(ReplayError, match="committed or released"):
        table.commit(lease)
    assert table.counts()["consumed"] == 1
    assert table.uses_per_sample() == 2.0


def test_a_sample_is_never_in_two_leases() -> None:
    table = make_table(reuse_limit=3)
    keys = [table.store(None, 1), table.store(None, 1)]
    table.lease(keys[:1], asked=1)
    with pytest.raises(ReplayError, match="is leased and cannot become leased"):
        table.lease(keys, asked=1)
    assert table.state_of(keys[1]) is SampleState.BUFFERED, "a refused lease changes nothing"


def test_reissued_samples_are_handed_out_first_and_outdate_the_earlier_attempt() -> None:
    table = make_table()
    ids = admit(table, 2)
    table.reissue(ids[1:])
    assert [(s.sample_id, s.attempt) for s in table.admit(2, Admission(3))] == [(1, 1), (2, 0)]
    with pytest.raises(ReplayError, match="attempt 0"):
        table.check_store(ids[1], attempt=0)
    table.check_store(ids[1], attempt=1)


def test_ordered_admission_does_not_depend_on_who_finishes_first() -> None:
    """Ten decisions make a version. Samples have 3, 5, 1, 4, 2 decisions, so the first four make it: 3 + 5 + 1 < 10."""
    decisions = [3, 5, 1, 4, 2]
    for first in itertools.permutations(range(2)):
        table = make_table(longest=5)
        running = admit_ordered(table, 5)
        assert running == [0, 1], "each counts as the longest until it ended"
        table.store(first[0], decisions[first[0]])
        running = [key for key in running if key != first[0]] + admit_ordered(table, 5)
        while running:
            key = running.pop()
            table.store(key, decisions[key])
            running += admit_ordered(table, 5)
        assert table.buffered_ids() == [0, 1, 2, 3]


def admit_ordered(table: Lifecycle, wanted: int) -> list[int]:
    return [s.sample_id for s in table.admit(wanted, Admission(10, ordered=True))]


def test_ordered_leases_stop_at_a_sample_that_still_runs() -> None:
    table = make_table()
    ids = admit(table, 3)
    store_all(table, [ids[0], ids[2]])
    assert table.buffered_ids(ordered=True) == ids[:1]
    assert table.buffered_ids() == [ids[0], ids[2]]
    table.fail([ids[1]])
    assert table.buffered_ids(ordered=True) == [ids[0], ids[2]]


def test_drained_admission_waits_for_samples_of_earlier_versions() -> None:
    table, drained = make_table(), Admission(MANY, drain=True)
    table.advance(4)
    old = [s.sample_id for s in table.admit(2, drained)]
    assert len(table.admit(1, drained)) == 1, "the same version runs on"
    table.advance(5)
    assert table.running_before(5) == 3
    assert table.admit(1, drained) == []
    table.reissue(old[:1])
    table.fail(old[1:])
    assert table.admit(1, drained) == [], "one still runs"
    table.store(2, 1, version=4)
    assert [(s.sample_id, s.attempt) for s in table.admit(2, drained)] == [(old[0], 1), (3, 0)]


def test_a_group_is_admitted_whole_and_leased_together() -> None:
    table, group = make_table(), Admission(4, group=3)
    first = table.admit(2, group)
    assert [(s.sample_id, s.group) for s in first] == [(0, 0), (1, 0)], "the third waits for a collector"
    store_all(table, [0, 1])
    assert table.buffered_ids() == []
    rest = table.admit(9, group)
    assert [(s.sample_id, s.group) for s in rest] == [(2, 0), (3, 3), (4, 3), (5, 3)]
    assert table.room(group) == 0, "the last group that fits at all is whole"
    table.store(2, 1)
    assert table.buffered_ids() == [0, 1, 2]
    store_all(table, [3, 4])
    table.fail([5])
    assert table.buffered_ids() == [0, 1, 2, 3, 4], "a failed sample does not hold up its group"
    assert sorted(table.expire([3])) == [3, 4], "a group expires together"


def test_oldest_version_by_hand() -> None:
    table = make_table()
    assert table.oldest() is None
    table.advance(3)
    (running,) = admit(table, 1)
    assert table.oldest() == 3
    table.advance(7)
    buffered = table.store(None, 4, version=5)
    table.store(running, 1, version=6)
    assert table.oldest() == 5
    table.cut(buffered, 3, version=7)
    assert table.oldest() == 6
    assert table.stock().available == 2
    table.lease([running], asked=1)
    assert table.oldest() == 6, "what is lent may still train"


def test_surplus_makes_room_only_where_nothing_else_would() -> None:
    table = make_table()
    store_all(table, admit(table, 4, needed=4))
    assert table.surplus([0, 1, 2, 3], decisions=2) == [0, 1]
    assert admit(table, 1, needed=5) == [4]
    assert table.surplus([0, 1, 2, 3], decisions=2) == [], "a sample runs"
    table.store(4, 1)
    table.expire([0])
    assert table.surplus([1, 2, 3], decisions=2) == [], "one more may be started anyway"


def test_an_ended_sample_is_refused() -> None:
    table = make_table()
    (key,) = admit(table, 1)
    table.fail([key])
    with pytest.raises(ReplayError, match="has ended"):
        table.check_store(key, attempt=0)


def test_memory_does_not_grow_with_what_ended() -> None:
    table = make_table()
    for version in range(500):
        table.advance(version)
        ids = admit(table, 2, needed=2)
        store_all(table, ids)
        train(table, ids)
    assert len(table.state()["samples"]) == 2
    assert table.counts()["consumed"] == 1000
