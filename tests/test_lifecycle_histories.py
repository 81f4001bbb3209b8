"""The lifecycle table: its invariants under random histories."""

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
from tests.lifecycle_helper import admit, make_table, train


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


OWNERS = st.sampled_from(["rollout_0", "rollout_1"])


class LifecycleMachine(RuleBasedStateMachine):
    """Random histories against a model that remembers every sample for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, str] = {}
        self.commits: Counter[int] = Counter()
        self.attempts: Counter[int] = Counter()
        self.places: set[int] = set()
        self.unadmitted: set[int] = set()
        self.owners: dict[int, str] = {}
        """Of the running samples."""
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

    @rule(wanted=st.integers(0, 5), owner=OWNERS)
    def admit(self, wanted: int, owner: str) -> None:
        waiting = self._in("admitted")
        admitted = self.table.admit(wanted, Admission(self.limit), owner)
        ids = [sample.sample_id for sample in admitted]
        assert {s.sample_id: s.attempt for s in admitted} == {key: self.attempts[key] for key in ids}
        again = [key for key in ids if key in self.states]
        assert again == waiting[:wanted], "what waits comes first, and no other id comes twice"
        self.states |= dict.fromkeys(ids, "running")
        self.owners |= dict.fromkeys(ids, owner)
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

    @rule(owner=OWNERS)
    def collector_dies(self, owner: str) -> None:
        """What runs there, and nothing else, waits to be started again; what it then still stores is refused."""
        ids = [key for key in self._in("running") if self.owners[key] == owner]
        before = self.table.state()
        assert self.table.reissue_of(owner) == len(ids)
        for key in ids:
            with pytest.raises(ReplayError):
                self.table.check_store(key, self.attempts[key])
        self.attempts.update(ids)
        self.states |= dict.fromkeys(ids, "admitted")
        after = self.table.state()
        others = [[s for s in state["samples"] if s["id"] not in ids] for state in (before, after)]
        assert others[0] == others[1]
        assert self.table.reissue_of(owner) == 0

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
    def what_runs_has_an_owner_and_nothing_else_has(self) -> None:
        if hasattr(self, "table"):
            found = {s["id"]: s["owner"] for s in self.table.state()["samples"] if s["owner"]}
            assert found == {key: self.owners[key] for key in self._in("running")}

    @invariant()
    def commits_are_bounded(self) -> None:
        assert all(count <= self.reuse for count in self.commits.values())


def _subset(ids: list[int]) -> st.SearchStrategy[list[int]]:
    if not ids:
        return st.just([])
    return st.lists(st.sampled_from(ids), unique=True, max_size=4).map(sorted)


LifecycleMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLifecycle = LifecycleMachine.TestCase
