"""The lifecycle of samples, as one pure table: no storage, no threads, no clock.

    admitted -> running -> buffered -> leased -> consumed          (leased -> buffered when uses are left)
    admitted, running -> failed;  buffered -> expired;  admitted, running -> admitted with the next attempt

Every count is derived from the table. Samples that ended are folded into one count per state, so the table holds only
what is alive, and what was consumed under the current version (it still fills a place of that version).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from configs.errors import ReplayError


class SampleState(StrEnum):
    """Where a sample is."""

    ADMITTED = "admitted"
    RUNNING = "running"
    BUFFERED = "buffered"
    LEASED = "leased"
    CONSUMED = "consumed"
    EXPIRED = "expired"
    FAILED = "failed"


S = SampleState

TRANSITIONS: dict[SampleState, frozenset[SampleState]] = {
    S.ADMITTED: frozenset({S.ADMITTED, S.RUNNING, S.FAILED}),
    S.RUNNING: frozenset({S.ADMITTED, S.BUFFERED, S.FAILED}),
    S.BUFFERED: frozenset({S.LEASED, S.EXPIRED}),
    S.LEASED: frozenset({S.BUFFERED, S.CONSUMED}),
    S.CONSUMED: frozenset(),
    S.EXPIRED: frozenset(),
    S.FAILED: frozenset(),
}
LOST = frozenset({S.EXPIRED, S.FAILED})


@dataclass(slots=True)
class Sample:
    """One row of the table."""

    id: int
    version: int
    """Current version when it was admitted."""
    state: SampleState
    counted: bool
    """It fills a place of the admission budget (False: it was stored without being admitted)."""
    uses: int = 0
    """Commits so far."""
    attempt: int = 0
    """Times it was started anew."""


class Lifecycle:
    """The table. Misuse (unknown sample, forbidden move) raises ReplayError and changes nothing."""

    def __init__(self, reuse_limit: int) -> None:
        assert reuse_limit >= 1
        self.reuse_limit = reuse_limit
        self.version = 0
        """The newest version that a collector has asked for."""
        self._samples: dict[int, Sample] = {}
        self._leases: dict[int, list[int]] = {}
        self._ended: Counter[SampleState] = Counter()
        self._ended_uses = 0
        self._next_id = 0
        self._next_lease = 0
        self._limit: int | None = None

    def configure_admission(self, samples_per_version: int, budget: float) -> None:
        """At most ``floor((1 + budget) * samples_per_version)`` samples per version, less those carried over.

        Without this call admission is unlimited.
        """
        # The small term keeps (1 + 0.15) * 100 from becoming 114.
        self._limit = math.floor((1 + budget) * samples_per_version + 1e-9)

    @property
    def places(self) -> int | None:
        """Samples that may still be started under the current version; None when unlimited.

        Carried-over samples are those of earlier versions that were alive when the version began. Failed and expired
        ones give their place back: nobody will ever train on them.
        """
        if self._limit is None:
            return None
        return max(0, self._limit - sum(sample.counted for sample in self._samples.values()))

    def admit(self, count: int, version: int) -> list[int]:
        """Ids of up to ``count`` new samples, fewer when places run out. A newer ``version`` opens new places."""
        if version > self.version:
            self.version = version
            for sample in [s for s in self._samples.values() if s.state is S.CONSUMED]:
                self._fold(sample)
        places = self.places
        count = count if places is None else min(count, places)
        return [self._new(S.ADMITTED, counted=True).id for _ in range(count)]

    def begin(self, ids: Iterable[int]) -> None:
        """Admitted samples start running."""
        self._move(ids, S.RUNNING)

    def fail(self, ids: Iterable[int]) -> None:
        """Admitted or running samples end without a record."""
        self._move(ids, S.FAILED)

    def reissue(self, ids: Iterable[int] | None = None) -> dict[int, int]:
        """Admitted and running samples (all, or ``ids``) wait to be started again; id to new attempt."""
        if ids is None:
            ids = [s.id for s in self._samples.values() if s.state in (S.ADMITTED, S.RUNNING)]
        samples = self._move(ids, S.ADMITTED)
        for sample in samples:
            sample.attempt += 1
        return {sample.id: sample.attempt for sample in samples}

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

    def store(self, sample_id: int | None) -> int:
        """A running sample (or, with None, a new one that was never admitted) is buffered; its id."""
        if sample_id is None:
            return self._new(S.BUFFERED, counted=False).id
        self._move([sample_id], S.BUFFERED)
        return sample_id

    def reserve_id(self) -> int:
        """An id for something that is stored but never a sample of the policy learner."""
        self._next_id += 1
        return self._next_id - 1

    def lease(self, ids: Iterable[int]) -> int:
        """Buffered samples are lent to the learner until ``commit`` or ``release``; the lease's id."""
        samples = self._move(ids, S.LEASED)
        self._next_lease += 1
        self._leases[self._next_lease - 1] = [sample.id for sample in samples]
        return self._next_lease - 1

    def commit(self, lease_id: int) -> list[int]:
        """The learner trained on them: one use more. Ids of those that are consumed now."""
        samples = [self._samples[i] for i in self._take_lease(lease_id)]
        for sample in samples:
            sample.uses += 1
        consumed = [sample.id for sample in samples if sample.uses == self.reuse_limit]
        self._move([s.id for s in samples if s.uses < self.reuse_limit], S.BUFFERED)
        self._move(consumed, S.CONSUMED)
        return consumed

    def release(self, lease_id: int) -> None:
        """The learner did not train on them: no use."""
        self._move(self._take_lease(lease_id), S.BUFFERED)

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
        return {i for ids in self._leases.values() for i in ids}

    def counts(self) -> dict[str, int]:
        """Samples by state, ended ones included."""
        counts = Counter(sample.state for sample in self._samples.values()) + self._ended
        return {state.value: counts[state] for state in SampleState}

    def uses_per_sample(self) -> float:
        """Mean commits of the samples that were ever buffered; 0 when there was none."""
        waiting = (S.ADMITTED, S.RUNNING)
        stored = [sample for sample in self._samples.values() if sample.state not in waiting]
        total = len(stored) + self._ended[S.CONSUMED] + self._ended[S.EXPIRED]
        uses = sum(sample.uses for sample in stored) + self._ended_uses
        return uses / total if total else 0.0

    def state(self) -> dict[str, Any]:
        """JSON types. Leases do not outlive their learner: leased samples are written as buffered."""
        samples = [asdict(sample) for sample in self._samples.values()]
        for sample in samples:
            sample["state"] = str(S.BUFFERED if sample["state"] is S.LEASED else sample["state"])
        return {
            "version": self.version,
            "limit": self._limit,
            "next_id": self._next_id,
            "next_lease": self._next_lease,
            "samples": samples,
            "ended": {state.value: self._ended[state] for state in SampleState},
            "ended_uses": self._ended_uses,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``. Call ``reissue`` unless the collectors continue their running samples."""
        self.version = state["version"]
        self._limit = state["limit"]
        self._next_id = state["next_id"]
        self._next_lease = state["next_lease"]
        samples = [Sample(**(data | {"state": SampleState(data["state"])})) for data in state["samples"]]
        self._samples = {sample.id: sample for sample in samples}
        self._ended = Counter({SampleState(name): count for name, count in state["ended"].items() if count})
        self._ended_uses = state["ended_uses"]
        self._leases = {}

    def _new(self, state: SampleState, *, counted: bool) -> Sample:
        sample = Sample(self.reserve_id(), self.version, state, counted)
        self._samples[sample.id] = sample
        return sample

    def _move(self, ids: Iterable[int], to: SampleState) -> list[Sample]:
        samples = [self._known(i) for i in dict.fromkeys(ids)]
        for sample in samples:
            self._check_move(sample, to)
        for sample in samples:
            sample.state = to
            if to in LOST or (to is S.CONSUMED and not self._fills_place(sample)):
                self._fold(sample)
        return samples

    def _check_move(self, sample: Sample, to: SampleState) -> None:
        if to not in TRANSITIONS[sample.state]:
            raise ReplayError(
                f"sample {sample.id} is {sample.state.value} and cannot become {to.value}",
                where="lifecycle",
                remedy="drop what refers to it",
            )

    def _fills_place(self, sample: Sample) -> bool:
        return sample.counted and self._limit is not None

    def _known(self, sample_id: int) -> Sample:
        if sample_id not in self._samples:
            raise ReplayError(
                f"sample {sample_id} has ended or never existed",
                where="lifecycle",
                remedy="drop what refers to it",
            )
        return self._samples[sample_id]

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
