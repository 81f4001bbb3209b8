import json
import pickle
from pathlib import Path
from platform.metrics import Averages, Count, Mean, joined
from platform.progress import ProgressLine

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.loader import load_config
from configs.schema import TrainConfig
from configs.system import TrackConfig


def test_wilson_interval_against_published_values() -> None:
    from platform.metrics import SuccessRate

    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662, 0 of 20 gives 0 to 0.1611.
    rate = SuccessRate.of(81, 263)
    assert (round(rate.low, 4), round(rate.high, 4)) == (0.2553, 0.3662)
    none = SuccessRate.of(0, 20)
    assert (none.low, round(none.high, 4)) == (0.0, 0.1611)


@given(st.integers(1, 500), st.data())
def test_wilson_interval_holds_the_rate_and_stays_in_bounds(trials: int, data: st.DataObject) -> None:
    from platform.metrics import SuccessRate

    rate = SuccessRate.of(data.draw(st.integers(0, trials)), trials)
    assert 0.0 <= rate.low <= rate.rate + 1e-12
    assert rate.rate - 1e-12 <= rate.high <= 1.0


def test_idle_and_busy_make_the_wall_time() -> None:
    from platform.metrics import BusyClock, idle_ratio

    now = [100.0]
    clock = BusyClock(lambda: now[0])

    def until(second: float) -> None:
        now[0] = 100.0 + second

    until(1.0)
    clock.begin()
    until(3.0)
    clock.end(worked=True)
    until(5.0)
    assert clock.take() == (2.0, 5.0)
    assert idle_ratio(2.0, 5.0) == pytest.approx(0.6)
    # A step from 6 to 17 lies in three windows, one of which it fills.
    until(6.0)
    clock.begin()
    until(10.0)
    assert clock.take() == (4.0, 5.0)
    until(15.0)
    assert clock.take() == (5.0, 5.0)
    until(17.0)
    clock.end(worked=True)
    until(20.0)
    assert clock.take() == (2.0, 5.0)
    assert clock.take() == (0.0, 0.0)
    # A look from 24 to 26 that found nothing was idle: what 20 to 25 counted of it, 25 to 30 counts less.
    until(24.0)
    clock.begin()
    until(25.0)
    assert clock.take() == (1.0, 5.0)
    until(26.0)
    clock.end(worked=False)
    until(27.0)
    clock.begin()
    until(30.0)
    clock.end(worked=True)
    assert clock.take() == (2.0, 5.0)


@given(
    st.lists(st.tuples(st.sampled_from(["begin", "worked", "idle", "take"]), st.integers(0, 50)), max_size=60)
)
def test_no_busy_second_is_lost_or_counted_twice(moves: list[tuple[str, int]]) -> None:
    from platform.metrics import BusyClock

    now, began, busy = 0, None, 0
    clock = BusyClock(lambda: float(now))
    taken = []
    # Idle time that was counted as busy is made good by the busy time after it.
    after = [("worked", 0), ("begin", 0), ("worked", 5000), ("take", 0), ("take", 1000)]
    for move, seconds in [*moves, *after]:
        now += seconds
        if move == "take":
            taken.append(clock.take())
        elif move == "begin":
            if began is None:
                began = now
                clock.begin()
        elif began is not None:
            busy += now - began if move == "worked" else 0
            began = None
            clock.end(worked=move == "worked")
    assert all(0 <= one <= wall for one, wall in taken)
    assert sum(wall for _, wall in taken) == now
    assert sum(one for one, _ in taken) == busy


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_idle_ratio_is_a_share(busy: float, wall: float) -> None:
    from platform.metrics import idle_ratio

    assert 0.0 <= idle_ratio(busy, wall) <= 1.0


def test_averages_are_means_between_reads_and_skip_what_json_cannot_hold() -> None:
    from platform.metrics import Averages

    averages = Averages()
    averages.add({"a": 1.0, "b": float("nan")})
    averages.add({"a": 3.0}, prefix="")
    averages.add({"a": 5.0}, prefix="x/")
    assert averages.take() == {"a": 2.0, "x/a": 5.0}
    assert averages.take() == {}


def test_the_largest_stays_over_reads_processes_and_loops() -> None:
    from platform.metrics import Averages, Largest, joined

    kept = Averages()
    kept.add({"lag": Largest(3)})
    kept.add({"lag": Largest(1)})
    moved = pickle.loads(pickle.dumps(kept))
    moved.add({"lag": Largest(5)})
    kept.merge(moved)
    row = kept.take()
    assert row == {"lag": 5.0}
    assert kept.take() == {}
    assert joined([row, {"lag": Largest(2)}]) == {"lag": 5.0}


