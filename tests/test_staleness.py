import numpy as np
import pytest


def test_decisions_beyond_the_bound_are_masked() -> None:
    from platform.staleness import lag_mask

    version = np.array([[3, 4, 5], [1, 2, 5]], np.int32)
    present = np.array([[True, True, False], [True, True, True]])
    # lags 2 1 - / 4 3 0; bound 2
    expected = [[True, True, False], [False, False, True]]
    assert lag_mask(version, present, current=5, bound=2).tolist() == expected


def test_a_version_from_the_future_is_a_broken_invariant() -> None:
    from platform.staleness import lag_mask

    with pytest.raises(AssertionError, match="never published"):
        lag_mask(np.array([6], np.int32), np.array([True]), current=5, bound=2)


def test_lag_statistics_by_hand() -> None:
    from platform.staleness import lag_statistics

    version = np.array([10, 9, 8, 0], np.int32)
    present = np.array([True, True, True, False])
    lag = lag_statistics(version, present, current=10, bound=1)
    assert lag.mean == 1.0
    assert lag.maximum == 2
    assert lag.over_bound == 1
    assert lag.p95 == pytest.approx(1.9)


def test_lag_of_nothing_is_zero() -> None:
    from platform.staleness import lag_statistics

    empty = lag_statistics(np.zeros(0, np.int32), np.zeros(0, np.bool_), current=4, bound=1)
    assert (empty.mean, empty.p95, empty.maximum, empty.over_bound) == (0.0, 0.0, 0, 0)
