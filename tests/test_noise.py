"""Sampling noise by key: right in distribution, and a function of the key alone."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st


def test_a_row_depends_on_its_key_alone() -> None:
    from platform.noise import keyed_exponentials

    keys = np.array([[3, 0, 1], [3, 0, 2], [4, 0, 1], [3, 1, 1]], np.int64)
    together = keyed_exponentials(7, keys, 50)
    for row, key in enumerate(keys):
        np.testing.assert_array_equal(keyed_exponentials(7, key[None], 50)[0], together[row])
        np.testing.assert_array_equal(keyed_exponentials(7, key[None], 20)[0], together[row, :20])
    assert len(np.unique(together)) == together.size, "neighbouring keys share nothing"
    assert not np.isin(keyed_exponentials(8, keys, 50), together).any()


def test_the_variates_are_exponential() -> None:
    from platform.noise import keyed_exponentials

    keys = np.stack([np.arange(1000), np.zeros(1000), np.arange(1000) % 12], axis=1).astype(np.int64)
    drawn = keyed_exponentials(0, keys, 100).astype(np.float64)
    # Mean and deviation of the exponential are 1; five standard errors of 100,000 draws.
    assert abs(drawn.mean() - 1) < 5 / math.sqrt(1e5)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(8 / 1e5)
    assert abs((drawn > 1).mean() - math.exp(-1)) < 5 * math.sqrt(0.24 / 1e5)
    for a, b in ((drawn[:-1], drawn[1:]), (drawn[:, :-1], drawn[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / math.sqrt(9e4)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 2**62), min_size=3, max_size=3))
def test_every_variate_is_finite_and_positive(seed: int, key: list[int]) -> None:
    from platform.noise import keyed_exponentials

    drawn = keyed_exponentials(seed, np.array([key], np.int64), 8)
    assert np.isfinite(drawn).all()
    assert (drawn > 0).all()
