"""The lifecycle table: its budget by hand, and its invariants under random histories."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from buffers.lifecycle import Lifecycle, SampleState
from configs.errors import ReplayError


def _store_all(table: Lifecycle, ids: list[int]) -> None:
    table.begin(ids)
    for key in ids:
        table.store(key)


def test_synchronous_budget() -> None:
    table = Lifecycle(reuse_limit=1)
    table.configure_admission(4, 0.0)
    ids = table.admit(10, version=0)
    assert len(ids) == 4
    _store_all(table, ids)
    table.commit(table.lease(ids))
    assert table.admit(10, version=0) == [], "what was consumed keeps its place until the next version"
    assert len(table.admit(10, version=1)) == 4


def test_carried_over_samples_use_the_next_versions_budget() -> None:
    table = Lifecycle(reuse_limit=1)
    table.configure_admission(4, 0.5)
    ids = table.admit(10, version=0)
    assert len(ids) == 6
    _store_all(table, ids)
    table.commit(table.lease(ids[:4]))
    assert len(table.admit(10, version=1)) == 4, "6 less the 2 carried over"
    table.commit(table.lease(ids[4:]))
    assert table.places == 0, "carried-over samples count for the whole version"
    assert len(table.admit(10, version=2)) == 2


def test_failed_and_expired_samples_give_their_place_back() -> None:
    table = Lifecycle(reuse_limit=1)
    table.configure_admission(3, 0.0)
    ids = table.admit(3, version=0)
    table.fail(ids[:1])
    _store_all(table, ids[1:])
    table.expire(ids[1:2])
    assert table.places == 2


def test_budget_is_not_lost_to_rounding() -> None:
    table = Lifecycle(reuse_limit=1)
    table.configure_admission(100, 0.15)
    assert table.places == 115


def test_unlimited_without_configuration() -> None:
    table = Lifecycle(reuse_limit=1)
    assert table.places is None
    assert len(table.admit(1000, version=0)) == 1000


def test_reuse() -> None:
    table = Lifecycle(reuse_limit=2)
    key = table.store(None)
    table.commit(table.lease([key]))
    assert (table.state_of(key), table.uses(key)) == (SampleState.BUFFERED, 1)
    table.release(table.lease([key]))
    assert table.uses(key) == 1
    lease = table.lease([key])
    assert table.commit(lease) == [key]
    with pytest.raises(ReplayError, match="committed or released"):
        table.commit(lease)
    assert table.counts()["consumed"] == 1
    assert table.uses_per_sample() == 2.0


def test_a_sample_is_never_in_two_leases() -> None:
    table = Lifecycle(reuse_limit=3)
    keys = [table.store(None), table.store(None)]
    table.lease(keys[:1])
    with pytest.raises(ReplayError, match="is leased and cannot become leased"):
        table.lease(keys)
    assert table.state_of(keys[1]) is SampleState.BUFFERED, "a refused lease changes nothing"


def test_reissue_outdates_the_earlier_attempt() -> None:
    table = Lifecycle(reuse_limit=1)
    (key,) = table.admit(1, version=0)
    table.begin([key])
    assert table.reissue() == {key: 1}
    table.begin([key])
    with pytest.raises(ReplayError, match="attempt 0"):
        table.check_store(key, attempt=0)
    table.check_store(key, attempt=1)


def test_an_ended_sample_is_refused() -> None:
    table = Lifecycle(reuse_limit=1)
    (key,) = table.admit(1, version=0)
    table.fail([key])
    with pytest.raises(ReplayError, match="has ended"):
        table.check_store(key, attempt=0)


def test_memory_does_not_grow_with_what_ended() -> None:
    table = Lifecycle(reuse_limit=1)
    table.configure_admission(2, 0.0)
    for version in range(500):
        ids = table.admit(2, version)
        _store_all(table, ids)
        table.commit(table.lease(ids))
        table.commit(table.lease([table.store(None)]))
    assert len(table.state()["samples"]) == 2
    assert table.counts()["consumed"] == 1500


class LifecycleMachine(RuleBasedStateMachine):
    """Random histories against a model that remembers every sample for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, str] = {}
        self.commits: Counter[int] = Counter()
        self.attempts: Counter[int] = Counter()
        self.admitted: set[int] = set()
        self.started: set[int] = set()
        self.carried: set[int] = set()
        self.leases: dict[int, list[int]] = {}
        self.version = 0

    @initialize(
        reuse=st.integers(1, 3),
        samples=st.integers(1, 6),
        budget=st.floats(0, 2),
    )
    def build(self, reuse: int, samples: int, budget: float) -> None:
        self.reuse = reuse
        self.limit = int((1 + budget) * samples + 1e-9)
        self.table = Lifecycle(reuse)
        self.table.configure_admission(samples, budget)

    def _in(self, *states: str) -> list[int]:
        return sorted(key for key, state in self.states.items() if state in states)

    @rule(count=st.integers(0, 5), publish=st.booleans())
    def admit(self, count: int, publish: bool) -> None:
        if publish:
            self.version += 1
            self.started = set()
            live = self._in("admitted", "running", "buffered", "leased")
            self.carried = {key for key in live if key in self.admitted}
        ids = self.table.admit(count, self.version)
        assert not set(ids) & set(self.states), "ids are never used twice"
        self.started |= set(ids)
        self.admitted |= set(ids)
        self.states |= dict.fromkeys(ids, "admitted")
        filled = [k for k in self.started | self.carried if self.states[k] not in ("failed", "expired")]
        assert len(filled) <= self.limit
        assert len(ids) == count or len(filled) == self.limit, "never refuses what the budget allows"

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        ids = data.draw(_subset(self._in("admitted")))
        self.table.begin(ids)
        self.states |= dict.fromkeys(ids, "running")

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        ids = data.draw(_subset(self._in("admitted", "running")))
        self.table.fail(ids)
        self.states |= dict.fromkeys(ids, "failed")

    @rule(data=st.data())
    def reissue(self, data: st.DataObject) -> None:
        ids = data.draw(_subset(self._in("admitted", "running")))
        self.attempts.update(ids)
        assert self.table.reissue(ids) == {key: self.attempts[key] for key in ids}
        self.states |= dict.fromkeys(ids, "admitted")

    @rule()
    def store_unadmitted(self) -> None:
        self.states[self.table.store(None)] = "buffered"

    @precondition(lambda self: self._in("running"))
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self._in("running")))
        self.table.check_store(key, self.attempts[key])
        with pytest.raises(ReplayError):
            self.table.check_store(key, self.attempts[key] + 1)
        self.table.store(key)
        self.states[key] = "buffered"

    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        ids = data.draw(_subset(self._in("buffered")))
        self.leases[self.table.lease(ids)] = ids
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
        for move in (self.table.begin, self.table.fail, self.table.lease, self.table.expire):
            with pytest.raises(ReplayError):
                move([key])

    @rule()
    def restore(self) -> None:
        saved = json.loads(json.dumps(self.table.state()))
        twin = Lifecycle(self.reuse)
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
            live = set(self._in("admitted", "running", "buffered", "leased")) & self.admitted
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