def test_rows_are_on_disk_at_once_and_an_unfinished_last_line_is_ignored(tmp_path: Path) -> None:
    from platform.metrics import make_trackers, read_rows

    tracker = make_trackers(TrackConfig(), tmp_path, "id")[0]
    tracker.write({"a": 1}, 0)
    assert read_rows(tmp_path / "metrics.jsonl") == [{"a": 1}]
    tracker.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"a": 2')
    assert read_rows(tmp_path / "metrics.jsonl") == [{"a": 1}]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('\n{"a": 3}\n')
    with pytest.raises(json.JSONDecodeError):
        read_rows(tmp_path / "metrics.jsonl")


def test_a_metric_row_has_idle_ratios_and_the_sum_of_real_steps() -> None:
    from platform.progress import metric_row

    stats = {"items": 3, "bytes": 10, "uses_per_sample": 0.5, "lost_items": 0, "server_deaths": ["died"]}
    row = metric_row(
        {
            "policy_learner": {"busy_s": 3.0, "wall_s": 4.0, "policy/loss": 0.1},
            "rollout_0": {"busy_s": 1.0, "wall_s": 4.0},
            "rollout_1": {"busy_s": 3.0, "wall_s": 4.0},
        },
        {"real": stats, "img": stats},
        {"real_steps/rollout_0": 5, "real_steps/rollout_1": 7, "obs_model/val_loss": None},
        12.5,
    )
    assert row["trainer/idle_ratio"] == pytest.approx(0.25)
    assert row["rollouter/idle_ratio"] == pytest.approx(0.5)
    assert row["real_steps"] == 12
    assert row["policy/loss"] == 0.1
    assert row["buffer/img/items"] == 3
    assert row["buffer/img/server_deaths"] == 1
    assert "obs_model/val_loss" not in row
    assert "busy_s" not in row


def test_numbers_of_several_loops_are_joined_by_what_they_are() -> None:
    first: dict[str, float] = {"wait_s": Mean(1.0, 1), "batches": Count(2), "depth": 3.0}
    second: dict[str, float] = {"wait_s": Mean(4.0, 2), "batches": Count(5), "depth": 4.0, "alone": Count(1)}
    row = joined([first, second])
    assert row == {"wait_s": 3.0, "batches": 7.0, "depth": 4.0, "alone": 1.0}
    assert joined([row, first])["wait_s"] == 2.5, "(1 + 4 + 4 + 1) / 4: the count is joined too"


def test_a_mean_keeps_its_count_on_the_way_out_of_an_actor() -> None:
    mean = pickle.loads(pickle.dumps(Mean(1.5, 4)))
    assert (mean, mean.count) == (1.5, 4)
    assert json.dumps({"x": mean}) == '{"x": 1.5}'


def test_averages_cross_processes() -> None:
    kept = Averages()
    kept.add({"loss": 1.0})
    moved = pickle.loads(pickle.dumps(kept))
    moved.add({"loss": 2.0})
    kept.merge(moved)
    assert kept.take() == {"loss": pytest.approx(4 / 3)}


def test_the_first_limit_says_how_long_it_takes() -> None:
    """20 of 200 turns in 600 s leave 160 of 30 s; 4,000 of 10,000 steps 900 s; 1,500 s of wall time, 700 of them before
    the run went on, 200 s.
    """
    board = {"policy/turns": 40}
    cases = {
        (): "1:20:00 left",
        ("run.stop.real_steps=10000",): "0:15:00 left",
        ("run.stop.real_steps=10000", "run.stop.wall_s=1500"): "0:03:20 left",
        ("run.stop.wall_s=1200",): "0:00:00 left",
    }
    for limits, left in cases.items():
        line = ProgressLine(load_config(TrainConfig, ["real+imagined", *limits]), 10.0, spent_s=700.0)
        line.text({"real_steps": 0}, {"policy/turns": 20}, 10.0)
        assert line.text({"real_steps": 4000}, board, 610.0).endswith(left)


def test_wall_time_is_known_before_the_first_turn() -> None:
    """A limit in seconds needs no rate."""
    line = ProgressLine(load_config(TrainConfig, ["real+imagined", "run.stop.wall_s=90"]), 10.0)
    assert line.text({"real_steps": 0}, {}, 40.0).endswith("0:01:00 left")


def test_a_line_has_rates_only_where_time_has_passed() -> None:
    """A resumed run begins with counts of before; the last two lines may fall on one moment."""
    line = ProgressLine(load_config(TrainConfig, ["real+imagined"]), 10.0)
    board = {"policy/turns": 40, "imagined_steps": 900}
    assert line.text({"real_steps": 500}, board, 12.0).startswith(
        "turn 40/200, real steps 500, imagined 900, remaining"
    )
    board["imagined_steps"] = 1100
    assert "real steps 520 (+10/s), imagined 1100 (+100/s)" in line.text({"real_steps": 520}, board, 14.0)
    assert "real steps 521, imagined 1100," in line.text({"real_steps": 521}, board, 14.0)
