"""Slots that do not wait for each other: each has an environment of its own on a lane of its own.

A lane is a thread. Where Python's lock would let the lanes wait for each other after all, the thread only speaks to a
process that holds the environment (``RemoteEnv``).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import EnvError, ReverieError, RoleFailure

from .base import DecisionEnv, EnvSpec, Landed, Observation, StepResult

Slots = NDArray[np.int64]
CLOSE_S = 5.0
"""What a lane gets to end its environment; one that hangs is left behind, and ends with its process."""
_FIRST = np.zeros(1, np.int64)
"""The only slot of a lane's environment."""


@dataclass
class _Answer:
    """Of one lane: exactly one of the three last fields is set, or none after it was built."""

    slot: int
    observation: Observation | None = None
    task: str = ""
    result: StepResult | None = None
    error: Exception | None = None


class OverlappedEnv:
    """N one-slot environments that step beside each other. ``build`` is called in each lane, where its environment stays.

    Raises:
        EnvError: as ``build``.
        RoleFailure: ``build`` failed otherwise.
    """

    overlaps = True

    def __init__(
        self, build: Callable[[], DecisionEnv], spec: EnvSpec, num_slots: int, *, chunk: int
    ) -> None:
        self.spec = spec
        self.num_slots = num_slots
        self._chunk = chunk
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._under_way: set[int] = set()
        self._tasks = [""] * num_slots
        self._lanes = [_Lane(slot, build, self._answers) for slot in range(num_slots)]
        try:
            for _ in self._lanes:
                self._checked(self._answers.get())
        except ReverieError:
            self.close()
            raise

    def reset(self, slots: Slots, seeds: NDArray[np.int64], tasks: list[str] | None = None) -> Observation:
        """Start an episode in each of ``slots`` and wait for all."""
        self.begin_reset(slots, seeds, tasks)
        return self._all(slots).observation

    def step(self, slots: Slots, actions: NDArray[np.float32]) -> StepResult:
        """Execute a chunk in each of ``slots``, beside each other, and wait for all."""
        self.begin(slots, actions)
        result = self._all(slots).result
        assert result is not None
        return result

    def begin_reset(self, slots: Slots, seeds: NDArray[np.int64], tasks: list[str] | None = None) -> None:
        """Let the lanes start episodes."""
        for row, (slot, seed) in enumerate(zip(slots, seeds, strict=True)):
            one = None if tasks is None else [tasks[row]]
            self._send(int(slot), partial(_reset, seed=seed, tasks=one))

    def begin(self, slots: Slots, actions: NDArray[np.float32]) -> None:
        """Let the lanes execute chunks ``[n, K, D]``."""
        assert actions.shape == (len(slots), self._chunk, self.spec.action_dim), actions.shape
        for slot, chunk in zip(slots, actions, strict=True):
            self._send(int(slot), partial(_step, chunk=chunk))

    def _send(self, slot: int, job: Callable[[DecisionEnv], _Answer]) -> None:
        assert slot not in self._under_way, f"slot {slot} was begun twice"
        self._under_way.add(slot)
        self._lanes[slot].jobs.put(job)

    def ready(self, timeout_s: float | None) -> list[Landed]:
        """Slots that have landed: at most one entry of resets and one of steps, each in the order of the slots."""
        waits_for_all = timeout_s is None
        answers: list[_Answer] = []
        deadline = time.monotonic() + (timeout_s or 0.0)
        while self._under_way:
            try:
                if waits_for_all:
                    answer = self._answers.get()
                else:
                    left = 0.0 if answers else max(0.0, deadline - time.monotonic())
                    answer = self._answers.get(block=left > 0, timeout=left or None)
            except queue.Empty:
                break
            answers.append(self._checked(answer))
            self._under_way.discard(answer.slot)
        return self._landed(sorted(answers, key=lambda answer: answer.slot))

    def _landed(self, answers: list[_Answer]) -> list[Landed]:
        started = [answer for answer in answers if answer.result is None]
        stepped = [answer.result for answer in answers if answer.result is not None]
        landed = []
        for answer in started:
            self._tasks[answer.slot] = answer.task
        if started:
            seen = [answer.observation for answer in started if answer.observation is not None]
            landed.append(Landed(_slots(started), Observation.joined(seen), None))
        if stepped:
            result = StepResult.joined(stepped)
            rows = [answer for answer in answers if answer.result is not None]
            landed.append(Landed(_slots(rows), result.observation, result))
        return landed

    def _all(self, slots: Slots) -> Landed:
        """What was begun in ``slots``, in their order."""
        (landed,) = self.ready(None)
        order = np.searchsorted(landed.slots, slots)
        result = landed.result
        taken = None if result is None else result.take(order)
        return Landed(slots, landed.observation.take(order), taken)

    def _checked(self, answer: _Answer) -> _Answer:
        if answer.error is None:
            return answer
        if isinstance(answer.error, ReverieError):
            raise answer.error
        what = f"{self.spec.name} failed in slot {answer.slot}: {type(answer.error).__name__}: {answer.error}"
        raise RoleFailure(what, where="env", remedy="repair the environment") from answer.error

    def tasks(self, slots: Slots) -> list[str]:
        """Task of the running episode in each slot."""
        return [self._tasks[slot] for slot in slots]

    def state(self) -> dict[str, Any] | None:
        """None: slots stand at different points of their steps."""
        return None

    def load(self, state: dict[str, Any]) -> None:
        """Never possible; EnvError."""
        raise EnvError(
            f"cannot restore {len(state)} values", where=self.spec.name, remedy="restart the episodes"
        )

    def close(self) -> None:
        """End every lane after the step that it is in."""
        for lane in self._lanes:
            lane.jobs.put(None)
        deadline = time.monotonic() + CLOSE_S
        for lane in self._lanes:
            lane.thread.join(max(0.0, deadline - time.monotonic()))


class _Lane:
    """A thread with an inbox of jobs; ``None`` ends it. Its environment is built, used and closed in the thread."""

    def __init__(
        self, slot: int, build: Callable[[], DecisionEnv], answers: queue.SimpleQueue[_Answer]
    ) -> None:
        self._slot, self._build, self._answers = slot, build, answers
        self.jobs: queue.SimpleQueue[Callable[[DecisionEnv], _Answer] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=f"env slot {slot}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            env = self._build()
        except Exception as error:  # noqa: BLE001  whoever asks for the answer raises it
            self._answers.put(_Answer(self._slot, error=error))
            return
        self._answers.put(_Answer(self._slot))
        while (job := self.jobs.get()) is not None:
            self._answers.put(self._done(env, job))
        env.close()

    def _done(self, env: DecisionEnv, job: Callable[[DecisionEnv], _Answer]) -> _Answer:
        try:
            answer = job(env)
        except Exception as error:  # noqa: BLE001  whoever asks for the answer raises it
            return _Answer(self._slot, error=error)
        answer.slot = self._slot
        return answer


def _reset(env: DecisionEnv, seed: np.int64, tasks: list[str] | None) -> _Answer:
    observation = env.reset(_FIRST, np.array([seed], np.int64), tasks)
    return _Answer(0, observation=observation, task=env.tasks(_FIRST)[0])


def _step(env: DecisionEnv, chunk: NDArray[np.float32]) -> _Answer:
    return _Answer(0, result=env.step(_FIRST, chunk[None]))


def _slots(answers: list[_Answer]) -> Slots:
    return np.array([answer.slot for answer in answers], np.int64)
