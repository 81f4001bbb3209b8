"""Progress of counted work, on a terminal and off it."""

from __future__ import annotations

import io
import logging
from platform import counting
from platform.counting import bar, counted, rate_text

import pytest
from rich.console import Console


def test_a_rate_has_a_digit_to_show():
    assert rate_text(1234.0) == "1,234/s"
    assert rate_text(12.34) == "12/s"
    assert rate_text(0.25) == "15/min"
    assert rate_text(0.002) == "7.2/h"


def test_the_bar_shows_counts_from_its_first_moment_on():
    page = io.StringIO()
    console = Console(file=page, force_terminal=True, width=100)
    with bar(console, "episodes", 4) as finished:
        for count in range(1, 5):
            finished(count)
    assert "4/4" in page.getvalue()


def test_off_a_terminal_a_line_now_and_then_counts_what_was_done_before_apart(monkeypatch, caplog):
    clock = iter([0.0, 2.0, 20.0])
    monkeypatch.setattr(counting.time, "monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO, logger="reverie"), counted("trials", 20, before=10) as finished:
        finished(11)
        finished(15)
    # Five in twenty seconds; another five are missing.
    assert [record.getMessage() for record in caplog.records] == ["15 of 20 trials, 15/min, 20 s left"]


@pytest.mark.parametrize("total", [1, 3])
def test_nothing_is_said_of_work_that_is_over_at_once(caplog, total):
    with caplog.at_level(logging.INFO, logger="reverie"), counted("trials", total) as finished:
        finished(total)
    assert not caplog.records
