"""Processes that run trials. One that dies or hangs takes its trial with it, as an error of the environment, and is replaced."""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from configs.errors import ReverieError, RoleFailure

from .trials import Bench, Outcome, Trial, TrialRunner

END_S = 5.0
"""What a worker gets to close its environment before it is killed."""


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    trial: Trial | None = None
    since: float = 0.0


class TrialPool:
    """Gives trials to ``workers`` processes and yields outcomes as they come.

    Raises:
        ReverieError: what a worker could not begin with: a policy that does not fit, a missing package.
        RoleFailure: a worker failed outside of its environment; its traceback is on stderr.
    """

    def __init__(self, bench: Bench, workers: int) -> None:
        self._bench, self._count = bench, workers
        self._limit_s = bench.config.evaluation.trial_s
        # A fork would take over locks that this process's threads hold.
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
        """Every trial once, in whatever order they end."""
        waiting = deque(trials)
        self._workers = [self._started() for _ in range(min(self._count, len(waiting)))]
        try:
            for worker in self._workers:
                self._give(worker, waiting)
            while any(worker.trial for worker in self._workers):
                yield from self._round(waiting)
        finally:
            self._end()

    def _round(self, waiting: deque[Trial]) -> Iterator[tuple[Trial, Outcome]]:
        busy = [worker for worker in self._workers if worker.trial]
        heard = set(wait([worker.pipe for worker in busy], timeout=1.0))
        for worker in busy:
            trial = worker.trial
            assert trial is not None
            if worker.pipe in heard:
                outcome = self._answer(worker)
            elif time.monotonic() - worker.since > self._limit_s:
                outcome = Outcome("error", error=f"no end after {self._limit_s:g} s", wall_s=self._limit_s)
                self._replace(worker)
            else:
                continue
            worker.trial = None
            yield trial, outcome
            self._give(worker, waiting)

    def _answer(self, worker: _Worker) -> Outcome:
        try:
            outcome, error = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join(END_S)
            code = worker.process.exitcode
            self._replace(worker)
            return Outcome("error", error=f"the process died with exit code {code}")
        if error is None:
            assert isinstance(outcome, Outcome)
            return outcome
        if isinstance(error, ReverieError):
            raise error
        raise RoleFailure(
            f"an evaluation worker failed: {error}", where="evaluation", remedy="see its traceback above"
        )

    def _give(self, worker: _Worker, waiting: deque[Trial]) -> None:
        if waiting:
            worker.trial, worker.since = waiting.popleft(), time.monotonic()
            # A worker that is dead already is found so when its answer is waited for.
            with suppress(BrokenPipeError):
                worker.pipe.send(worker.trial)

    def _started(self) -> _Worker:
        pipe, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._bench), daemon=True, name="trials")
        process.start()
        theirs.close()
        return _Worker(process, pipe)

    def _replace(self, worker: _Worker) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        fresh = self._started()
        worker.process, worker.pipe = fresh.process, fresh.pipe

    def _end(self) -> None:
        for worker in self._workers:
            if worker.trial is None:
                with suppress(BrokenPipeError, OSError):
                    worker.pipe.send(None)
        for worker in self._workers:
            worker.process.join(END_S if worker.trial is None else 0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers = []


def _serve(pipe: Connection, bench: Bench) -> None:
    """Answer trials with outcomes until there are none; each answer is (outcome, error)."""
    # An interrupt of the terminal reaches this process too; the other one decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A closed pipe means that the process that asked is gone.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            import torch

            torch.set_num_threads(1)
            runner = TrialRunner(bench)
            with closing(runner):
                while (trial := pipe.recv()) is not None:
                    pipe.send((runner.run(trial), None))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # noqa: BLE001  told to the process that asked
            if not isinstance(error, ReverieError):
                traceback.print_exc()
            pipe.send(
                (None, error if isinstance(error, ReverieError) else f"{type(error).__name__}: {error}")
            )
