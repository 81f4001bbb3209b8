"""The lifecycle table: its budget by hand, and its invariants under random histories."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from buffers.lifecycle import Lifecycle
from buffers.samples import Admission, SampleState
from configs.errors import ReplayError

MANY = 10**6


def admission_limit(needed: int, budget: float) -> int:
    return math.floor((1 + budget) * needed)


def make_table(*, reuse_limit: int = 1, longest: int = 1) -> Lifecycle:
    return Lifecycle(reuse_limit, longest)


def admit(table: Lifecycle, wanted: int, *, needed: int = MANY, budget: float = 0.0) -> list[int]:
    return [sample.sample_id for sample in table.admit(wanted, Admission(admission_limit(needed, budget)))]


def room(table: Lifecycle, needed: int, budget: float) -> int:
    return table.room(Admission(admission_limit(needed, budget)))


def store_all(table: Lifecycle, ids: list[int], decisions: int = 1) -> None:
    for key in ids:
        table.store(key, decisions)


def train(table: Lifecycle, ids: list[int], asked: int = MANY) -> None:
    table.commit(table.lease(ids, asked=asked))


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


@settings(max_examples=100, deadline=None)
@given(
    batch=st.integers(1, 30),
    turns=st.integers(1, 4),
    budget=st.sampled_from([0.0, 0.3, 1.0]),
    reuse_limit=st.integers(1, 3),
    versioned=st.booleans(),
    slots=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=20),
)
def test_the_budget_never_starves_the_learner(
    batch: int, turns: int, budget: float, reuse_limit: int, versioned: bool, slots: int, lengths: list[int]
) -> None:
    """Whatever the lengths, a learner that takes whole samples and publishes every ``turns`` turns goes on for ever."""
    table = make_table(reuse_limit=reuse_limit, longest=12)
    next_length = itertools.cycle(lengths)
    for turn in range(20):
        if versioned and turn % turns == 0:
            table.advance(turn // turns)
        while table.stock().available < batch:
            ids = admit(table, slots, needed=batch * turns, budget=budget)
            assert ids, f"no room at {table.stock()}"
            for key in ids:
                table.store(key, next(next_length))
        lengths_by_id = {s["id"]: s["decisions"] for s in table.state()["samples"]}
        taken: list[int] = []
        for key in table.buffered_ids():
            if sum(lengths_by_id[k] for k in taken) < batch:
                taken.append(key)
        train(table, taken, asked=batch)


class LifecycleMachine(RuleBasedStateMachine):
    """Random histories against a model that remembers every sample for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, str] = {}
        self.commits: Counter[int] = Counter()
        self.attempts: Counter[int] = Counter()
        self.places: set[int] = set()
        self.unadmitted: set[int] = set()
        self.leases: dict[int, list[int]] = {}
        self.version = 0

    @initialize(reuse=st.integers(1, 3), needed=st.integers(1, 6), budget=st.floats(0, 2))
    def build(self, reuse: int, needed: int, budget: float) -> None:
        self.reuse, self.needed, self.budget = reuse, needed, budget
        self.limit = math.floor((1 + budget) * needed + 1e-9)
        self.table = Lifecycle(reuse, longest=1)
        self.table.advance(0)

    def _in(self, *states: str) -> list[int]:
        return sorted(key for key, state in self.states.items() if state in states)

    @rule()
    def publish(self) -> None:
        self.version += 1
        self.table.advance(self.version)
        self.places = set(self._in("admitted", "running", "buffered", "leased"))

    @rule(wanted=st.integers(0, 5))
    def admit(self, wanted: int) -> None:
        waiting = self._in("admitted")
        admitted = self.table.admit(wanted, Admission(self.limit))
        ids = [sample.sample_id for sample in admitted]
        assert {s.sample_id: s.attempt for s in admitted} == {key: self.attempts[key] for key in ids}
        again = [key for key in ids if key in self.states]
        assert again == waiting[:wanted], "what waits comes first, and no other id comes twice"
        self.states |= dict.fromkeys(ids, "running")
        self.places |= set(ids)
        filled = [key for key in self.places if self.states[key] not in ("failed", "expired")]
        if len(ids) > len(again):
            assert len(filled) <= self.limit
        assert len(ids) == wanted or len(filled) >= self.limit, "never refuses what the budget allows"

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        ids = data.draw(_subset(self._in("admitted", "running")))
        self.table.fail(ids)
        self.states |= dict.fromkeys(ids, "failed")

    @rule(data=st.data())
    def reissue(self, data: st.DataObject) -> None:
        ids = data.draw(_subset(self._in("running")))
        self.attempts.update(ids)
        self.table.reissue(ids)
        self.states |= dict.fromkeys(ids, "admitted")

    @rule()
    def store_unadmitted(self) -> None:
        key = self.table.store(None, 1)
        self.states[key] = "buffered"
        self.places.add(key)
        self.unadmitted.add(key)

    @precondition(lambda self: self._in("running"))
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self._in("running")))
        self.table.check_store(key, self.attempts[key])
        with pytest.raises(ReplayError):
            self.table.check_store(key, self.attempts[key] + 1)
        self.table.store(key, 1)
        self.states[key] = "buffered"

    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        ids = data.draw(_subset(self._in("buffered")))
        self.leases[self.table.lease(ids, asked=len(ids))] = ids
        self.states |= dict.fromkeys(ids, "leased")

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), commit=st.booleans())
    def end_lease(self, data: st.DataObject, commit: bool) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        ids = self.leases.pop(lease_id)
        if not commit:
            self.table.release(lease_id)
            self.states |= dict.fromkeys(ids, "buffered")
            return
        self.commits.update(ids)
        consumed = [key for key in ids if self.commits[key] == self.reuse]
        assert sorted(self.table.commit(lease_id)) == consumed
        self.states |= dict.fromkeys(ids, "buffered") | dict.fromkeys(consumed, "consumed")

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        ids = data.draw(_subset(self._in("buffered")))
        self.table.expire(ids)
        self.states |= dict.fromkeys(ids, "expired")

    @precondition(lambda self: self._in("consumed", "expired", "failed"))
    @rule(data=st.data())
    def nothing_returns_from_the_end(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self._in("consumed", "expired", "failed")))
        for move in (self.table.reissue, self.table.fail, self.table.expire):
            with pytest.raises(ReplayError):
                move([key])
        with pytest.raises(ReplayError):
            self.table.lease([key], asked=1)
        with pytest.raises(ReplayError):
            self.table.check_store(key, self.attempts[key])

    @rule()
    def restore(self) -> None:
        saved = json.loads(json.dumps(self.table.state()))
        twin = Lifecycle(self.reuse, longest=1)
        twin.load(saved)
        assert twin.state() == saved
        self.table = twin
        self.leases = {}
        self.states |= dict.fromkeys(self._in("leased"), "buffered")

    @invariant()
    def every_sample_is_in_exactly_one_state(self) -> None:
        if hasattr(self, "table"):
            expected = Counter(self.states.values())
            assert self.table.counts() == {state.value: expected[state.value] for state in SampleState}

    @invariant()
    def admitted_and_not_ended_is_bounded(self) -> None:
        if hasattr(self, "table"):
            live = set(self._in("admitted", "running", "buffered", "leased")) - self.unadmitted
            assert len(live) <= self.limit

    @invariant()
    def commits_are_bounded(self) -> None:
        assert all(count <= self.reuse for count in self.commits.values())


def _subset(ids: list[int]) -> st.SearchStrategy[list[int]]:
    if not ids:
        return st.just([])
    return st.lists(st.sampled_from(ids), unique=True, max_size=4).map(sorted)


LifecycleMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLifecycle = LifecycleMachine.TestCase
