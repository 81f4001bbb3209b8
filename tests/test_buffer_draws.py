"""What the world models draw from the replay buffer: windows, starts, outcomes, splits."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffers.index import is_held_out
from buffers.rows import RowSet
from configs.errors import ReplayError
from configs.starts import StartsConfig
from tests.buffer_helper import SPEC, fill, make_buffer
from tests.records_helper import make_record


@pytest.mark.parametrize(("history", "steps"), [(1, 0), (1, 5), (3, 2), (4, 9)])
def test_windows_never_cross_records(history: int, steps: int) -> None:
    buffer = make_buffer(rows=60)
    lengths = [int(n) for n in np.random.default_rng(3).integers(1, 9, size=30)]
    fill(buffer, lengths)
    windows = buffer.windows(400, history, steps)
    frames = windows.frames["camera0"]
    assert frames.shape == (400, history + steps, 4, 4, 3)
    numbers = windows.ids
    length = np.array(lengths)[numbers]
    wanted = np.clip(windows.t[:, None] + np.arange(1 - history, steps + 1), 0, length[:, None])
    np.testing.assert_array_equal(frames[:, :, 0, 0, 0], np.broadcast_to(numbers[:, None], wanted.shape))
    np.testing.assert_array_equal(frames[:, :, 0, 0, 1], wanted)
    np.testing.assert_array_equal(windows.proprio[:, :, 1], wanted)
    decisions = windows.t[:, None] + np.arange(steps)
    np.testing.assert_array_equal(windows.mask, decisions < length[:, None])
    np.testing.assert_array_equal(windows.tokens[..., 0, 0], np.minimum(decisions, length[:, None] - 1))
    np.testing.assert_array_equal(windows.valid.any(-1), windows.mask)
    assert windows.instructions == [f"reach {n}" for n in numbers]


def test_window_starts_are_uniform_over_decisions() -> None:
    buffer = make_buffer()
    fill(buffer, [1, 3, 8])
    windows = buffer.windows(12_000, 1, 1)
    counts = Counter(zip(windows.ids.tolist(), windows.t.tolist(), strict=True))
    assert len(counts) == 12
    # 5.5 standard deviations of a binomial(12000, 1/12).
    assert all(abs(count - 1000) < 166 for count in counts.values())


def test_episode_starts_only() -> None:
    buffer = make_buffer()
    buffer.append(make_record(SPEC, 0, 5))
    buffer.append(make_record(SPEC, 1, 5, is_first=False))
    windows = buffer.windows(50, 2, 3, episode_start=True)
    assert set(windows.t.tolist()) == {0}
    assert set(windows.ids.tolist()) == {0}


def test_success_within_by_hand() -> None:
    buffer = make_buffer()
    buffer.append(make_record(SPEC, 0, 3, success=True))
    buffer.append(make_record(SPEC, 1, 3, success=False))
    starts = buffer.starts(100, 2, horizon=4)
    by_start = {
        (int(key), int(t)): "".join("01"[int(x)] for x in row)
        for key, t, row in zip(starts.ids, starts.t, starts.success_within, strict=True)
    }
    none = "00000"
    assert by_start == {
        (0, 0): "00011",
        (0, 1): "00111",
        (0, 2): "01111",
        (1, 0): none,
        (1, 1): none,
        (1, 2): none,
    }
    np.testing.assert_array_equal(starts.remaining, 3 - starts.t)
    np.testing.assert_array_equal(starts.seeds, 1000 + starts.ids)
    assert starts.tasks == [f"task{n}" for n in starts.ids]
    assert not starts.demonstration.any()
    np.testing.assert_array_equal(starts.frames["camera0"][:, -1, 0, 0, 1], starts.t)


def test_recent_starts_are_uniform_over_the_newest_records() -> None:
    buffer = make_buffer()
    fill(buffer, [8, 1, 3])
    starts = buffer.starts(4000, 1, horizon=1, mix=StartsConfig(first=0, recent=1, episodes=2))
    counts = Counter(zip(starts.ids.tolist(), starts.t.tolist(), strict=True))
    assert set(counts) == {(1, 0), (2, 0), (2, 1), (2, 2)}
    assert all(abs(count - 1000) < 150 for count in counts.values())


def test_some_starts_begin_episodes_of_any_age() -> None:
    buffer = make_buffer()
    fill(buffer, [8, 1, 3])
    starts = buffer.starts(3000, 1, horizon=1, mix=StartsConfig(episodes=1))
    begun, under_way = (
        Counter(zip(starts.ids[part].tolist(), starts.t[part].tolist(), strict=True))
        for part in (slice(0, 1500), slice(1500, None))
    )
    assert set(begun) == {(0, 0), (1, 0), (2, 0)}
    assert all(abs(count - 500) < 100 for count in begun.values())
    assert set(under_way) == {(2, 0), (2, 1), (2, 2)}


def test_outcomes_are_labelled_and_balanced() -> None:
    buffer = make_buffer()
    buffer.append(make_record(SPEC, 0, 3, success=True))
    buffer.append(make_record(SPEC, 1, 2, success=False))
    batch = buffer.outcomes(1000)
    assert batch.label.sum() == 500
    seen = Counter(
        (int(frame[0, 0, 0]), int(frame[0, 0, 1]), float(label))
        for frame, label in zip(batch.frames["camera0"], batch.label, strict=True)
    )
    assert set(seen) == {(0, 0, 0.0), (0, 1, 0.0), (0, 2, 0.0), (0, 3, 1.0)} | {
        (1, index, 0.0) for index in range(3)
    }
    natural = buffer.outcomes(7000, balance=False)
    assert abs(natural.label.sum() - 1000) < 160
    with pytest.raises(ReplayError, match="held_out"):
        buffer.outcomes(4, split="held_out")


def test_an_outcome_that_never_happened_is_not_made_up() -> None:
    buffer = make_buffer()
    fill(buffer, [3], success=False)
    with pytest.raises(ReplayError, match="success"):
        buffer.outcomes(4)
    assert buffer.outcomes(4, balance=False).label.sum() == 0


def test_the_splits_do_not_share_episodes() -> None:
    buffer = make_buffer(held_out=0.2)
    ids = fill(buffer, [2] * 50)
    assert abs(buffer.stats()["held_out_items"] - 10) <= 2
    held_out = set(buffer.windows(500, 1, 1, split="held_out").ids.tolist())
    train = set(buffer.windows(2000, 1, 1).ids.tolist())
    assert held_out == set(buffer.ids("held_out"))
    assert not held_out & train
    assert held_out | train == set(ids)


@given(st.floats(0, 0.9), st.integers(0, 10**6))
def test_any_stretch_of_episodes_has_its_share_held_out(share: float, first: int) -> None:
    held_out = sum(is_held_out(first + i, share) for i in range(1000))
    assert abs(held_out - 1000 * share) < 12
    assert not is_held_out(first, 0.0)


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 19), min_size=1)), max_size=30))
def test_row_set_is_a_set(steps: list[tuple[bool, set[int]]]) -> None:
    rows, model = RowSet(20), set[int]()
    for insert, chosen in steps:
        change = chosen - model if insert else chosen & model
        (rows.add if insert else rows.remove)(np.array(sorted(change), np.int64))
        model = model | change if insert else model - change
        assert sorted(rows.state().tolist()) == sorted(model)
