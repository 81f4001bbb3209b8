"""SSIM, feature distance and calibration against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.model_parts import SPEC, Outcomes, encode, make_windows, reward_config
from tests.test_imagined_env import Brightening, Brightness
from world_models.pictures import feature_distance, ssim
from world_models.quality import outcome_agreement, reward_quality
from world_models.reliability import reliability
from world_models.reward_model import RewardModel

C1, C2 = 6.5025, 58.5225


def test_ssim_of_flat_pictures() -> None:
    """No structure: only the means' part of the formula is left. 100 against 150."""
    a, b = np.full((2, 16, 16, 3), 100, np.uint8), np.full((2, 16, 16, 3), 150, np.uint8)
    assert ssim(a, b) == pytest.approx((2 * 100 * 150 + C1) / (100**2 + 150**2 + C1), abs=1e-5)
    assert ssim(a, a) == pytest.approx(1.0)


def test_ssim_of_one_window_against_the_sums() -> None:
    """A picture as large as the window has one: weighted means, variances and covariance written out."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (2, 1, 11, 11, 3), dtype=np.uint8)
    line = np.exp(-0.5 * ((np.arange(11) - 5) / 1.5) ** 2)
    weights = np.outer(line, line) / line.sum() ** 2
    values = []
    for colour in range(3):
        x, y = a[0, :, :, colour].astype(float), b[0, :, :, colour].astype(float)
        mx, my = (weights * x).sum(), (weights * y).sum()
        vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
        cov = (weights * (x - mx) * (y - my)).sum()
        values.append((2 * mx * my + C1) * (2 * cov + C2) / ((mx**2 + my**2 + C1) * (vx + vy + C2)))
    assert ssim(a, b) == pytest.approx(np.mean(values), abs=1e-4)


def test_ssim_prefers_what_looks_alike() -> None:
    """Brighter by a constant is closer than noise of the same squared error; small pictures work too."""
    rng = np.random.default_rng(1)
    picture = rng.integers(50, 200, (1, 32, 32, 3), dtype=np.uint8)
    noisy = (picture + rng.choice([-10, 10], picture.shape)).astype(np.uint8)
    assert ssim(picture, picture + np.uint8(10)) > ssim(picture, noisy)
    assert ssim(picture[:, :4, :4], picture[:, :4, :4]) == pytest.approx(1.0)


def test_feature_distance_by_hand() -> None:
    """Orthogonal features differ by 2 at a place, opposite ones by 4, scaled ones by nothing; layers add up."""
    one = torch.zeros(1, 2, 1, 2)
    one[0, 0] = 1.0
    other = torch.zeros(1, 2, 1, 2)
    other[0, 1, 0, 0], other[0, 0, 0, 1] = 5.0, -3.0
    assert feature_distance([one], [other]).tolist() == pytest.approx([3.0])
    assert feature_distance([one, one], [other, 7 * one]).tolist() == pytest.approx([3.0])


def test_feature_maps_are_those_that_judge() -> None:
    """One map per stage at the folded resolution; equal frames have no distance, other ones have."""
    torch.manual_seed(0)
    model = RewardModel(SPEC, reward_config(precision="float32", channels=[4, 6]))
    frames = {"top": torch.randint(0, 256, (3, 16, 16, 3), dtype=torch.uint8)}
    words = torch.from_numpy(encode(["1", "2", "3"]))
    maps = model.feature_maps(frames, words)
    assert [tuple(each.shape) for each in maps] == [(3, 4, 8, 8), (3, 6, 8, 8)]
    assert feature_distance(maps, maps).tolist() == pytest.approx([0.0] * 3)
    moved = model.feature_maps({"top": frames["top"].flip(0)}, words)
    assert feature_distance(maps, moved)[0] > 0.01


def test_reports_follow_the_steps_of_the_windows() -> None:
    """Copies of still frames score 1 and 0; a step that no window has is left out."""
    windows = make_windows(3, 1, 3)
    windows.tokens[:] = 0
    windows.frames["top"][:] = 50
    windows.mask[:, 2] = False
    report = outcome_agreement(Brightening(), Brightness(), windows, encode=encode, threshold=0.5)
    assert report.ssim_by_step == pytest.approx([1.0, 1.0])
    assert report.perceptual_by_step == pytest.approx([0.0, 0.0])
    windows.tokens[:] = 1
    report = outcome_agreement(Brightening(), Brightness(), windows, encode=encode, threshold=0.5)
    assert report.ssim_by_step[0] > report.ssim_by_step[1]


def test_calibration_by_hand() -> None:
    """Two bins: 0.1 and 0.2 with one success of two, 0.9 twice with two of two."""
    found = reliability(np.array([0.1, 0.2, 0.9, 0.9]), np.array([True, False, True, True]), bins=2)
    assert (found.said, found.happened) == (pytest.approx([0.15, 0.9]), [0.5, 1.0])
    assert found.frames == [2, 2]
    assert found.error == pytest.approx((0.35 + 0.1) / 2)
    assert found.brier == pytest.approx((0.81 + 0.04 + 0.01 + 0.01) / 4)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_calibration_stays_in_bounds(cases: list[tuple[float, bool]]) -> None:
    """Every frame lies in one bin, both errors in [0, 1]."""
    found = reliability(np.array([p for p, _ in cases]), np.array([s for _, s in cases]))
    assert sum(found.frames) == len(cases)
    assert 0 <= found.error <= 1
    assert 0 <= found.brier <= 1


def test_reward_quality_says_how_calibrated() -> None:
    """Levels 150 and 50 are called 0.75 and 0.25."""
    frames = np.zeros((2, 16, 16, 3), np.uint8)
    frames[0], frames[1] = 150, 50
    batch = Outcomes({"top": frames}, ["1", "2"], np.array([1, 0], np.float32))
    judged = reward_quality(Brightness(), batch, encode=encode, threshold=0.5)
    assert judged.calibration.error == pytest.approx(0.25)
    assert judged.calibration.said == pytest.approx([0.25, 0.75])


def test_ssim_of_many_pictures_is_the_mean_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are compared at once: three pictures of 256 pixels, one or two at a time."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, (3, 16, 16, 3), dtype=np.uint8) for _ in range(2))
    alone = np.mean([ssim(a[i : i + 1], b[i : i + 1]) for i in range(3)])
    for pixels in (1, 512, 1 << 20):
        monkeypatch.setattr("world_models.pictures.PIXELS_AT_ONCE", pixels)
        assert ssim(a, b) == pytest.approx(alone)
