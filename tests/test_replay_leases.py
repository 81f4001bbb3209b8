"""What every replay buffer lends to the policy learner: one suite for all backends."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest

from buffers.samples import Admission, Gate
from configs.errors import DataError, ReplayError
from tests.records_helper import make_record
from tests.replay_backends import LONGEST, PLACES, SPEC, Maker, fill


def test_leases_train_commit_release(make: Maker) -> None:
    buffer = make(reuse_limit=2)
    fill(buffer, [3, 3, 3])
    first = buffer.lease(4)
    assert first is not None
    assert first.ids == [0, 1]
    assert buffer.available_decisions() == 3
    buffer.commit(first.lease_id)
    with pytest.raises(ReplayError, match="committed or released"):
        buffer.commit(first.lease_id)
    second = buffer.lease(4)
    assert second is not None
    assert second.ids == [2, 0]
    buffer.release(second.lease_id)
    recent = buffer.lease(4, prefer_recent=True)
    assert recent is not None
    assert recent.ids == [2, 1]
    buffer.release(recent.lease_id)
    everything = buffer.lease(9)
    assert everything is not None
    assert everything.ids == [2, 0, 1]
    buffer.commit(everything.lease_id)
    assert buffer.lease(4) is None
    stats = buffer.stats()
    assert stats["lifecycle"] == Counter(buffered=1, consumed=2) | dict.fromkeys(
        ("admitted", "running", "leased", "expired", "failed"), 0
    )
    assert stats["items"] == 3, "the frames of consumed samples stay for the models"
    assert stats["uses_per_sample"] == pytest.approx(5 / 3)


def test_demonstrations_are_for_the_models_only(make: Maker) -> None:
    buffer = make()
    key = buffer.append(make_record(SPEC, 0, 3, source="demonstration"))
    assert buffer.available_decisions() == 0
    assert buffer.lease(1) is None
    assert buffer.windows(4, 1, 1).ids.tolist() == [key] * 4
    assert buffer.starts(4, 1, horizon=1).demonstration.all()
    with pytest.raises(DataError, match="demonstration"):
        buffer.append(make_record(SPEC, 0, 3, source="demonstration"), sample_id=1)


def test_a_lease_holds_the_records_padded_with_zeros(make: Maker) -> None:
    buffer = make()
    fill(buffer, [2, 4], success=True)
    lease = buffer.lease(6)
    assert lease is not None
    batch = lease.batch
    np.testing.assert_array_equal(batch.lengths, [2, 4])
    np.testing.assert_array_equal(batch.decisions.sum(1), [2, 4])
    np.testing.assert_array_equal(batch.images["camera0"][:, :, 0, 0, 1], [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(batch.proprio[0, :, 1], [0, 1, 2, 0, 0])
    np.testing.assert_array_equal(batch.rewards, [[0, 1, 0, 0], [0, 1, 2, 3]])
    np.testing.assert_array_equal(batch.valid.sum((1, 2)), [4, 8])
    assert batch.instructions == ["reach 0", "reach 1"]
    assert batch.terminated.all()
    assert not batch.truncated.any()
    assert not batch.imagined.any()


def test_what_is_too_old_is_cut_or_leaves(make: Maker) -> None:
    buffer = make()
    buffer.append(make_record(SPEC, 0, 3, version=4))
    mixed = make_record(SPEC, 1, 4, version=5)
    mixed.version[:2] = 4
    buffer.append(mixed)
    buffer.append(make_record(SPEC, 2, 3, version=5))
    lease = buffer.lease(5, gate=Gate(oldest=5, partly_stale="cut"))
    assert lease is not None
    np.testing.assert_array_equal(lease.batch.lengths, [2, 3])
    np.testing.assert_array_equal(lease.batch.rewards[0], [2, 3, 0])
    assert lease.traffic.dropped == 5
    assert buffer.stats()["lifecycle"]["expired"] == 1
    assert len(buffer.ids()) == 3


def test_many_writers_and_readers_lose_nothing_and_mix_nothing(make: Maker) -> None:
    buffer, records = make(reuse_limit=1), {"memory": 150, "reverb": 30}[make.backend]
    trained: list[int] = []
    stop = threading.Event()

    def collect() -> None:
        for number in range(records):
            key = buffer.admit(1, Admission(10_000))[0].sample_id
            buffer.append(make_record(SPEC, number, 1 + number % 8), key)

    def learn() -> None:
        while not stop.is_set():
            lease = buffer.lease(5)
            if lease is not None:
                frames = lease.batch.images["camera0"][:, 0, 0, 0, 0]
                np.testing.assert_array_equal(frames, lease.batch.values[:, 0])
                trained.extend(lease.ids)
                buffer.commit(lease.lease_id)

    def sample() -> None:
        while not stop.is_set():
            if buffer.stats()["decisions"]:
                frames = buffer.windows(16, 2, 3).frames["camera0"]
                assert (frames[:, :, 0, 0, 0] == frames[:, :1, 0, 0, 0]).all()

    with ThreadPoolExecutor(6) as pool:
        collectors = [pool.submit(collect) for _ in range(3)]
        others = [pool.submit(work) for work in (learn, learn, sample)]
        wait(collectors)
        stop.set()
        for future in collectors + others:
            future.result()
    counts = buffer.stats()["lifecycle"]
    assert counts["consumed"] == len(trained) == len(set(trained))
    assert counts["consumed"] + counts["expired"] + counts["buffered"] == 3 * records
    assert counts["running"] == counts["admitted"] == counts["leased"] == 0
    assert buffer.stats()["items"] <= PLACES["large"] * LONGEST // 2
