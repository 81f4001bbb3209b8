"""What can be told from the table of samples; ``buffers.lifecycle`` is what changes it."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile

from buffers.samples import UNFINISHED, Sample, SampleState, Stock
from configs.errors import ReplayError

S = SampleState


class Census:
    """The samples that are alive, those that ended as counts, and every number that follows from them."""

    def __init__(self, longest: int) -> None:
        self._mean_length = float(longest)
        self._samples: dict[int, Sample] = {}
        self._ended: Counter[SampleState] = Counter()
        self._ended_uses = 0

    def state_of(self, sample_id: int) -> SampleState | None:
        """None when the sample ended and was folded, or never existed."""
        sample = self._samples.get(sample_id)
        return None if sample is None else sample.state

    def group_of(self, sample_id: int) -> int:
        """The group of a sample in the table."""
        return self._known(sample_id).group

    def uses(self, sample_id: int) -> int:
        """Commits of a sample in the table."""
        return self._known(sample_id).uses

    def buffered_ids(self, *, ordered: bool = False) -> list[int]:
        """Samples that can be leased, first admitted first: no group of which a sample is unfinished, and with
        ``ordered`` none behind an unfinished one.
        """
        samples = list(self._samples.values())
        if ordered:
            samples = list(takewhile(lambda sample: sample.state not in UNFINISHED, samples))
        unfinished = {s.group for s in self._samples.values() if s.state in UNFINISHED}
        return [s.id for s in samples if s.state is S.BUFFERED and s.group not in unfinished]

    def running_before(self, version: int) -> int:
        """Running samples that were started under an earlier version than ``version``."""
        return sum(s.state is S.RUNNING and s.version < version for s in self._samples.values())

    def oldest(self) -> int | None:
        """Oldest version of a decision that may still be trained on; None when there is none."""
        alive = (S.RUNNING, S.BUFFERED, S.LEASED)
        return min((s.version for s in self._samples.values() if s.state in alive), default=None)

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

    def _held(self, unfinished: float) -> float:
        """Decisions of the budget that are filled, an unfinished sample taken for ``unfinished`` of them."""
        return sum(unfinished if s.state in UNFINISHED else s.charge for s in self._samples.values())

    def _known(self, sample_id: int) -> Sample:
        if sample_id not in self._samples:
            raise ReplayError(
                f"sample {sample_id} has ended or never existed",
                where="lifecycle",
                remedy="drop what refers to it",
            )
        return self._samples[sample_id]
