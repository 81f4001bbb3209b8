"""The lifecycle of samples, as one pure table: no storage, no threads, no clock.

    admitted -> running -> buffered -> leased -> consumed          (leased -> buffered when uses are left)
    admitted, running -> failed;  buffered -> expired;  running -> admitted with the next attempt

An admitted sample waits for a collector, a running one has one. Every count is derived from the table. Samples that
ended are folded into one count per state, so the table holds only what is alive, and what was consumed under the
current version (it still fills its place of that version).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from buffers.census import Census
from buffers.samples import LOST, TRANSITIONS, UNFINISHED, Admission, Admitted, Sample, SampleState
from configs.errors import ReplayError

S = SampleState

ROUNDING = 1e-9
"""Of shares of decisions that add up: 3.0000001 samples are not 4, and what is free by less is not free."""
RECENT_SHARE = 0.05
"""Weight of the newest sample in the mean length: about the last twenty count."""


class Lifecycle(Census):
    """The table. Misuse (unknown sample, forbidden move) raises ReplayError and changes nothing."""

    def __init__(self, reuse_limit: int, longest: int) -> None:
        """``longest`` sample in decisions: what an unfinished one is taken for until one has finished."""
        assert reuse_limit >= 1
        assert longest >= 1
        self.reuse_limit = reuse_limit
        super().__init__(longest)
        self._longest = longest
        self._measured = False
        self._version: int | None = None
        self._limit = 0
        self._leases: dict[int, list[int]] = {}
        self._next_id = 0
        self._next_lease = 0

    def advance(self, version: int) -> None:
        """A new budget begins under ``version``: what was consumed before no longer fills places.

        The same version once more gives another budget under it (publishing waits, training goes on). Once this was
        called, consumed samples keep their places until the next call, so that no more than its budget is started under
        one version; without it a place is free as soon as its sample is consumed.
        """
        if self._version is None or version >= self._version:
            self._version = version
            for sample in [s for s in self._samples.values() if s.state is S.CONSUMED]:
                self._fold(sample)

    def room(self, admission: Admission) -> int:
        """Samples that may be started now.

        ``admission.limit`` decisions may be started per version, less those carried over. Unfinished samples count with
        the mean length (ordered: the longest), and the last sample that fits at all is admitted whole, with its group.
        Failed and expired samples give their places back: nobody will train on them. So whenever nothing is under way
        and the rest of the version's decisions cannot be leased, there is room.
        """
        length = float(self._longest) if admission.ordered else self._mean_length
        samples = max(0, math.ceil((admission.limit - self._held(length)) / length - ROUNDING))
        return -(-samples // admission.group) * admission.group

    def admit(self, wanted: int, admission: Admission, owner: str = "") -> list[Admitted]:
        """At most ``wanted`` samples, now running at ``owner``: first those that wait to be started (again), then new ones
        in ``room``.

        Of a new group that does not fit into ``wanted`` the rest waits for whoever asks next.
        """
        self._limit = admission.limit
        if admission.drain and self.running_before(self._version or 0):
            return []
        waiting = [s for s in self._samples.values() if s.state is S.ADMITTED]
        fresh = min(wanted - len(waiting), self.room(admission))
        for _ in range(-(-max(0, fresh) // admission.group)):
            waiting += self._new_group(admission.group)
        samples = waiting[:wanted]
        self._move([sample.id for sample in samples], S.RUNNING)
        for sample in samples:
            sample.version, sample.owner = self._version or 0, owner
        return [Admitted(sample.id, sample.attempt, sample.group) for sample in samples]

    def surplus(self, ids: Iterable[int], decisions: int) -> list[int]:
        """The first of the buffered ``ids`` that must leave before ``decisions`` more can be started; none while
        something is under way, may be started anyway, or never was.
        """
        free = self._limit - self._held(self._mean_length)
        under_way = any(sample.state in UNFINISHED for sample in self._samples.values())
        if self._limit == 0 or free > ROUNDING * self._mean_length or under_way:
            return []
        leaving = []
        for key in ids:
            if free >= decisions - ROUNDING:
                break
            leaving.append(key)
            free += self._samples[key].charge
        return leaving

    def fail(self, ids: Iterable[int]) -> None:
        """Admitted or running samples end without a record."""
        self._move(ids, S.FAILED)

    def reissue(self, ids: Iterable[int] | None = None) -> None:
        """Running samples (all, or ``ids``) wait to be started again, with attempt + 1."""
        if ids is None:
            ids = [s.id for s in self._samples.values() if s.state is S.RUNNING]
        for sample in self._move(ids, S.ADMITTED):
            sample.attempt += 1

    def reissue_of(self, owner: str) -> int:
        """The same for what runs at ``owner``, which died; how many."""
        ids = [s.id for s in self._samples.values() if s.state is S.RUNNING and s.owner == owner]
        self.reissue(ids)
        return len(ids)

    def check_store(self, sample_id: int, attempt: int) -> None:
        """Raise ReplayError unless the sample is running in this attempt."""
        sample = self._known(sample_id)
        self._check_move(sample, S.BUFFERED)
        if sample.attempt != attempt:
            raise ReplayError(
                f"record is of attempt {attempt} of sample {sample_id}, which now runs attempt {sample.attempt}",
                where="lifecycle",
                remedy="drop the record",
            )

    def store(self, sample_id: int | None, decisions: int, *, version: int = 0) -> int:
        """A running sample (or, with None, a new one that was never admitted) is buffered; its id. ``version`` made its
        first decision.
        """
        if sample_id is None:
            sample = self._new(S.BUFFERED)
        else:
            (sample,) = self._move([sample_id], S.BUFFERED)
        sample.decisions = decisions
        sample.charge = float(decisions)
        sample.version = version
        share = RECENT_SHARE if self._measured else 1.0
        self._mean_length += share * (decisions - self._mean_length)
        self._measured = True
        return sample.id

    def reserve_id(self) -> int:
        """An id for something that is stored but never a sample of the policy learner."""
        self._next_id += 1
        return self._next_id - 1

    def lease(self, ids: Iterable[int], *, asked: int) -> int:
        """Buffered samples are lent to the learner until ``commit`` or ``release``; the lease's id.

        ``asked``: decisions that the learner wanted. Whole samples are leased, so it may get more; what it did not ask
        for is not charged to the version, or the version could run out before its last batch.
        """
        samples = self._move(ids, S.LEASED)
        share = min(1.0, asked / max(1, sum(sample.decisions for sample in samples)))
        for sample in samples:
            sample.charge = sample.decisions * share
        self._next_lease += 1
        self._leases[self._next_lease - 1] = [sample.id for sample in samples]
        return self._next_lease - 1

    def commit(self, lease_id: int) -> list[int]:
        """The learner trained on them: one use more. Ids of those that are consumed now."""
        samples = [self._samples[i] for i in self._take_lease(lease_id)]
        for sample in samples:
            sample.uses += 1
        consumed = [sample for sample in samples if sample.uses == self.reuse_limit]
        self._give_back(s.id for s in samples if s.uses < self.reuse_limit)
        self._move([s.id for s in consumed], S.CONSUMED)
        return [s.id for s in consumed]

    def release(self, lease_id: int) -> None:
        """The learner did not train on them: no use."""
        self._give_back(self._take_lease(lease_id))

    def expire(self, ids: Iterable[int]) -> list[int]:
        """Buffered samples end unused (or partly used): too old, or evicted. With them go the buffered samples of their
        groups; the ids of all.
        """
        asked = list(ids)
        groups = {self._known(i).group for i in asked}
        mates = [s.id for s in self._samples.values() if s.group in groups and s.state is S.BUFFERED]
        return [sample.id for sample in self._move([*asked, *mates], S.EXPIRED)]

    def cut(self, sample_id: int, decisions: int, *, version: int) -> None:
        """The first ``decisions`` of a buffered sample count no longer; ``version`` made the first that is left."""
        sample = self._known(sample_id)
        assert sample.state is S.BUFFERED
        assert 0 < decisions < sample.decisions
        sample.decisions -= decisions
        sample.charge -= decisions
        sample.version = version

    def leased_ids(self) -> set[int]:
        """Samples in any lease."""
        return {i for ids in self._leases.values() for i in ids}

    def state(self) -> dict[str, Any]:
        """JSON types. Leases do not outlive their learner: leased samples are written as buffered."""
        samples = [asdict(sample) for sample in self._samples.values()]
        for sample in samples:
            if sample["state"] is S.LEASED:
                sample |= {"state": S.BUFFERED, "charge": float(sample["decisions"])}
            sample["state"] = str(sample["state"])
        return {
            "version": self._version,
            "limit": self._limit,
            "mean_length": self._mean_length,
            "measured": self._measured,
            "next_id": self._next_id,
            "next_lease": self._next_lease,
            "samples": samples,
            "ended": {state.value: self._ended[state] for state in SampleState},
            "ended_uses": self._ended_uses,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``. Call ``reissue`` unless the collectors continue their running samples."""
        self._version = state["version"]
        self._limit = state["limit"]
        self._mean_length = state["mean_length"]
        self._measured = state["measured"]
        self._next_id = state["next_id"]
        self._next_lease = state["next_lease"]
        samples = [Sample(**(data | {"state": SampleState(data["state"])})) for data in state["samples"]]
        self._samples = {sample.id: sample for sample in samples}
        self._ended = Counter({SampleState(name): count for name, count in state["ended"].items() if count})
        self._ended_uses = state["ended_uses"]
        self._leases = {}

    def _new(self, state: SampleState) -> Sample:
        key = self.reserve_id()
        self._samples[key] = Sample(key, state, group=key)
        return self._samples[key]

    def _new_group(self, size: int) -> list[Sample]:
        samples = [self._new(S.ADMITTED) for _ in range(size)]
        for sample in samples:
            sample.group = samples[0].id
        return samples

    def _move(self, ids: Iterable[int], to: SampleState) -> list[Sample]:
        samples = [self._known(i) for i in dict.fromkeys(ids)]
        for sample in samples:
            self._check_move(sample, to)
        for sample in samples:
            sample.state, sample.owner = to, ""
            if to in LOST or (to is S.CONSUMED and self._version is None):
                self._fold(sample)
        return samples

    def _check_move(self, sample: Sample, to: SampleState) -> None:
        if to not in TRANSITIONS[sample.state]:
            raise ReplayError(
                f"sample {sample.id} is {sample.state.value} and cannot become {to.value}",
                where="lifecycle",
                remedy="drop what refers to it",
            )

    def _give_back(self, ids: Iterable[int]) -> None:
        for sample in self._move(ids, S.BUFFERED):
            sample.charge = float(sample.decisions)

    def _take_lease(self, lease_id: int) -> list[int]:
        if lease_id not in self._leases:
            raise ReplayError(
                f"lease {lease_id} was committed or released, or is of an earlier run",
                where="lifecycle",
                remedy="commit or release each lease once",
            )
        return self._leases.pop(lease_id)

    def _fold(self, sample: Sample) -> None:
        del self._samples[sample.id]
        self._ended[sample.state] += 1
        self._ended_uses += sample.uses
