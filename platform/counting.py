"""Progress of work that is counted in pieces: a live bar on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("reverie.progress")

REPORT_EVERY_S = 5.0

Finished = Callable[[int], None]
"""Takes how many pieces are finished by now."""


@contextmanager
def counted(pieces: str, total: int, before: int = 0) -> Iterator[Finished]:
    """Show how many of ``total`` ``pieces`` are finished, at what rate, and the time that is left at it; ``before`` of them
    were finished when the work began, or was taken up again.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(pieces, total, before)
        return
    with bar(console, pieces, total, before) as finished:
        yield finished


@contextmanager
def bar(console: Console, pieces: str, total: int, before: int = 0) -> Iterator[Finished]:
    """The live bar on ``console``."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            # There is none before the second piece.
            return Text("" if task.speed is None else rate_text(task.speed))

    columns = (TextColumn(pieces), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), Rate())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(pieces, total=total, completed=before)
        yield lambda finished: progress.update(task, completed=finished)


def rate_text(per_second: float) -> str:
    """Per second, per minute or per hour: whichever has a digit to show."""
    for unit, seconds in (("s", 1), ("min", 60)):
        rate = per_second * seconds
        if rate >= 1:
            return f"{rate:,.0f}/{unit}" if rate >= 100 else f"{rate:.2g}/{unit}"
    return f"{per_second * 3600:.2g}/h"


class _Lines:
    """A line of the log now and then."""

    def __init__(self, pieces: str, total: int, before: int) -> None:
        self._pieces, self._total, self._before = pieces, total, before
        self._began = self._last = time.monotonic()

    def __call__(self, finished: int) -> None:
        now = time.monotonic()
        if now - self._last < REPORT_EVERY_S or finished <= self._before:
            return
        self._last = now
        rate = (finished - self._before) / (now - self._began)
        left = (self._total - finished) / rate
        log.info("%d of %d %s, %s, %.0f s left", finished, self._total, self._pieces, rate_text(rate), left)
