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

from buffers.samples import LOST, TRANSITIONS, UNFINISHED, Admitted, Sample, SampleState, Stock
from configs.errors import ReplayError

S = SampleState

RECENT_SHARE = 0.05
"""Weight of the newest sample in the mean length: about the last twenty count."""


class Lifecycle:
    """The table. Misuse (unknown sample, forbidden move) raises ReplayError and changes nothing."""

    def __init__(self, reuse_limit: int, longest: int) -> None:
        """``longest`` sample in decisions: what an unfinished one is taken for until one has finished."""
        assert reuse_limit >= 1
        assert longest >= 1
        self.reuse_limit = reuse_limit
        self._mean_length = float(longest)
        self._measured = False
        self._version: int | None = None
        self._samples: dict[int, Sample] = {}
        self._leases: dict[int, tuple[int, list[int]]] = {}
        self._ended: Counter[SampleState] = Counter()
        self._ended_uses = 0
        self._next_id = 0
        self._next_lease = 0

    def advance(self, version: int) -> None:
        """The learner published ``version``: what it consumed before no longer fills places.

        Once this was called, consumed samples keep their places until the next call, so that no more than its budget is
        started under one version; without it a place is free as soon as its sample is consumed.
        """
        if self._version is None or version > self._version:
            self._version = version
            for sample in [s for s in self._samples.values() if s.state is S.CONSUMED]:
                self._fold(sample)

    def room(self, *, needed: int, budget: float) -> int:
        """Samples that may be started now; ``needed`` decisions make one version (design: N).

        ``floor((1 + budget) * needed)`` decisions may be started per version, less those carried over. Unfinished samples
        count with the mean length, and the last sample that fits at all is admitted whole. Failed and expired samples
        give their places back: nobody will train on them. So whenever nothing is under way and the rest of the version's
        ``needed`` decisions cannot be leased, there is room.
        """
        # The small terms keep (1 + 0.15) * 100 from becoming 114, and 3.0000001 samples from becoming 4.
        limit = math.floor((1 + budget) * needed + 1e-9)
        held = sum(
            self._mean_length if sample.state in UNFINISHED else sample.charge
            for sample in self._samples.values()
        )
        return max(0, math.ceil((limit - held) / self._mean_length - 1e-9))

    def admit(self, wanted: int, *, needed: int, budget: float) -> list[Admitted]:
        """At most ``wanted`` samples, now running: first those that wait to be started again, then new ones in ``room``."""
        waiting = [s for s in self._samples.values() if s.state is S.ADMITTED][:wanted]
        fresh = min(wanted - len(waiting), self.room(needed=needed, budget=budget))
        samples = waiting + [self._new(S.ADMITTED) for _ in range(fresh)]
        self._move([sample.id for sample in samples], S.RUNNING)
        return [Admitted(sample.id, sample.attempt) for sample in samples]

    def fail(self, ids: Iterable[int]) -> None:
        """Admitted or running samples end without a record."""
        self._move(ids, S.FAILED)

    def reissue(self, ids: Iterable[int] | None = None) -> None:
        """Running samples (all, or ``ids``) wait to be started again, with attempt + 1."""
        if ids is None:
            ids = [s.id for s in self._samples.values() if s.state is S.RUNNING]
        for sample in self._move(ids, S.ADMITTED):
            sample.attempt += 1

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

    def store(self, sample_id: int | None, decisions: int) -> int:
        """A running sample (or, with None, a new one that was never admitted) is buffered; its id."""
        if sample_id is None:
            sample = self._new(S.BUFFERED)
        else:
            (sample,) = self._move([sample_id], S.BUFFERED)
        sample.decisions = decisions
        sample.charge = float(decisions)
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
        self._next_lease += 1
        self._leases[self._next_lease - 1] = (asked, [sample.id for sample in samples])
        return self._next_lease - 1

    def commit(self, lease_id: int) -> list[int]:
        """The learner trained on them: one use more. Ids of those that are consumed now."""
        asked, ids = self._take_lease(lease_id)
        samples = [self._samples[i] for i in ids]
        total = sum(sample.decisions for sample in samples)
        for sample in samples:
            sample.uses += 1
        consumed = [sample for sample in samples if sample.uses == self.reuse_limit]
        for sample in consumed:
            sample.charge *= min(1.0, asked / total)
        self._move([s.id for s in samples if s.uses < self.reuse_limit], S.BUFFERED)
        self._move([s.id for s in consumed], S.CONSUMED)
        return [s.id for s in consumed]

    def release(self, lease_id: int) -> None:
        """The learner did not train on them: no use."""
        self._move(self._take_lease(lease_id)[1], S.BUFFERED)

    def expire(self, ids: Iterable[int]) -> None:
        """Buffered samples end unused (or partly used): too old, or evicted."""
        self._move(ids, S.EXPIRED)

    def state_of(self, sample_id: int) -> SampleState | None:
        """None when the sample ended and was folded, or never existed."""
        sample = self._samples.get(sample_id)
        return None if sample is None else sample.state

    def uses(self, sample_id: int) -> int:
        """Commits of a sample in the table."""
        return self._known(sample_id).uses

    def buffered_ids(self) -> list[int]:
        """Samples that can be leased, first admitted first."""
        return [sample.id for sample in self._samples.values() if sample.state is S.BUFFERED]

    def leased_ids(self) -> set[int]:
        """Samples in any lease."""
        return {i for _, ids in self._leases.values() for i in ids}

    def stock(self) -> Stock:
        """Decisions by who may use them."""
        samples = self._samples.values()
        return Stock(
            available=sum(s.decisions for s in samples if s.state is S.BUFFERED),
            leased=sum(s.decisions for s in samples if s.state is S.LEASED),
            running=sum(s.state in UNFINISHED for s in samples),
            mean_length=self._mean_length,
        )

    def counts(self) -> dict[str, int]:
        """Samples by state, ended ones included."""
        counts = Counter(sample.state for sample in self._samples.values()) + self._ended
        return {state.value: counts[state] for state in SampleState}

    def uses_per_sample(self) -> float:
        """Mean commits of the samples that were ever buffered; 0 when there was none."""
        stored = [sample for sample in self._samples.values() if sample.state not in UNFINISHED]
        total = len(stored) + self._ended[S.CONSUMED] + self._ended[S.EXPIRED]
        uses = sum(sample.uses for sample in stored) + self._ended_uses
        return uses / total if total else 0.0

    def state(self) -> dict[str, Any]:
        """JSON types. Leases do not outlive their learner: leased samples are written as buffered."""
        samples = [asdict(sample) for sample in self._samples.values()]
        for sample in samples:
            sample["state"] = str(S.BUFFERED if sample["state"] is S.LEASED else sample["state"])
        return {
            "version": self._version,
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
        sample = Sample(self.reserve_id(), state)
        self._samples[sample.id] = sample
        return sample

    def _move(self, ids: Iterable[int], to: SampleState) -> list[Sample]:
        samples = [self._known(i) for i in dict.fromkeys(ids)]
        for sample in samples:
            self._check_move(sample, to)
        for sample in samples:
            sample.state = to
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

    def _known(self, sample_id: int) -> Sample:
        if sample_id not in self._samples:
            raise ReplayError(
                f"sample {sample_id} has ended or never existed",
                where="lifecycle",
                remedy="drop what refers to it",
            )
        return self._samples[sample_id]

    def _take_lease(self, lease_id: int) -> tuple[int, list[int]]:
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
