"""An environment in a process of its own, behind the same contract."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import ReverieError, RoleFailure

from .base import DecisionEnv, EnvSpec, Immediate, Observation, StepResult

END_S = 3.0
"""What the process gets to end by itself before it is killed."""


class RemoteEnv(Immediate):
    """Speaks to a process that holds what ``build`` made; ``build`` must be picklable.

    The process ends with ``close``, and by itself when this one is gone: its end of the pipe then closes.

    Raises:
        EnvError: as ``build``.
        RoleFailure: ``build`` failed otherwise, or the process died.
    """

    def __init__(self, build: Callable[[], DecisionEnv], spec: EnvSpec, num_slots: int) -> None:
        super().__init__()
        self.spec = spec
        self.num_slots = num_slots
        # A fork would take over locks that this process's other threads hold.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build), daemon=True, name=spec.name)
        self._process.start()
        theirs.close()
        self._answer()

    def reset(
        self, slots: NDArray[np.int64], seeds: NDArray[np.int64], tasks: list[str] | None = None
    ) -> Observation:
        """Start an episode in each of ``slots``."""
        observation: Observation = self._call("reset", slots, seeds, tasks)
        return observation

    def step(self, slots: NDArray[np.int64], actions: NDArray[np.float32]) -> StepResult:
        """Execute a chunk in each of ``slots``."""
        result: StepResult = self._call("step", slots, actions)
        return result

    def tasks(self, slots: NDArray[np.int64]) -> list[str]:
        """Task of the running episode in each slot."""
        names: list[str] = self._call("tasks", slots)
        return names

    def state(self) -> dict[str, Any] | None:
        """The environment's."""
        state: dict[str, Any] | None = self._call("state")
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Into the environment."""
        self._call("load", state)

    def close(self) -> None:
        """Close the environment and end its process."""
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((method, arguments))
        except BrokenPipeError as error:
            raise self._died() from error
        return self._answer()

    def _answer(self) -> Any:
        try:
            answer, error = self._pipe.recv()
        except EOFError as gone:
            raise self._died() from gone
        if isinstance(error, ReverieError):
            raise error
        if error is not None:
            raise RoleFailure(
                f"{self.spec.name} failed: {error}", where="env", remedy="repair the environment"
            )
        return answer

    def _died(self) -> RoleFailure:
        self._process.join(END_S)
        return RoleFailure(
            f"the process of {self.spec.name} died with exit code {self._process.exitcode}",
            where="env",
            remedy="see its own output; was it short of memory?",
        )


def _serve(pipe: Connection, build: Callable[[], DecisionEnv]) -> None:
    """Answer calls until the other side closes; each answer is (value, error)."""
    # An interrupt of the terminal reaches this process too; the other one decides how a run ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        env = build()
    except Exception as error:  # noqa: BLE001  told to the process that asked
        pipe.send((None, _told(error)))
        return
    pipe.send((None, None))
    # A closed pipe means that the process that asked is gone: a reason to end, and nobody to tell.
    with closing(env), suppress(EOFError, BrokenPipeError):
        while (call := pipe.recv()) is not None:
            pipe.send(_answered(env, *call))


def _answered(env: DecisionEnv, method: str, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    try:
        return getattr(env, method)(*arguments), None
    except Exception as error:  # noqa: BLE001  told to the process that asked
        traceback.print_exc()
        return None, _told(error)


def _told(error: Exception) -> ReverieError | str:
    """An exception of a foreign package may not be there, or not be picklable, on the other side."""
    return error if isinstance(error, ReverieError) else f"{type(error).__name__}: {error}"
