"""What every replay buffer must do, wherever it keeps its records: one suite for all backends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

from buffers.records import Record
from buffers.replay import ReplayBuffer
from buffers.samples import Admission, Gate
from configs.errors import CheckpointError, DataError, ReplayError, ReplayTimeout
from configs.replay import LimiterConfig, PrioritySamplingConfig
from tests.records_helper import assert_same_record, make_record
from tests.replay_backends import BACKENDS, LONGEST, PLACES, SPEC, Maker, shared_server


@pytest.fixture(scope="module", params=BACKENDS)
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Any]]:
    if request.param == "memory":
        yield "memory", None
        return
    with shared_server(tmp_path_factory.mktemp("reverb") / "server") as address:
        yield request.param, address


@pytest.fixture
def make(home: tuple[str, Any]) -> Iterator[Maker]:
    maker = Maker(*home)
    yield maker
    maker.close()


def fill(buffer: ReplayBuffer, lengths: list[int], **facts: Any) -> list[int]:
    return buffer.extend([make_record(SPEC, i, length, **facts) for i, length in enumerate(lengths)])


# --- storing


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


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_float_images, r"images\[camera0\] is float32.*give uint8"),
        (_nan_reward, "rewards has NaN"),
        (_no_camera, r"cameras \[\].*give \['camera0'\]"),
        (_other_camera, r"images\[camera0\] is uint8\[4, 2, 4, 3\].*give uint8\[4, 4, 4, 3\]"),
        (_no_proprio, "proprio is NoneType.*numpy array"),
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


# --- the policy learner


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
    counts = buffer.stats()["lifecycle"]
    assert (counts["buffered"], counts["consumed"]) == (1, 2)
    assert buffer.stats()["items"] == 3, "the frames of consumed samples stay for the models"
    assert buffer.lease(4) is None


def test_demonstrations_are_for_the_models_only(make: Maker) -> None:
    buffer = make()
    key = buffer.append(make_record(SPEC, 0, 3, source="demonstration"))
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
    np.testing.assert_array_equal(batch.images["camera0"][:, :, 0, 0, 1], [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(batch.proprio[0, :, 1], [0, 1, 2, 0, 0])
    np.testing.assert_array_equal(batch.rewards, [[0, 1, 0, 0], [0, 1, 2, 3]])
    np.testing.assert_array_equal(batch.valid.sum((1, 2)), [4, 8])
    assert batch.instructions == ["reach 0", "reach 1"]


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


# --- the models


@pytest.mark.parametrize(("history", "steps"), [(2, 3), (3, 4), (5, 3), (1, 9)])
def test_windows_never_leave_their_record(make: Maker, history: int, steps: int) -> None:
    """Also windows longer than those that a server stores."""
    buffer = make()
    lengths = [1, 8, 3, 5]
    fill(buffer, lengths, success=True)
    windows = buffer.windows(96, history, steps)
    length = np.array(lengths)[windows.ids]
    frames = windows.frames["camera0"]
    assert frames.shape == (96, history + steps, 4, 4, 3)
    np.testing.assert_array_equal(frames[..., 0, 0, 0], np.repeat(windows.ids[:, None], history + steps, 1))
    seen = windows.t[:, None] + np.arange(1 - history, steps + 1)
    np.testing.assert_array_equal(frames[..., 0, 0, 1], np.clip(seen, 0, length[:, None]))
    np.testing.assert_array_equal(windows.mask, windows.t[:, None] + np.arange(steps) < length[:, None])
    made = np.clip(windows.t[:, None] + np.arange(steps), 0, length[:, None] - 1)
    np.testing.assert_array_equal(windows.tokens[:, :, 0, 0], made)
    np.testing.assert_array_equal(windows.valid.any(-1), windows.mask)
    remaining = length - windows.t
    np.testing.assert_array_equal(windows.success_within, np.arange(steps + 1) >= remaining[:, None])
    assert windows.instructions == [f"reach {key}" for key in windows.ids]


@pytest.mark.parametrize("history", [2, 5])
def test_every_decision_and_every_start_is_as_likely(make: Maker, history: int) -> None:
    buffer = make()
    fill(buffer, [1, 8, 3])
    windows = buffer.windows(1200, history, 1)
    counts = np.array(list(Counter(zip(windows.ids.tolist(), windows.t.tolist(), strict=True)).values()))
    assert len(counts) == 12
    assert (np.abs(counts - 100) < 50).all(), "five standard deviations"
    starts = buffer.windows(300, history, 1, episode_start=True)
    assert (starts.t == 0).all()
    assert (np.abs(np.bincount(starts.ids, minlength=3) - 100) < 45).all()


def test_starts_come_from_episode_starts_and_recent_records(make: Maker) -> None:
    buffer = make()
    fill(buffer, [4] * 6, success=True)
    starts = buffer.starts(48, 2, horizon=3, first=16, recent=2)
    assert (starts.t[:16] == 0).all()
    assert len(set(starts.ids[:16].tolist())) > 2
    assert set(starts.ids[16:].tolist()) == {4, 5}
    assert set(starts.t[16:].tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(starts.frames["camera0"][:, -1, 0, 0, 1], starts.t)
    np.testing.assert_array_equal(starts.remaining, 4 - starts.t)
    np.testing.assert_array_equal(starts.success_within, np.arange(4) >= starts.remaining[:, None])
    assert starts.seeds.tolist() == [1000 + key for key in starts.ids]


def test_outcomes_are_labelled_by_success(make: Maker) -> None:
    buffer = make()
    buffer.append(make_record(SPEC, 0, 4, success=True))
    buffer.append(make_record(SPEC, 1, 2))
    outcomes = buffer.outcomes(60)
    assert outcomes.label.sum() == 30
    shown = outcomes.frames["camera0"][:, 0, 0, :2].tolist()
    assert {tuple(pair) for pair, label in zip(shown, outcomes.label, strict=True) if label} == {(0, 4)}
    assert {tuple(pair) for pair, label in zip(shown, outcomes.label, strict=True) if not label} == {
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)
    }  # fmt: skip
    assert 0 < buffer.outcomes(400, balance=False).label.mean() < 0.3


def test_held_out_episodes_are_drawn_apart(make: Maker) -> None:
    buffer = make(held_out=0.3)
    fill(buffer, [3] * 20)
    held_out, train = set(buffer.ids("held_out")), set(buffer.ids("train"))
    assert (len(held_out), len(train)) == (7, 13)
    assert set(buffer.windows(64, 1, 1, split="held_out").ids.tolist()) <= held_out
    assert set(buffer.windows(64, 1, 1).ids.tolist()) <= train
    assert set(buffer.windows(64, 1, 9).ids.tolist()) <= train
    stats = buffer.stats()
    assert (stats["held_out_decisions"], stats["train_decisions"]) == (21, 39)


def test_an_empty_draw_says_what_is_missing(make: Maker) -> None:
    buffer = make()
    for draw in (
        lambda: buffer.windows(4, 1, 1),
        lambda: buffer.windows(4, 1, 9),
        lambda: buffer.starts(4, 1, horizon=1),
        lambda: buffer.starts(4, 1, horizon=1, recent=3),
        lambda: buffer.outcomes(4),
    ):
        with pytest.raises(ReplayError, match=r"no \w+ row in the train split.*add such episodes"):
            draw()


# --- priorities and pace


def test_draws_follow_priorities(make: Maker) -> None:
    buffer = make(sampling=PrioritySamplingConfig(exponent=1.0))
    fill(buffer, [4])
    seen = buffer.windows(64, 1, 1)
    np.testing.assert_allclose(seen.probability, 0.25)
    assert set(seen.t.tolist()) == {0, 1, 2, 3}
    assert buffer.prioritise(np.zeros(4, np.int64), np.arange(4), np.array([0.0, 1.0, 0.0, 3.0])) == 4
    drawn = buffer.windows(400, 1, 1)
    assert set(drawn.t.tolist()) == {1, 3}
    np.testing.assert_allclose(drawn.probability, np.where(drawn.t == 3, 0.75, 0.25))
    assert abs((drawn.t == 3).mean() - 0.75) < 0.11
    fill(buffer, [1])
    assert buffer.windows(1, 1, 1).probability is not None
    new = buffer.windows(400, 1, 1)
    assert abs((new.ids == 1).mean() - 3 / 7) < 0.13, "a new decision has the largest priority so far"
    assert buffer.prioritise(np.array([77]), np.array([0]), np.array([1.0])) == 0


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_priorities_that_mean_nothing_are_refused(make: Maker, bad: float) -> None:
    buffer = make(sampling=PrioritySamplingConfig(exponent=1.0))
    fill(buffer, [2])
    buffer.windows(32, 1, 1)
    with pytest.raises(DataError, match="negative or not finite"):
        buffer.prioritise(np.zeros(2, np.int64), np.arange(2), np.array([0.0, bad]))
    assert set(buffer.windows(64, 1, 1).t.tolist()) == {0, 1}, "none was changed"


def test_priorities_need_a_buffer_that_draws_by_them(make: Maker) -> None:
    with pytest.raises(ReplayError, match=r"sampling\.kind=priority"):
        make.shared().prioritise(np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1))


def limiter(**settings: Any) -> LimiterConfig:
    return LimiterConfig(
        **({"min_size": 4, "samples_per_insert": 2.0, "tolerance": 16.0, "timeout_s": 0.2} | settings)
    )


def test_a_draw_waits_for_records_and_says_what_for(make: Maker) -> None:
    buffer = make(limiter=limiter())
    with pytest.raises(
        ReplayTimeout, match=r"draw waited.*inserted 0 decisions, sampled 0 windows.*store more"
    ):
        buffer.windows(4, 1, 1)
    fill(buffer, [8])
    buffer.windows(24, 1, 1)
    with pytest.raises(ReplayTimeout, match=r"inserted 8 decisions, sampled 24 windows, allowed 0 to 24"):
        buffer.windows(1, 1, 1)
    fill(buffer, [4])
    assert len(buffer.windows(8, 1, 1).ids) == 8


def test_an_insertion_waits_for_draws(make: Maker) -> None:
    buffer = make(limiter=limiter())
    fill(buffer, [8, 4])
    with pytest.raises(ReplayTimeout, match=r"insertion waited.*inserted 12 decisions.*draw more windows"):
        buffer.append(make_record(SPEC, 3, 8))
    assert buffer.stats()["items"] == 2, "what had to wait was not stored"
    buffer.windows(16, 1, 1)
    buffer.append(make_record(SPEC, 3, 8))


def test_who_waits_goes_on_when_the_other_side_moves(make: Maker) -> None:
    buffer = make(limiter=limiter(timeout_s=30.0))
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(buffer.windows, 8, 1, 1)
        fill(buffer, [8])
        assert len(drawn.result(timeout=60).ids) == 8


def test_a_draw_that_could_only_wait_is_refused_at_once(make: Maker) -> None:
    buffer = make(limiter=limiter(timeout_s=1000.0))
    with pytest.raises(ReplayError, match=r"33 windows is more than limiter\.tolerance=16"):
        buffer.windows(33, 1, 1)


# --- state, threads


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


def test_many_writers_and_readers_lose_nothing_and_mix_nothing(make: Maker) -> None:
    buffer = make(reuse_limit=1)
    trained: list[int] = []
    stop = threading.Event()

    def collect() -> None:
        for number in range(30):
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
    assert counts["consumed"] + counts["expired"] + counts["buffered"] == 90
    assert counts["running"] == counts["admitted"] == counts["leased"] == 0
    assert buffer.stats()["items"] <= PLACES["large"] * LONGEST // 2
