"""Outcome agreement, PSNR and reward quality by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model_parts import Outcomes, encode, make_windows
from tests.test_imagined_env import Brightening, Brightness
from world_models.film import Film, enlarged, film_strip, film_video
from world_models.quality import (
    QualityReport,
    compare_outcomes,
    imagine_open_loop,
    judge_scores,
    outcome_agreement,
    psnr,
    reward_quality,
)


def test_agreement_by_hand() -> None:
    """Five windows of three decisions; the model brightens by 20 a decision and success is level 100."""
    windows = make_windows(5, 1, 3)
    windows.tokens[:] = 0
    windows.tokens[:, :, 0, 0] = 1
    levels = np.array([80, 60, 0, 60, 90], np.uint8)
    windows.frames["top"][:] = levels[:, None, None, None, None]
    windows.success_within[0, 1:] = True  # both at once
    windows.success_within[1, 3:] = True  # imagined one decision early
    windows.success_within[2, 2:] = True  # missed
    windows.mask[3, 1:] = False  # record ends after one decision: no imagined success although one would come
    # Window 4 succeeds in imagination only.
    report = outcome_agreement(Brightening(), Brightness(), windows, encode=encode, threshold=0.5)
    rows = report.by_horizon
    assert [row.horizon for row in rows] == [1, 2, 3]
    assert [row.real_success for row in rows] == pytest.approx([0.2, 0.4, 0.6])
    assert [row.imagined_success for row in rows] == pytest.approx([0.4, 0.6, 0.6])
    assert [row.false_success for row in rows] == pytest.approx([0.2, 0.4, 0.2])
    assert [row.missed_success for row in rows] == pytest.approx([0.0, 0.2, 0.2])
    assert [row.agreement for row in rows] == pytest.approx([0.8, 0.4, 0.6])
    # Real frames stand still, so the copy is exact and imagination off by 20, 40, 60 grey levels.
    assert report.psnr_by_step == pytest.approx([20 * np.log10(255 / d) for d in (20, 40, 60)], abs=1e-3)
    assert report.psnr_copy_by_step == pytest.approx([10 * np.log10(255**2 / 1e-4)] * 3)
    assert QualityReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_open_loop_stops_with_the_record() -> None:
    """Past its end frames repeat and the probability is 0."""
    windows = make_windows(2, 1, 2)
    windows.tokens[:] = 1
    windows.frames["top"][:] = 50
    windows.mask[1, 1] = False
    film = imagine_open_loop(Brightening(), Brightness(), windows, encode=encode, seed=0)
    assert film.frames["top"][:, :, 0, 0, 0].tolist() == [[50, 70, 90], [50, 70, 70]]
    np.testing.assert_allclose(film.probabilities, [[0.25, 0.35, 0.45], [0.25, 0.35, 0.0]])


@given(data=st.data())
def test_shares_add_up(data: st.DataObject) -> None:
    """Agreement, false and missed success part all windows, at every horizon."""
    bits = st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=3, max_size=3)
    imagined, real = np.array(data.draw(bits)), np.array(data.draw(bits))
    for row in compare_outcomes(imagined, real):
        assert row.agreement + row.false_success + row.missed_success == pytest.approx(1.0)
        assert row.imagined_success - row.real_success == pytest.approx(
            row.false_success - row.missed_success
        )


def test_psnr_by_hand() -> None:
    """One grey level everywhere is 48.13 dB."""
    a = np.full((2, 4, 4, 3), 10, np.uint8)
    assert psnr(a, a + np.uint8(1)) == pytest.approx(48.1308, abs=1e-3)


def test_scores_by_hand() -> None:
    """Pairs won: of 2 x 3, the 0.9 wins three, the 0.4 wins one and ties one."""
    scores = np.array([0.9, 0.4, 0.4, 0.1, 0.7], np.float32)
    success = np.array([True, True, False, False, False])
    judged = judge_scores(scores, success, 0.5)
    assert judged.auc == pytest.approx((3 + 1.5) / 6)
    assert (judged.precision, judged.recall) == (0.5, 0.5)
    assert judged.false_success == pytest.approx(1 / 3)
    assert (judged.successes, judged.others) == (2, 3)
    assert judge_scores(scores, np.zeros(5, np.bool_), 0.95).auc == 0.5


def test_reward_quality_reads_frames() -> None:
    """Levels 150 and 50 against the threshold 100."""
    frames = np.zeros((2, 16, 16, 3), np.uint8)
    frames[0], frames[1] = 150, 50
    batch = Outcomes({"top": frames}, ["1", "2"], np.array([1, 0], np.float32))
    judged = reward_quality(Brightness(), batch, encode=encode, threshold=0.5)
    assert (judged.auc, judged.precision, judged.recall, judged.false_success) == (1.0, 1.0, 1.0, 0.0)


def test_film_shows_both_worlds(tmp_path: Path) -> None:
    """Real above imagined, enlarged without smoothing; the video has a frame per step and a still."""
    import imageio.v2 as imageio
    from PIL import Image

    real = np.zeros((3, 8, 8, 3), np.uint8)
    real[..., 0] = 250
    imagined = np.zeros((3, 8, 8, 3), np.uint8)
    imagined[..., 2] = 250
    film = Film(real, imagined, np.array([0.0, 0.3, 0.9], np.float32), "reach the red block")
    film_strip([film, film], tmp_path / "strip.png", enlarge=4)
    sheet = np.asarray(Image.open(tmp_path / "strip.png"))
    red = (sheet == [250, 0, 0]).all(-1)
    blue = (sheet == [0, 0, 250]).all(-1)
    assert red.sum() == blue.sum() == 2 * 3 * 32 * 32
    assert np.flatnonzero(red.any(1)).min() < np.flatnonzero(blue.any(1)).min()
    film_video([film], tmp_path / "film.mp4", fps=4)
    shown = imageio.mimread(tmp_path / "film.mp4", memtest=False)
    assert len(shown) == 3 + 4
    assert shown[0].shape == (144, 64, 3)
    assert enlarged(np.arange(12, dtype=np.uint8).reshape(2, 2, 3), 2)[:, :, 0].tolist() == [
        [0, 0, 3, 3], [0, 0, 3, 3], [6, 6, 9, 9], [6, 6, 9, 9],
    ]  # fmt: skip


def test_a_long_film_shows_first_and_last_step_and_no_more_than_a_page_holds():
    from world_models.film import COLUMNS, MARGIN, film_sheet

    def film(steps: int) -> Film:
        frames = np.zeros((steps, 64, 64, 3), np.uint8)
        frames[0, ..., 0], frames[-1, ..., 1] = 200, 200
        return Film(frames, frames, np.zeros(steps, np.float32))

    long, short = film_sheet([film(35)]), film_sheet([film(4)])
    assert long.shape[1] - short.shape[1] == (COLUMNS - 4) * (2 * 64 + MARGIN)
    for sheet in (long, short):
        assert (sheet == (200, 0, 0)).all(axis=-1).sum() == 2 * 128 * 128
        assert (sheet == (0, 200, 0)).all(axis=-1).sum() == 2 * 128 * 128
