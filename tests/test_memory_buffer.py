"""The replay buffer in memory, beyond what the suites for all backends (``test_replay_*``) ask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffers.memory import MemoryBuffer
from buffers.samples import Admission
from configs.errors import ConfigError, DataError, ReplayError
from configs.system import BufferConfig
from tests.buffer_helper import SPEC, fill, make_buffer
from tests.records_helper import assert_same_record, make_record, make_spec


def test_a_record_that_fits_between_leased_ones_is_stored() -> None:
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


def test_a_state_of_another_spec_is_refused() -> None:
    state = make_buffer(rows=40).state()
    spec = make_spec(size=8)
    other = MemoryBuffer(spec, BufferConfig(max_bytes=10**6), seed=0, name="real")
    with pytest.raises(DataError, match="cameras"):
        other.load(state)
