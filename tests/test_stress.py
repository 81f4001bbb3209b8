"""A small part of ``benchmarks/stress.py``: roles in threads, paused and resumed while versions appear."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CASES = ["mask", "cut, groups", "drop, on-policy share", "wait", "drain, in order"]


@pytest.mark.parametrize("case", CASES)
def test_pauses_and_publishes_lose_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from stress import CASES as RULES
    from stress import run_case
    from thread_host import ThreadHost

    assert list(RULES) == CASES
    result = run_case(case, ThreadHost(), "threads", cycles=20, delay_s=2e-4)
    assert result.cycles >= 20
    assert result.publishes >= 10
    assert result.largest_lag <= result.bound
    assert result.samples > 0
