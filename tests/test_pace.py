"""Buffers, weight store and staleness rules together: their invariants under random histories, and that nobody waits for ever."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from buffers.batches import Lease
from buffers.memory import MemoryBuffer
from buffers.shelf import bytes_per_row
from configs.system import BufferConfig
from tests.records_helper import make_record, make_spec

if TYPE_CHECKING:
    from platform.staleness import Rules

SPEC = make_spec(size=2)
ALIVE = ("admitted", "running", "buffered", "leased")


@dataclass
class Model:
    """What the buffers should hold, sample by sample, for ever."""

    state: dict[int, str] = field(default_factory=dict)
    attempt: Counter[int] = field(default_factory=Counter)
    versions: dict[int, list[int]] = field(default_factory=dict)
    """Of the running attempt."""
    owners: dict[int, str] = field(default_factory=dict)
    """Collector that started the running attempt."""
    commits: Counter[int] = field(default_factory=Counter)
    version: int = 0
    held: int = 0
    """The version that inference acts with."""


def make_buffer(reuse: int) -> MemoryBuffer:
    config = BufferConfig(max_bytes=2000 * bytes_per_row(SPEC), reuse_limit=reuse, held_out=0.0)
    return MemoryBuffer(SPEC, config, seed=0, name="real")


def make_record_of(key: int, attempt: int, versions: list[int], source: str = "real") -> Any:
    record = make_record(SPEC, key, len(versions), attempt=attempt, source=source)
    record.version[:] = versions
    return record


@st.composite
def rules_strategy(draw: st.DrawFn) -> Rules:
    from platform.staleness import Rules

    on_violation = draw(st.sampled_from(["mask", "cut", "drop", "wait"]))
    return Rules(
        budget=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        bound=draw(st.integers(1 if on_violation == "wait" else 0, 3)),
        on_violation=on_violation,
        on_policy_min_ratio=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])),
        ordered=draw(st.booleans()),
        drain=draw(st.booleans()),
        group=draw(st.sampled_from([1, 1, 2, 3])),
    )


class PaceMachine(RuleBasedStateMachine):
    """Admit, decide, finish, fail, imagine, lease, commit, release, publish, checkpoint, restore, crash."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.leases: dict[int, Lease] = {}
        self.saved: tuple[Any, Any, Model] | None = None

    @initialize(
        rules=rules_strategy(), turn=st.integers(1, 8), turns=st.integers(1, 2), reuse=st.integers(1, 2)
    )
    def build(self, rules: Rules, turn: int, turns: int, reuse: int) -> None:
        from platform.weights import WeightStore

        self.rules, self.turn, self.reuse = rules, turn, reuse
        self.admission, self.ahead = rules.admission(turn * turns), rules.ahead(turn * turns)
        self.real, self.imagined = make_buffer(reuse), make_buffer(1)
        self.store = WeightStore()
        self.store.publish("policy", 0, {})
        for buffer in (self.real, self.imagined):
            buffer.advance(0)

    def _in(self, *states: str) -> list[int]:
        return sorted(key for key, state in self.model.state.items() if state in states)

    @rule(wanted=st.integers(0, 6), owner=st.sampled_from(["rollout_0", "rollout_1"]))
    def admit(self, wanted: int, owner: str) -> None:
        model, elsewhere = self.model, self.imagined.room(self.ahead)
        waiting, room = self._in("admitted"), self.real.room(self.admission)
        admitted = self.real.admit(wanted, self.admission, owner)
        if self.rules.drain and self.real.running_before(model.version):
            assert admitted == []
            return
        ids = [sample.sample_id for sample in admitted]
        assert ids[: len(waiting)] == waiting[:wanted], "what waits comes first"
        assert len(ids) >= min(wanted, len(waiting) + room), "never refuses what the budget allows"
        for sample in admitted:
            assert sample.attempt == model.attempt[sample.sample_id]
            for mate in range(sample.group, sample.group + self.rules.group):
                model.state.setdefault(mate, "admitted")
            model.state[sample.sample_id] = "running"
            model.owners[sample.sample_id] = owner
            model.versions[sample.sample_id] = []
        assert self.imagined.room(self.ahead) == elsewhere, "real samples take no place of imagined ones"

    @precondition(lambda self: self._in("running"))
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        model = self.model
        key = data.draw(st.sampled_from(self._in("running")))
        if not self.rules.drain or self.real.running_before(model.held + 1) == 0:
            newest = self.store.fetch("policy", -1)
            assert newest is not None
            model.held = newest.version
        if len(model.versions[key]) < SPEC.max_decisions:
            model.versions[key].append(model.held)
        made_by = model.versions[key]
        assert made_by == sorted(made_by), "versions never decrease"
        assert not self.rules.drain or len(set(made_by)) == 1, "it ends under the version that it began with"

    @precondition(lambda self: any(self.model.versions[key] for key in self._in("running")))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        model = self.model
        key = data.draw(st.sampled_from([key for key in self._in("running") if model.versions[key]]))
        self.real.append(make_record_of(key, model.attempt[key], model.versions[key]), key)
        model.state[key] = "buffered"

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        ids = self._in("running")[: data.draw(st.integers(0, 1))]
        self.real.fail(ids)
        self.model.state |= dict.fromkeys(ids, "failed")

    @rule(length=st.integers(1, 3), lag=st.integers(0, 2))
    def imagine(self, length: int, lag: int) -> None:
        elsewhere = self.real.room(self.admission)
        if self.imagined.room(self.ahead):
            versions = [max(0, self.model.version - lag)] * length
            self.imagined.extend([make_record_of(0, 0, versions, "imagined")])
        assert self.real.room(self.admission) == elsewhere, "imagined segments take no place of real ones"

    @rule(real=st.booleans())
    def lease(self, real: bool) -> None:
        model = self.model
        before = self.real.stats()["lifecycle"]
        gate = self.rules.gate(model.version, self.turn, real=real)
        lease = (self.real if real else self.imagined).lease(self.turn, gate=gate)
        self._check(lease, real=real)
        if not real:
            assert self.real.stats()["lifecycle"] == before
            if lease is not None:
                self.imagined.commit(lease.lease_id)
            return
        gone = self.real.stats()["lifecycle"]["expired"] - before["expired"]
        left = {sample["id"] for sample in self.real.state()["lifecycle"]["samples"]}
        expired = [key for key in self._in("buffered") if key not in left]
        assert len(expired) == gone
        model.state |= dict.fromkeys(expired, "expired")
        if lease is not None:
            self.leases[lease.lease_id] = lease
            assert all(model.state[key] == "buffered" for key in lease.ids)
            model.state |= dict.fromkeys(lease.ids, "leased")

    def _check(self, lease: Lease | None, *, real: bool) -> None:
        """Nothing beyond the bound trains; the turn is full and as much on-policy as it must be."""
        from platform.staleness import lag_mask

        if lease is None:
            return
        batch, rules, current = lease.batch, self.rules, self.model.version
        lag = (current - batch.version)[batch.decisions]
        assert (lag >= 0).all()
        mask = lag_mask(batch.version, batch.decisions, current, rules.bound)
        assert ((current - batch.version)[mask] <= rules.bound).all()
        assert mask.any(axis=1).all(), "no sample is lent for nothing"
        if rules.on_violation != "mask":
            assert (lag <= rules.bound).all()
        assert batch.decisions.sum() >= self.turn
        if real:
            assert (lag == 0).sum() >= rules.on_policy_min_ratio * lag.size - 1e-9
            groups = {key - key % rules.group for key in lease.ids}
            assert not rules.ordered or lease.ids == sorted(
                lease.ids, key=lambda k: (self.model.commits[k], k)
            )
            unfinished = {key - key % rules.group for key in self._in("admitted", "running")}
            assert not groups & unfinished, "a group is lent whole"
            assert not rules.ordered or max(lease.ids) < min(self._in("admitted", "running"), default=10**9)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), trained=st.booleans())
    def end_lease(self, data: st.DataObject, trained: bool) -> None:
        model = self.model
        key = data.draw(st.sampled_from(sorted(self.leases)))
        ids = self.leases.pop(key).ids
        model.state |= dict.fromkeys(ids, "buffered")
        if not trained:
            self.real.release(key)
            return
        self.real.commit(key)
        model.commits.update(ids)
        model.state |= {i: "consumed" for i in ids if model.commits[i] == self.reuse}

    @rule()
    def publish(self) -> None:
        model = self.model
        before = self.real.stats()["lifecycle"], self.imagined.stats()["lifecycle"]
        oldest = self.real.oldest_version()
        if self.rules.may_publish(model.version, oldest):
            model.version += 1
            self.store.publish("policy", model.version, {})
        for buffer in (self.real, self.imagined):
            buffer.advance(model.version)
        assert (self.real.stats()["lifecycle"], self.imagined.stats()["lifecycle"]) == before, (
            "nothing is lost"
        )

    @rule()
    def checkpoint(self) -> None:
        states = self.real.state(), self.imagined.state()
        model = copy.deepcopy(self.model)
        model.state |= dict.fromkeys(self._in("leased"), "buffered")
        self.saved = (*copy.deepcopy(states), model)

    @precondition(lambda self: self.saved is not None)
    @rule(restart=st.booleans())
    def restore(self, restart: bool) -> None:
        """Collectors go on with their running samples, or died and start them again with the next attempt."""
        from platform.weights import WeightStore

        assert self.saved is not None
        real, imagined, model = self.saved
        self.model, self.leases = copy.deepcopy(model), {}
        self.real, self.imagined = make_buffer(self.reuse), make_buffer(1)
        self.real.load(copy.deepcopy(real))
        self.imagined.load(copy.deepcopy(imagined))
        for buffer, state in ((self.real, real), (self.imagined, imagined)):
            assert buffer.state()["lifecycle"] == state["lifecycle"], "restore of checkpoint is the identity"
            assert buffer.state()["shelf"]["items"] == state["shelf"]["items"]
            assert buffer.state()["traffic"] == state["traffic"]
        self.store = WeightStore()
        self.store.publish("policy", self.model.version, {})
        if restart:
            self._reissue(self._in("running"))

    @rule(owner=st.sampled_from(["rollout_0", "rollout_1"]))
    def collector_dies(self, owner: str) -> None:
        """Its samples fill the same places until somebody starts them again."""
        ids, room = self._owned(owner), self.real.room(self.admission)
        assert self.real.reissue_of(owner) == len(ids)
        self._started_anew(ids)
        assert self.real.room(self.admission) == room

    @precondition(lambda self: self.saved is not None)
    @rule(owner=st.sampled_from(["rollout_0", "rollout_1"]))
    def restore_without_a_collector(self, owner: str) -> None:
        """A checkpoint may be older than what its table says runs at a collector that is gone."""
        self.restore(restart=False)
        ids = self._owned(owner)
        assert self.real.reissue_of(owner) == len(ids)
        self._started_anew(ids)

    def _owned(self, owner: str) -> list[int]:
        return [key for key in self._in("running") if self.model.owners[key] == owner]

    def _reissue(self, ids: list[int]) -> None:
        self.real.reissue(ids)
        self._started_anew(ids)

    def _started_anew(self, ids: list[int]) -> None:
        self.model.attempt.update(ids)
        self.model.state |= dict.fromkeys(ids, "admitted")

    @invariant()
    def every_sample_is_in_exactly_one_state(self) -> None:
        if hasattr(self, "real"):
            counts = {k: n for k, n in self.real.stats()["lifecycle"].items() if n}
            assert counts == Counter(self.model.state.values())

    @invariant()
    def admitted_and_not_consumed_is_bounded(self) -> None:
        """A sample has at least one decision, and the last one that fits is admitted with its group."""
        if hasattr(self, "real"):
            assert len(self._in(*ALIVE)) <= self.admission.limit + self.rules.group - 1

    @invariant()
    def commits_are_bounded(self) -> None:
        if hasattr(self, "real"):
            assert all(count <= self.reuse for count in self.model.commits.values())

    @invariant()
    def what_waits_never_breaks_the_bound(self) -> None:
        if hasattr(self, "real") and self.rules.on_violation == "wait":
            oldest = self.real.oldest_version()
            assert oldest is None or self.model.version - oldest <= self.rules.bound


PaceMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPace = PaceMachine.TestCase


def rounded() -> dict[str, Any]:
    """Groups of two fill turns of 21: what is charged for them adds up to the limit but for the last bit."""
    from platform.staleness import Rules

    rules = Rules(budget=0.0, bound=1, on_violation="mask", on_policy_min_ratio=1.0, group=2)
    return {"rules": rules, "turn": 21, "turns": 3, "slots": 1, "lengths": [1], "speed": 1}


def waiting(share: float) -> dict[str, Any]:
    """One old sample that a flow of fresh ones would keep from its turn for ever, while publishing waits for it."""
    from platform.staleness import Rules

    rules = Rules(budget=1.0, bound=1, on_violation="wait", on_policy_min_ratio=share)
    return {"rules": rules, "turn": 1, "turns": 1, "slots": 1, "lengths": [1], "speed": 2}


@settings(max_examples=80, deadline=None)
@example(**waiting(0.3), reuse=1)
@example(**waiting(1.0), reuse=1)
@example(**waiting(0.0), reuse=3)
@example(**rounded(), reuse=2)
@given(
    rules=rules_strategy(),
    turn=st.integers(1, 30),
    turns=st.integers(1, 3),
    reuse=st.integers(1, 3),
    slots=st.integers(1, 6),
    lengths=st.lists(st.integers(1, SPEC.max_decisions), min_size=1, max_size=12),
    speed=st.integers(1, 5),
)
def test_nobody_waits_for_ever(
    rules: Rules, turn: int, turns: int, reuse: int, slots: int, lengths: list[int], speed: int
) -> None:
    """Whatever the rules and the lengths: collectors and a learner that obey them publish version after version.

    ``speed``: decisions of every slot between two looks of the learner.
    """
    buffer, admission = make_buffer(reuse), rules.admission(turn * turns)
    buffer.advance(0)
    running: dict[int, list[int]] = {}
    attempts: dict[int, int] = {}
    version = held = unpublished = idle = 0
    while version < 6:
        for _ in range(speed):
            for sample in buffer.admit(slots - len(running), admission):
                running[sample.sample_id], attempts[sample.sample_id] = [], sample.attempt
            if not rules.drain or buffer.running_before(held + 1) == 0:
                held = version
            for key, made_by in list(running.items()):
                made_by.append(held)
                if len(made_by) == lengths[key % len(lengths)]:
                    buffer.append(make_record_of(key, attempts[key], running.pop(key)), key)
        lease = buffer.lease(turn, gate=rules.gate(version, turn, real=True))
        if lease is not None:
            buffer.commit(lease.lease_id)
            unpublished += 1
        idle = 0 if lease is not None else idle + 1
        assert idle < 60 * SPEC.max_decisions, f"stuck at version {version}: {buffer.stats()['lifecycle']}"
        assert unpublished < 1000, "never publishes"
        if unpublished >= turns and rules.may_publish(version, buffer.oldest_version()):
            version, unpublished = version + 1, 0
            buffer.advance(version)
        elif lease is not None and unpublished % turns == 0:
            buffer.advance(version)
