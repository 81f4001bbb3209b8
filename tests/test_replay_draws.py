"""What the models draw from every replay buffer: one suite for all backends."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from configs.errors import DataError, ReplayError
from configs.replay import PrioritySamplingConfig
from configs.starts import StartsConfig
from tests.records_helper import make_record
from tests.replay_backends import SPEC, Maker, fill


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
    starts = buffer.starts(120, 2, horizon=3, mix=StartsConfig(first=1, recent=2, episodes=2))
    assert (starts.t[:40] == 0).all()
    assert len(set(starts.ids[:40].tolist())) > 2
    assert set(starts.ids[40:].tolist()) == {4, 5}
    assert set(starts.t[40:].tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(starts.frames["camera0"][:, -1, 0, 0, 1], starts.t)
    np.testing.assert_array_equal(starts.remaining, 4 - starts.t)
    np.testing.assert_array_equal(starts.success_within, np.arange(4) >= starts.remaining[:, None])
    assert starts.seeds.tolist() == [1000 + key for key in starts.ids]


def test_outcomes_are_labelled_by_success(make: Maker) -> None:
    buffer = make()
    buffer.append(make_record(SPEC, 0, 4, success=True))
    buffer.append(make_record(SPEC, 1, 2))
    outcomes = buffer.outcomes(400)  # a server draws unseeded: of 30, one in fifteen misses one of seven
    assert outcomes.label.sum() == 200
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
        lambda: buffer.starts(4, 1, horizon=1, mix=StartsConfig(first=0, recent=1, late=1)),
        lambda: buffer.outcomes(4),
    ):
        with pytest.raises(ReplayError, match=r"no \w+ row in the train split.*add such episodes"):
            draw()


def test_uniform_draws_tell_no_probability_and_take_no_priority(make: Maker) -> None:
    """So whoever learns from them has none to give."""
    buffer = make()
    fill(buffer, [4])
    assert buffer.windows(4, 1, 1).probability is None
    with pytest.raises(ReplayError, match="does not draw by priority"):
        buffer.prioritise(np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1))


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
