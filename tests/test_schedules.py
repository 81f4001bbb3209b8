"""Horizon schedules on hand-made loss curves, and the gate."""

import pytest

from configs.errors import ConfigError
from configs.horizon import DriftHorizonConfig, UncertainHorizonConfig
from configs.world_model import FixedHorizonConfig, GateConfig, LinearHorizonConfig, ValidatedHorizonConfig
from world_models.quality import HorizonQuality
from world_models.schedules import ScheduleInputs, ValidatedHorizon, gated_horizon, make_schedule


def inputs(updates: int = 0, loss: float | None = None) -> ScheduleInputs:
    """Short for the tests."""
    return ScheduleInputs(updates=updates, obs_val_loss=loss)


def test_fixed() -> None:
    """Whatever happens."""
    schedule = make_schedule(FixedHorizonConfig(horizon=7))
    assert [schedule.horizon(inputs(u, loss)) for u, loss in [(0, None), (10_000, 0.1)]] == [7, 7]


def test_linear_by_hand() -> None:
    """5 to 25 in 100 updates: a fifth of a decision per update, then flat."""
    schedule = make_schedule(LinearHorizonConfig(start=5, end=25, updates=100))
    assert [schedule.horizon(inputs(u)) for u in (0, 4, 5, 50, 99, 100, 500)] == [5, 5, 6, 15, 24, 25, 25]


def test_validated_grows_with_the_way_the_loss_has_come() -> None:
    """First 1.0, target 0.5: half of the way is a loss of 0.75."""
    schedule = make_schedule(ValidatedHorizonConfig(start=5, end=15, target=0.5, tolerance=0.1))
    assert schedule.horizon(inputs()) == 5
    assert [schedule.horizon(inputs(loss=x)) for x in (1.0, 0.9, 0.75, 0.5, 0.3)] == [5, 7, 10, 15, 15]


def test_validated_holds_on_a_plateau_and_shrinks_when_it_worsens() -> None:
    """Within 10 % of the best loss the best counts; beyond it the newest."""
    schedule = make_schedule(ValidatedHorizonConfig(start=5, end=15, target=0.5, tolerance=0.1))
    losses = [1.0, 0.75, 0.80, 0.82, 0.85, 1.2, 0.76]
    assert [schedule.horizon(inputs(loss=x)) for x in losses] == [5, 10, 10, 10, 8, 5, 10]


def test_validated_survives_missing_and_broken_losses() -> None:
    """None before the first look, NaN from a broken model: the shortest horizon, and no memory of it."""
    schedule = make_schedule(ValidatedHorizonConfig(start=5, end=15))
    assert schedule.horizon(inputs(loss=float("nan"))) == 5
    assert schedule.horizon(inputs(loss=None)) == 5
    assert schedule.horizon(inputs(loss=2.0)) == 5
    assert schedule.horizon(inputs(loss=1.5)) == 10


def test_validated_state_goes_on_where_it_was() -> None:
    """A fresh schedule takes its first loss for the start; a loaded one does not."""
    config = ValidatedHorizonConfig(start=5, end=15, target=0.5)
    schedule = ValidatedHorizon(config)
    schedule.horizon(inputs(loss=1.0))
    schedule.horizon(inputs(loss=0.75))
    other = ValidatedHorizon(config)
    assert other.horizon(inputs(loss=0.75)) == 5
    other.load(schedule.state())
    assert other.horizon(inputs(loss=0.75)) == 10
    known = ScheduleInputs(updates=0, obs_val_loss=0.5, first_obs_val_loss=1.0)
    assert ValidatedHorizon(config).horizon(known) == 15


def errors(*psnr: float) -> ScheduleInputs:
    """Measured PSNR by step."""
    return ScheduleInputs(updates=0, obs_val_loss=None, psnr_by_step=psnr)


