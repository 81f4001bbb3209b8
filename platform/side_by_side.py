"""Processes side by side: as many as there is room for, each with its own log; one that fails does not stop the others."""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from .storage import disk_errors

log = logging.getLogger(__name__)

REPORT_EVERY_S = 30.0
POLL_S = 0.2


@dataclass(frozen=True)
class Job:
    """A command whose output goes to ``output``."""

    name: str
    command: list[str]
    output: Path


@dataclass
class Crew:
    """Runs jobs; the first interrupt asks the running ones for an orderly end, the second one ends them at once.

    Children stand in sessions of their own, so that an interrupt reaches them once and from here only; their standard
    input stays open as long as this process lives.
    """

    parallel: int
    held: int | None = None
    """A file descriptor that every child inherits (a lock)."""
    codes: dict[str, int] = field(default_factory=dict)
    """Exit codes of the jobs that ended."""
    interrupts: int = 0
    _running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = field(default_factory=dict)
    _begun_at: dict[str, int] = field(default_factory=dict)
    """Bytes that earlier invocations had left in a job's output."""

    def run(self, jobs: Sequence[Job]) -> bool:
        """Run all; whether it came to the end without an interrupt."""
        waiting, told = list(jobs), time.monotonic()
        with self._interrupts():
            try:
                while self._running or (waiting and not self.interrupts):
                    while waiting and len(self._running) < self.parallel and not self.interrupts:
                        self._start(waiting.pop(0))
                    time.sleep(POLL_S)
                    self._collect()
                    if time.monotonic() - told >= REPORT_EVERY_S:
                        told = time.monotonic()
                        self._tell(len(jobs))
            finally:
                for _, child in self._running.values():
                    child.kill()
                    child.wait()
        return not self.interrupts

    def _start(self, job: Job) -> None:
        with disk_errors(job.output):
            job.output.parent.mkdir(parents=True, exist_ok=True)
            output = job.output.open("ab")
        self._begun_at[job.name] = output.tell()
        with output:
            child = subprocess.Popen(
                job.command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
                pass_fds=() if self.held is None else (self.held,),
            )  # fmt: skip
        self._running[job.name] = (job, child)
        log.info("%s: started", job.name)

    def _collect(self) -> None:
        for name, (job, child) in list(self._running.items()):
            code = child.poll()
            if code is None:
                continue
            del self._running[name]
            self.codes[name] = code
            assert child.stdin is not None
            child.stdin.close()
            if code == 0:
                log.info("%s: finished", name)
            elif not self.interrupts:
                log.warning(
                    "%s: ended with status %d, %s (%s)", name, code, last_line(job.output), job.output
                )

    def _tell(self, total: int) -> None:
        log.info("%d of %d runs ended", len(self.codes), total)
        for name, (job, _) in self._running.items():
            log.info("  %s: %s", name, self._last_line(job))

    def _last_line(self, job: Job) -> str:
        return last_line(job.output, self._begun_at[job.name])

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        def ask(_signum: int, _frame: FrameType | None) -> None:
            self.interrupts += 1
            if self.interrupts == 1:
                log.warning("interrupted: the runs write their checkpoints; once more ends them at once")
            for _, child in self._running.values():
                if self.interrupts > 1:
                    child.kill()
                elif child.poll() is None:
                    # Who starts this command in a shell's background hands down that SIGINT is ignored.
                    child.terminate()

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def last_line(path: Path, offset: int = 0) -> str:
    """The last line after byte ``offset`` that says something; of a run that failed, why."""
    text = path.read_bytes()[offset:].decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["nothing said yet"])[-1]
