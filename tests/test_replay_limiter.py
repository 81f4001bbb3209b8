"""Who waits for whom between insertions and draws: one suite for all backends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from configs.errors import ReplayError, ReplayTimeout
from configs.replay import LimiterConfig
from tests.records_helper import make_record
from tests.replay_backends import SPEC, Maker, fill


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