def test_drift_follows_the_open_loop_error() -> None:
    """A bound of 0.1 of the range is 20 dB: start without measurement, growth, plateau, worsening, the ends."""
    schedule = make_schedule(DriftHorizonConfig(start=2, end=5, max_error=0.1))
    curves = [
        (30.0, 19.0, 18.0),  # only the first passes: no less than start
        (30.0, 25.0, 20.0, 19.9),
        (30.0, 25.0, 20.0, 20.0),
        (30.0, 25.0, 20.0, 20.0),
        (28.0, 19.0, 25.0, 25.0),  # what lies beyond a failure does not count
        (30.0,) * 9,
    ]
    assert [schedule.horizon(errors(*curve)) for curve in curves] == [2, 3, 4, 4, 2, 5]
    assert schedule.horizon(inputs()) == 2
    assert schedule.max_disagreement is None


def test_drift_does_not_believe_what_is_missing_or_broken() -> None:
    """NaN ends the reach, as does the end of the list; an infinite PSNR is none of a real frame."""
    schedule = make_schedule(DriftHorizonConfig(start=1, end=9, max_error=0.1))
    nan, infinity = float("nan"), float("inf")
    curves = [(), (25.0, 25.0), (25.0, nan, 25.0), (nan, 25.0), (25.0, 25.0, infinity)]
    assert [schedule.horizon(errors(*curve)) for curve in curves] == [1, 2, 1, 1, 2]


def test_drift_follows_agreement_by_horizon() -> None:
    """Rows in any order, horizons with gaps: only measured ones are used."""
    schedule = make_schedule(DriftHorizonConfig(start=1, end=9, measure="agreement", min_agreement=0.9))
    rows = [row(5, 0.8, 0.0), row(1, 0.99, 0.0), row(3, 0.9, 0.1)]
    assert schedule.horizon(ScheduleInputs(updates=0, obs_val_loss=None, measured=rows)) == 3
    assert schedule.horizon(ScheduleInputs(updates=0, obs_val_loss=None, measured=rows[1:])) == 3
    worse = [row(1, float("nan"), 0.0), row(2, 0.95, 0.0)]
    assert schedule.horizon(ScheduleInputs(updates=0, obs_val_loss=None, measured=worse)) == 1
    assert schedule.horizon(inputs()) == 1


def test_uncertain_gives_every_trajectory_the_longest() -> None:
    """What cuts it is the disagreement, whatever was measured."""
    schedule = make_schedule(UncertainHorizonConfig(end=7, max_disagreement=0.03))
    assert [schedule.horizon(each) for each in (inputs(), errors(1.0), inputs(100, 9.0))] == [7, 7, 7]
    assert schedule.max_disagreement == 0.03
    assert schedule.state() == {}


def test_a_schedule_cannot_run_backwards() -> None:
    """One line that says what to turn."""
    with pytest.raises(ConfigError, match=r"start=6 is above end=5.*raise end"):
        DriftHorizonConfig(start=6, end=5)


def row(horizon: int, agreement: float, false_success: float) -> HorizonQuality:
    """A measured horizon."""
    return HorizonQuality(horizon, 100, agreement, false_success, 1 - agreement - false_success, 0.5, 0.5)


@pytest.mark.parametrize(
    ("scheduled", "expected"),
    [(1, 1), (2, 2), (3, 3), (4, 3), (50, 3)],
)
def test_gate_stops_at_the_first_failure(scheduled: int, expected: int) -> None:
    """Horizon 4 fails; that 5 passes again does not help."""
    rows = [row(1, 0.99, 0.0), row(2, 0.95, 0.01), row(3, 0.9, 0.05), row(4, 0.84, 0.0), row(5, 0.95, 0.0)]
    assert gated_horizon(scheduled, rows, GateConfig(min_agreement=0.85, max_false_success=0.05)) == expected


def test_gate_bounds() -> None:
    """False success shuts it too; nothing measured, nothing believed; beyond the last measured nothing; off is off."""
    gate = GateConfig(min_agreement=0.85, max_false_success=0.05)
    assert gated_horizon(5, [row(1, 0.93, 0.06)], gate) == 0
    assert gated_horizon(5, None, gate) == 0
    assert gated_horizon(5, [], gate) == 0
    assert gated_horizon(50, [row(2, 0.9, 0.0), row(1, 0.9, 0.0)], gate) == 2
    assert gated_horizon(5, None, GateConfig(enabled=False)) == 5
    assert gated_horizon(50, [row(2, 0.9, 0.0), row(6, 0.5, 0.0)], gate) == 5
