"""Jobs side by side: room, failures, interrupts."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from platform.side_by_side import Crew, Job, last_line

import pytest

WAITS = """
import pathlib, signal, sys, time
def end(*_):
    with open({mark!r}, "a") as file:
        file.write("interrupted\\n")
    if {ends!r}:
        sys.exit(130)
signal.signal(signal.SIGTERM, end)
pathlib.Path({ready!r}).touch()
while True:
    time.sleep(0.01)
"""


def job(name: str, code: str, folder: Path) -> Job:
    """Python code."""
    return Job(name, [sys.executable, "-c", code], folder / f"{name}.txt")


def test_failures_leave_the_others_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every job's output has a file; the reason of a failure is its error's line."""
    fails = "import sys; print('error: no such folder', file=sys.stderr); print('bye'); sys.exit(2)"
    crew = Crew(parallel=1)
    assert crew.run([job("bad", fails, tmp_path), job("good", "print('done')", tmp_path)])
    assert crew.codes == {"bad": 2, "good": 0}
    assert (tmp_path / "good.txt").read_text() == "done\n"
    assert "bad: ended with status 2, error: no such folder" in caplog.text


def test_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    """Each job notes how many run while it does."""
    code = (
        "import pathlib, time\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "mine = here / f'{time.monotonic_ns()}.running'\n"
        "mine.touch(); time.sleep(0.3)\n"
        "print(len(list(here.glob('*.running')))); mine.unlink()\n"
    )
    crew = Crew(parallel=2)
    assert crew.run([job(f"job{number}", code, tmp_path) for number in range(5)])
    assert max(int((tmp_path / f"job{number}.txt").read_text()) for number in range(5)) <= 2
    assert len(crew.codes) == 5


def interrupt_when(there: Path, then: Path | None = None) -> threading.Thread:
    """Interrupt this process once ``there`` exists, and again once ``then`` does."""

    def watch() -> None:
        for path in [there] if then is None else [there, then]:
            while not path.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("ends", [True, False])
def test_one_interrupt_asks_and_two_kill(tmp_path: Path, *, ends: bool) -> None:
    """Jobs hear the first one once, no other job begins, and one that does not end is killed by the second."""
    mark, ready = tmp_path / "mark", tmp_path / "ready"
    code = WAITS.format(mark=str(mark), ready=str(ready), ends=ends)
    crew = Crew(parallel=1)
    thread = interrupt_when(ready, None if ends else mark)
    before = signal.getsignal(signal.SIGINT)
    assert not crew.run([job("runs", code, tmp_path), job("waits", "", tmp_path)])
    thread.join()
    assert crew.codes == {"runs": 130 if ends else -signal.SIGKILL}
    assert mark.read_text() == "interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_last_line_of_this_invocation(tmp_path: Path) -> None:
    """What an earlier one left does not count."""
    path = tmp_path / "log.txt"
    path.write_text("error: old\n")
    old = path.stat().st_size
    assert last_line(path, old) == "nothing said yet"
    path.write_text("error: old\nturn 1\nturn 2\n\n")
    assert last_line(path, old) == "turn 2"
    assert last_line(path) == "error: old"
