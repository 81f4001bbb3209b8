"""What every replay buffer stores, refuses and lets go, and how it is saved: one suite for all backends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from buffers.records import Record
from buffers.samples import Admission
from configs.errors import CheckpointError, DataError, ReplayError
from tests.records_helper import assert_same_record, make_record
from tests.replay_backends import PLACES, SPEC, Maker, fill


def _float_images(record: Record) -> None:
    record.images["camera0"] = record.images["camera0"].astype(np.float32)  # type: ignore[assignment]


def _nan_reward(record: Record) -> None:
    record.rewards[0] = np.nan


def _no_camera(record: Record) -> None:
    del record.images["camera0"]


def _other_camera(record: Record) -> None:
    record.images["camera0"] = record.images["camera0"][:, :2]


def _no_proprio(record: Record) -> None:
    record.proprio = None  # type: ignore[assignment]


def _no_images(record: Record) -> None:
    record.images = None  # type: ignore[assignment]


def _no_instruction(record: Record) -> None:
    record.instruction = None  # type: ignore[assignment]


def _success_in_words(record: Record) -> None:
    record.success = "yes"  # type: ignore[assignment]


def _unknown_source(record: Record) -> None:
    record.source = "dreamt"  # type: ignore[assignment]


def _list_of_tokens(record: Record) -> None:
    record.tokens = record.tokens.tolist()  # type: ignore[assignment]


def _other_actions(record: Record) -> None:
    record.tokens = record.tokens[:, :, :1]


def _wrong_type(record: Record) -> None:
    record.tokens = record.tokens.astype(np.int64)  # type: ignore[assignment]


def _empty(record: Record) -> None:
    for name in ("tokens", "log_probs", "valid", "rewards", "values", "version"):
        setattr(record, name, getattr(record, name)[:0])


def _older_version_later(record: Record) -> None:
    record.version[0] = 5


def test_records_come_back_unchanged(make: Maker) -> None:
    buffer = make()
    records = [make_record(SPEC, i, 1 + i, success=i == 1, horizon=i, extra={"x": 1.5}) for i in range(4)]
    keys = buffer.extend(records)
    for key, record in zip(keys, records, strict=True):
        assert_same_record(record, buffer.get(key))
    buffer.get(keys[0]).rewards[:] = 9.0
    assert_same_record(records[0], buffer.get(keys[0]))
    assert [r.length for r in buffer.episodes()] == [1, 2, 3, 4]
    assert [r.length for r in buffer.episodes(limit=2)] == [3, 4]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_float_images, r"images\[camera0\] is float32.*give uint8"),
        (_nan_reward, "rewards has NaN"),
        (_no_camera, r"cameras \[\].*give \['camera0'\]"),
        (_other_camera, r"images\[camera0\] is uint8\[4, 2, 4, 3\].*give uint8\[4, 4, 4, 3\]"),
        (_no_proprio, "proprio is NoneType.*numpy array"),
        (_no_images, r"cameras \[\].*give \['camera0'\]"),
        (_no_instruction, "instruction is None.*give str"),
        (_success_in_words, "success is 'yes'.*give bool"),
        (_unknown_source, "source is 'dreamt'.*give one of real, imagined, demonstration"),
        (_list_of_tokens, "tokens is list.*numpy array"),
        (_other_actions, r"tokens is int16\[3, 3, 1\].*give int16\[3, 3, 2\]"),
        (_wrong_type, "tokens is int64"),
        (_empty, "record has 0 decisions"),
        (_older_version_later, "versions decrease"),
    ],
)
def test_a_bad_record_is_refused_and_nothing_is_stored(make: Maker, spoil: Any, words: str) -> None:
    buffer = make.shared()
    before = buffer.stats()
    bad = make_record(SPEC, 1, 3)
    spoil(bad)
    with pytest.raises(DataError, match=words) as caught:
        buffer.extend([make_record(SPEC, 0, 3), bad])
    assert "record 1" in caught.value.where
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=words):
        buffer.append(bad)
    assert buffer.stats() == before


def test_a_record_longer_than_any_episode_is_refused(make: Maker) -> None:
    with pytest.raises(DataError, match=r"record has 9 decisions.*between 1 and 8"):
        make.shared().append(make_record(SPEC, 0, 9))


def test_a_record_of_another_attempt_is_refused_and_the_sample_still_runs(make: Maker) -> None:
    buffer = make()
    sample = buffer.admit(1, Admission(8))[0].sample_id
    with pytest.raises(ReplayError, match="attempt"):
        buffer.append(make_record(SPEC, 1, 3, attempt=1), sample)
    bad = make_record(SPEC, 1, 3)
    _nan_reward(bad)
    with pytest.raises(DataError, match="rewards"):
        buffer.append(bad, sample)
    assert buffer.stats()["lifecycle"]["running"] == 1
    assert buffer.append(make_record(SPEC, 1, 3), sample) == sample
    assert buffer.stats()["lifecycle"]["buffered"] == 1


def test_the_oldest_leave_first_and_no_draw_sees_them(make: Maker) -> None:
    buffer = make("small")
    for number in range(10):
        buffer.append(make_record(SPEC, number, 8, success=True))
    assert buffer.ids() == list(range(10))[-PLACES["small"] :]
    stats = buffer.stats()
    assert stats["items"] == PLACES["small"]
    assert stats["bytes"] == stats["capacity_bytes"]
    assert stats["lifecycle"]["expired"] == 10 - PLACES["small"]
    with pytest.raises(ReplayError, match="not stored"):
        buffer.get(0)
    stored = set(buffer.ids())
    assert set(buffer.windows(64, 1, 1).ids.tolist()) <= stored
    assert set(buffer.windows(32, 1, 1, episode_start=True).ids.tolist()) <= stored
    outcomes = buffer.outcomes(64)
    assert set(outcomes.frames["camera0"][:, 0, 0, 0].tolist()) <= stored


def test_leased_records_stay(make: Maker) -> None:
    buffer = make("small", reuse_limit=2)
    fill(buffer, [8] * 4)
    lease = buffer.lease(8)
    assert lease is not None
    assert lease.ids == [0]
    fill(buffer, [8] * 9)
    assert 0 in buffer.ids()
    np.testing.assert_array_equal(buffer.get(0).values, lease.batch.values[0])
    buffer.commit(lease.lease_id)
    fill(buffer, [8] * 4)
    assert 0 not in buffer.ids()


def test_a_buffer_full_of_leases_says_so_and_keeps_everything(make: Maker) -> None:
    buffer = make("small")
    fill(buffer, [8] * 4)
    lease = buffer.lease(32)
    assert lease is not None
    with pytest.raises(ReplayError, match=r"leased records fill the buffer.*max_bytes"):
        buffer.append(make_record(SPEC, 9, 8))
    assert buffer.ids() == [0, 1, 2, 3]
    buffer.commit(lease.lease_id)
    buffer.append(make_record(SPEC, 9, 8))


def test_a_loaded_buffer_goes_on_where_the_saved_one_was(make: Maker) -> None:
    buffer = make(held_out=0.3, reuse_limit=2)
    fill(buffer, [4, 2, 7, 8, 1, 5, 6, 3, 8], success=True)
    buffer.advance(3)
    assert len(buffer.admit(2, Admission(150))) == 2
    lease = buffer.lease(5)
    assert lease is not None
    state = buffer.state()
    twin = make(held_out=0.3, reuse_limit=2, twin=buffer)
    twin.load(state)
    with pytest.raises(ReplayError):
        twin.commit(lease.lease_id)
    buffer.release(lease.lease_id)
    assert twin.stats() == buffer.stats()
    for key in buffer.ids():
        assert_same_record(buffer.get(key), twin.get(key))
    twin.reissue()
    assert [sample.attempt for sample in twin.admit(2, Admission(150))] == [1, 1]
    again = twin.lease(5)
    assert again is not None
    assert again.ids == lease.ids
    np.testing.assert_array_equal(again.batch.images["camera0"], lease.batch.images["camera0"])
    twin.commit(again.lease_id)
    assert twin.append(make_record(SPEC, 50, 3)) == buffer.stats()["items"] + 2


def test_a_state_of_another_size_is_refused(make: Maker) -> None:
    state = make().state()
    with pytest.raises(CheckpointError, match="max_bytes"):
        make("small").load(state)


def test_two_buffers_are_saved_at_once(make: Maker) -> None:
    """On Reverb they have one server, which deletes what it writes for one as older than the other's."""
    buffers = [make("small"), make("small")]
    for buffer in buffers:
        fill(buffer, [4, 5])
    with ThreadPoolExecutor(2) as pool:
        for _ in range(6):
            states = list(pool.map(lambda buffer: buffer.state(), buffers))
    for buffer, state in zip(buffers, states, strict=True):
        buffer.load(state)
        assert [record.length for record in buffer.episodes()] == [4, 5]


def test_a_state_of_the_other_backend_is_refused(make: Maker) -> None:
    states: dict[str, dict[str, Any]] = {"memory": {"backend": "reverb"}, "reverb": {"shelf": {}}}
    other = {"memory": "reverb", "reverb": "memory"}[make.backend]
    with pytest.raises(CheckpointError, match=rf"resume with buffers\.backend={other}"):
        make.shared().load(states[make.backend])
