"""The replay buffer in memory."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffers.memory import MemoryBuffer
from buffers.samples import Admission, Gate
from configs.errors import CheckpointError, ConfigError, DataError, ReplayError
from configs.system import BufferConfig
from tests.buffer_helper import SPEC, fill, make_buffer
from tests.records_helper import assert_same_record, make_record, make_spec

# --- storing


def test_records_come_back_unchanged() -> None:
    buffer = make_buffer()
    records = [make_record(SPEC, i, 1 + i, success=i == 1, horizon=i, extra={"x": 1.5}) for i in range(3)]
    for key, record in zip(buffer.extend(records), records, strict=True):
        assert_same_record(record, buffer.get(key))
    assert [r.length for r in buffer.episodes()] == [1, 2, 3]
    assert [r.length for r in buffer.episodes(limit=2)] == [2, 3]


def test_a_bad_record_is_refused_and_nothing_is_stored() -> None:
    buffer = make_buffer()
    bad = make_record(SPEC, 1, 3)
    bad.rewards[1] = np.nan
    before = buffer.stats()
    with pytest.raises(DataError, match="rewards"):
        buffer.extend([make_record(SPEC, 0, 3), bad])
    sample = buffer.admit(1, Admission(8))[0].sample_id
    with pytest.raises(DataError, match="rewards"):
        buffer.append(bad, sample)
    with pytest.raises(ReplayError, match="attempt"):
        buffer.append(make_record(SPEC, 1, 3, attempt=1), sample)
    after = buffer.stats()
    assert after["lifecycle"] == before["lifecycle"] | {"running": 1}
    assert (after["items"], after["decisions"]) == (0, 0)
    assert buffer.append(make_record(SPEC, 1, 3), sample) == sample


def test_the_oldest_leave_first() -> None:
    buffer = make_buffer(rows=20)
    fill(buffer, [4] * 7)
    stats = buffer.stats()
    assert buffer.ids() == [3, 4, 5, 6], "four records of five rows fit"
    assert stats["lifecycle"]["expired"] == 3
    assert stats["bytes"] == stats["capacity_bytes"]
    with pytest.raises(ReplayError, match="not stored"):
        buffer.get(0)


def test_leased_records_stay_and_are_stepped_over() -> None:
    buffer = make_buffer(rows=20)
    fill(buffer, [4, 4, 4, 4])
    lease = buffer.lease(4)
    assert lease is not None
    assert lease.ids == [0]
    fill(buffer, [4] * 9)
    assert 0 in buffer.ids()
    np.testing.assert_array_equal(buffer.get(0).values, lease.batch.values[0])
    buffer.commit(lease.lease_id)
    fill(buffer, [4] * 4)
    assert 0 not in buffer.ids()


def test_a_buffer_full_of_leases_says_so_and_keeps_everything() -> None:
    buffer = make_buffer(rows=20)
    fill(buffer, [4, 4, 4, 4])
    lease = buffer.lease(12)
    assert lease is not None
    with pytest.raises(ReplayError, match="leased records fill the buffer"):
        buffer.append(make_record(SPEC, 9, 7))
    assert buffer.ids() == [0, 1, 2, 3]
    buffer.append(make_record(SPEC, 9, 4))
    assert buffer.ids() == [0, 1, 2, 4]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_rows_never_overlap_and_draws_see_exactly_what_is_stored(steps: list[tuple[int, bool, bool]]) -> None:
    buffer = make_buffer(rows=30, reuse_limit=2)
    leases: list[int] = []
    expected = {}
    for number, (length, take, end) in enumerate(steps):
        record = make_record(SPEC, number, length, success=number % 3 == 0)
        try:
            expected[buffer.append(record)] = record
        except ReplayError:
            assert leases
        if take and (lease := buffer.lease(1)):
            leases.append(lease.lease_id)
        if end and leases:
            buffer.commit(leases.pop())
    stored = buffer.ids()
    for key in stored:
        assert_same_record(expected[key], buffer.get(key))
    stats = buffer.stats()
    assert stats["decisions"] == sum(expected[key].length for key in stored)
    assert stats["train_successes"] == sum(expected[key].success for key in stored)
    assert stats["bytes"] <= stats["capacity_bytes"]
    windows = buffer.windows(200, 1, 1)
    assert set(windows.ids.tolist()) <= set(stored)


def test_capacity_is_exact_in_bytes() -> None:
    spec = make_spec(size=32)
    buffer = MemoryBuffer(spec, BufferConfig(max_bytes=10_000_000), seed=0, name="real")
    held = buffer._shelf.nbytes
    assert 0.8 * 10_000_000 < held <= 10_000_000
    with pytest.raises(ConfigError, match=r"buffers.tiny.max_bytes.*at least"):
        MemoryBuffer(spec, BufferConfig(max_bytes=10_000), seed=0, name="tiny")


# --- the policy learner


def test_lease_takes_the_least_used_then_the_oldest() -> None:
    buffer = make_buffer(reuse_limit=2)
    fill(buffer, [3, 3, 3])
    first = buffer.lease(4)
    assert first is not None
    assert first.ids == [0, 1]
    assert buffer.available_decisions() == 3
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
    stats = buffer.stats()
    assert stats["lifecycle"] == Counter(buffered=1, consumed=2) | dict.fromkeys(
        ("admitted", "running", "leased", "expired", "failed"), 0
    )
    assert stats["items"] == 3, "the frames of consumed samples stay for the models"
    assert stats["uses_per_sample"] == pytest.approx(5 / 3)


def test_lease_is_none_when_there_is_too_little() -> None:
    buffer = make_buffer()
    fill(buffer, [3])
    assert buffer.lease(4) is None
    assert buffer.stats()["lifecycle"]["buffered"] == 1


def test_demonstrations_are_never_leased() -> None:
    buffer = make_buffer()
    buffer.append(make_record(SPEC, 0, 3, source="demonstration"))
    assert buffer.available_decisions() == 0
    assert buffer.lease(1) is None
    assert buffer.windows(4, 1, 1).ids.tolist() == [0] * 4
    assert buffer.starts(4, 1, horizon=1).demonstration.all()
    with pytest.raises(DataError, match="demonstration"):
        buffer.append(make_record(SPEC, 0, 3, source="demonstration"), sample_id=1)


def test_old_records_expire_for_the_policy_only() -> None:
    buffer = make_buffer()
    old = buffer.append(make_record(SPEC, 0, 3, version=4))
    new = buffer.append(make_record(SPEC, 1, 3, version=5))
    lease = buffer.lease(1, gate=Gate(oldest=5))
    assert lease is not None
    assert lease.ids == [new]
    assert buffer.stats()["lifecycle"]["expired"] == 1
    assert old in buffer.ids()


def test_a_lease_is_padded_with_zeros() -> None:
    buffer = make_buffer()
    fill(buffer, [2, 4], success=True)
    lease = buffer.lease(6)
    assert lease is not None
    batch = lease.batch
    np.testing.assert_array_equal(batch.lengths, [2, 4])
    np.testing.assert_array_equal(batch.decisions.sum(1), [2, 4])
    np.testing.assert_array_equal(batch.images["camera0"][:, :, 0, 0, 1], [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(batch.images["camera0"][1, :, 0, 0, 0], 1)
    np.testing.assert_array_equal(batch.proprio[0, :, 1], [0, 1, 2, 0, 0])
    np.testing.assert_array_equal(batch.rewards, [[0, 1, 0, 0], [0, 1, 2, 3]])
    np.testing.assert_array_equal(batch.valid.sum((1, 2)), [4, 8])
    assert batch.instructions == ["reach 0", "reach 1"]
    assert batch.terminated.all()
    assert not batch.truncated.any()
    assert not batch.imagined.any()


# --- state, threads


def test_load_is_the_identity() -> None:
    buffer = make_buffer(rows=40, held_out=0.3, reuse_limit=2, seed=5)
    fill(buffer, [4, 2, 7, 8, 1, 5, 6, 3, 8], success=True)
    buffer.advance(3)
    assert len(buffer.admit(2, Admission(150))) == 2
    lease = buffer.lease(5)
    assert lease is not None
    buffer.windows(3, 1, 1)
    state = buffer.state()
    twin = make_buffer(rows=40, held_out=0.3, reuse_limit=2, seed=99)
    twin.load(state)
    with pytest.raises(ReplayError):
        twin.commit(lease.lease_id)
    buffer.release(lease.lease_id)
    assert twin.stats() == buffer.stats()
    for each in (buffer, twin):
        fill(each, [5, 5, 5])
        each.advance(4)
        each.reissue()
        assert [sample.attempt for sample in each.admit(3, Admission(90))] == [1, 1, 0]
    assert twin.ids() == buffer.ids()
    for split in ("train", "held_out"):
        one, two = (each.windows(20, 2, 3, split=split) for each in (buffer, twin))
        np.testing.assert_array_equal(one.frames["camera0"], two.frames["camera0"])
        np.testing.assert_array_equal(one.t, two.t)
    ours, theirs = buffer.state(), twin.state()
    assert ours["lifecycle"] == theirs["lifecycle"]
    assert ours["shelf"]["items"] == theirs["shelf"]["items"]
    for name, array in ours["shelf"]["columns"].items():
        np.testing.assert_array_equal(array, theirs["shelf"]["columns"][name])


def test_a_state_of_another_shape_is_refused() -> None:
    state = make_buffer(rows=40).state()
    with pytest.raises(CheckpointError, match="max_bytes"):
        make_buffer(rows=50).load(state)
    spec = make_spec(size=8)
    other = MemoryBuffer(spec, BufferConfig(max_bytes=10**6), seed=0, name="real")
    with pytest.raises(DataError, match="cameras"):
        other.load(state)


def test_threads_lose_nothing() -> None:
    buffer = make_buffer(rows=200, reuse_limit=1)
    trained: list[int] = []
    stop = threading.Event()

    def collect() -> None:
        for number in range(150):
            key = buffer.admit(1, Admission(10_000))[0].sample_id
            buffer.append(make_record(SPEC, number, 1 + number % 8), key)

    def learn() -> None:
        while not stop.is_set():
            lease = buffer.lease(5)
            if lease is not None:
                trained.extend(lease.ids)
                buffer.commit(lease.lease_id)

    def sample() -> None:
        while not stop.is_set():
            if buffer.stats()["decisions"]:
                windows = buffer.windows(16, 2, 3)
                frames = windows.frames["camera0"]
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
    assert counts["consumed"] + counts["expired"] + counts["buffered"] == 450
    assert counts["running"] == counts["admitted"] == counts["leased"] == 0
