"""Calibration of M_reward against known temperatures, thresholds by hand, hard negatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model_parts import SPEC, Outcomes, encode, make_windows, obs_config, reward_config
from world_models.calibration import calibrate, fit_scale, lowest_threshold
from world_models.obs_model import ObservationModel
from world_models.outcomes import OutcomePool
from world_models.reward_model import RewardModel


def labelled(scale: float, offset: float, count: int = 20_000) -> tuple[Any, Any]:
    """Logits, and labels that are true with probability sigmoid(scale * logit + offset)."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, count).astype(np.float32)
    chance = 1 / (1 + np.exp(-(scale * logits + offset)))
    return logits, rng.random(count) < chance


def test_the_true_temperature_and_offset_are_found() -> None:
    """Overconfident logits at temperature 2, with and without a shift of the prior."""
    logits, success = labelled(0.5, 0.0)
    scale, offset = fit_scale(logits, success, "temperature")
    assert scale == pytest.approx(0.5, rel=0.05)
    assert offset == 0.0
    logits, success = labelled(0.5, -2.0)
    scale, offset = fit_scale(logits, success, "platt")
    assert scale == pytest.approx(0.5, rel=0.06)
    assert offset == pytest.approx(-2.0, abs=0.1)


def test_without_two_classes_or_without_a_wish_nothing_is_fitted() -> None:
    """One class says nothing about a scale; classes that are split cleanly end at the largest one."""
    logits = np.array([-3.0, -1.0, 1.0, 3.0], np.float32)
    assert fit_scale(logits, np.zeros(4, np.bool_), "platt") == (1.0, 0.0)
    assert fit_scale(logits, logits > 0, "none") == (1.0, 0.0)
    scale, _ = fit_scale(logits, logits > 0, "temperature")
    assert 1.0 < scale <= 20.0


def test_thresholds_by_hand() -> None:
    """Of five failures: none may pass, one may, all may."""
    failures = np.array([0.1, 0.2, 0.3, 0.4, 0.9], np.float32)
    assert [int((failures >= lowest_threshold(failures, rate)).sum()) for rate in (0.0, 0.2, 0.39, 0.4, 0.99)] == [
        0, 1, 1, 2, 4,
    ]  # fmt: skip
    assert lowest_threshold(failures, 0.2) == pytest.approx(0.4, abs=1e-6)
    assert 0.0 < lowest_threshold(failures, 1.0) < 0.1


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40),
    rate=st.floats(0, 0.99),
)
def test_no_more_than_the_stated_share_passes(values: list[float], rate: float) -> None:
    """With ties too; certainties excepted, which no threshold below 1 keeps out."""
    failures = np.minimum(np.array(values, np.float32), np.float32(0.999))
    threshold = lowest_threshold(failures, rate)
    assert 0 < threshold < 1
    assert (failures >= threshold).mean() <= rate + 1e-9


def frames(levels: list[int], label: list[float]) -> Outcomes:
    """Grey frames."""
    images = np.stack([np.full((16, 16, 3), level, np.uint8) for level in levels])
    return Outcomes({"top": images}, ["1 2"] * len(levels), np.array(label, np.float32))


class Brightness(RewardModel):
    """The logit is the mean pixel, times six."""

    def forward(self, pixels: Any, instruction: Any) -> Any:
        return 6 * pixels.flatten(1).mean(1)


def test_the_threshold_holds_on_real_and_imagined_frames_and_travels_with_the_weights() -> None:
    """Imagined failures are brighter than real ones, so they set it."""
    model = Brightness(SPEC, reward_config(false_success=0.25, calibration="platt", precision="float32"))
    assert model.threshold == pytest.approx(model.config.threshold)
    real = frames([10, 20, 30, 200, 220, 250], [0, 0, 0, 0, 1, 1])
    imagined = frames([100, 150, 180, 240], [0, 0, 0, 0])
    report = calibrate(model, real, imagined, encode=encode)
    called = model.probability(
        {"top": torch.from_numpy(imagined.frames["top"])}, torch.ones(4, 3, dtype=torch.long)
    )
    assert int((called.numpy() >= model.threshold).sum()) == 1
    assert report.threshold == pytest.approx(model.threshold)
    assert report.false_success <= 0.25
    copy = Brightness(SPEC, model.config)
    copy.load_state_dict(model.state_dict())
    assert copy.threshold == model.threshold


def test_a_threshold_that_nobody_measured_is_that_of_the_config() -> None:
    """Weights that were calibrated under another one do not bring it along."""
    stored = Brightness(SPEC, reward_config(calibration="platt", threshold=0.9))
    calibrate(stored, frames([10, 200, 220, 250], [0, 0, 1, 1]), None, encode=encode)
    ours = Brightness(SPEC, reward_config(calibration="platt", threshold=0.6))
    ours.load_state_dict(stored.state_dict())
    assert ours.threshold == 0.6


def test_frames_of_one_class_leave_scale_and_offset_as_they_were() -> None:
    """An online draw without a success must not undo what was fitted to thousands of frames."""
    model = Brightness(SPEC, reward_config(calibration="platt"))
    model.calibrate(scale=0.5, offset=-2.0, threshold=0.9)
    calibrate(model, frames([10, 200, 220], [0, 0, 0]), None, encode=encode)
    assert (float(model.get_buffer("scale")), float(model.get_buffer("offset"))) == (0.5, -2.0)


def test_without_calibration_there_is_nothing_to_carry() -> None:
    """Weights of uncalibrated models keep their names."""
    plain = RewardModel(SPEC, reward_config())
    assert not {"scale", "offset", "cut"} & set(plain.state_dict())
    assert plain.threshold == plain.config.threshold


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_hard_negatives_take_their_share_of_the_failures(share: float) -> None:
    """Of the failures drawn from the pool, those that the judge believed come as often as asked."""
    torch.manual_seed(0)
    config = reward_config(batch=64, imagined_fraction=0.5, hard_negatives=share)
    pool = OutcomePool(SPEC, config, encode=encode, seed=0, device=torch.device("cpu"))
    windows = make_windows(40, 1, 2)
    windows.success_within[:10, 1:] = True
    obs_model = ObservationModel(SPEC, obs_config(precision="float32")).eval()
    pool.add(obs_model, windows, RewardModel(SPEC, config))
    # What is believed is set by hand: every failure with an even place.
    places = np.arange(pool.size)
    failures = pool._label[: pool.size] < 0.5
    pool._believed[: pool.size] = failures & (places % 2 == 0)
    marks = np.zeros((pool.size, 16, 16, 3), np.uint8)
    marks[:, 0, 0, 0] = np.where(pool._believed[: pool.size], 255, 0)
    pool._frames["top"][: pool.size] = marks
    assert 0.4 < pool.hard_share < 0.6
    drawn = pool.joined(frames([0] * 32, [1.0, 0.0] * 16))
    imagined = slice(32, 64)
    wrong = drawn.label[imagined] < 0.5
    believed = drawn.frames["top"][imagined][wrong][:, 0, 0, 0] == 255
    assert wrong.sum() == 16
    assert believed.mean() >= share
    if share == 0.0:
        assert 0 < believed.mean() < 1
    pool.load(pool.state())
    assert pool.hard_share > 0.4
