"""Any environment as one that also keeps what is seen between decisions: the env steps inside a chunk."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import DecisionEnv, Landed, Observation, StepResult

Slots = NDArray[np.int64]


class FramesBetween:
    """Executes the chunks of decisions on ``env``, which is made for one action a call, and so draws every env step.

    An observation has in ``between`` what the R - 1 env steps before it showed. Where an episode ended inside its chunk the
    rest repeats its last frame; the first observation repeats itself.
    """

    def __init__(self, env: DecisionEnv, *, chunk: int, replan: int) -> None:
        assert 1 < replan <= chunk, f"replan={replan}, chunk={chunk}"
        self.env, self.spec, self.num_slots, self.overlaps = env, env.spec, env.num_slots, env.overlaps
        self.chunk, self.replan = chunk, replan
        n, between = env.num_slots, (env.num_slots, replan - 1)
        cameras = env.spec.cameras
        self._actions = np.zeros((n, chunk, env.spec.action_dim), np.float32)
        self._step = np.zeros(n, np.int64)
        self._rewards = np.zeros((n, chunk), np.float32)
        self._valid = np.zeros((n, chunk), np.bool_)
        self._success = np.zeros(n, np.bool_)
        self._between = {name: np.zeros((*between, *size, 3), np.uint8) for name, size in cameras.items()}
        self._proprio_between = np.zeros((*between, env.spec.proprio_dim), np.float32)

    def reset(self, slots: Slots, seeds: NDArray[np.int64], tasks: list[str] | None = None) -> Observation:
        """As ``DecisionEnv.reset``."""
        return self._first(self.env.reset(slots, seeds, tasks))

    def step(self, slots: Slots, actions: NDArray[np.float32]) -> StepResult:
        """As ``DecisionEnv.step``."""
        self.begin(slots, actions)
        (landed,) = self.ready(None)
        assert landed.result is not None
        return landed.result.take(np.searchsorted(landed.slots, slots))

    def begin_reset(self, slots: Slots, seeds: NDArray[np.int64], tasks: list[str] | None = None) -> None:
        """``reset`` without waiting."""
        self.env.begin_reset(slots, seeds, tasks)

    def begin(self, slots: Slots, actions: NDArray[np.float32]) -> None:
        """``step`` without waiting."""
        assert actions.shape == (len(slots), self.chunk, self.spec.action_dim), actions.shape
        self._actions[slots] = actions
        self._step[slots] = 0
        self._rewards[slots], self._valid[slots], self._success[slots] = 0.0, False, False
        self.env.begin(slots, actions[:, :1])

    def ready(self, timeout_s: float | None) -> list[Landed]:
        """As ``DecisionEnv.ready``: chunks that are over; the next action of the others has begun."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        started: list[Landed] = []
        stepped: list[Landed] = []
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            parts = self.env.ready(left)
            going = False
            for part in parts:
                if part.result is None:
                    started.append(Landed(part.slots, self._first(part.observation), None))
                    continue
                landed, again = self._note(part.slots, part.result)
                stepped += landed
                if len(again):
                    going = True
                    self.env.begin(again, self._actions[again, self._step[again]][:, None])
            # Who overlaps is waited for until the first has landed; what computes at once, or is wanted whole, to its end.
            waits = self.overlaps and deadline is not None
            if (started or stepped or left == 0.0) if waits else not going:
                break
        return [*started, *_joined(stepped)]

    def _first(self, seen: Observation) -> Observation:
        repeated = {name: np.repeat(x[:, None], self.replan - 1, 1) for name, x in seen.images.items()}
        return Observation(
            seen.images, seen.proprio, seen.instructions, seen.keys, between=repeated,
            proprio_between=np.repeat(seen.proprio[:, None], self.replan - 1, 1),
        )  # fmt: skip

    def _note(self, slots: Slots, result: StepResult) -> tuple[list[Landed], Slots]:
        """What one env step brought: slots whose chunk is over, and those that go on."""
        step, seen = self._step[slots], result.observation
        self._rewards[slots, step] = result.rewards[:, 0]
        self._valid[slots, step] = result.valid[:, 0]
        self._success[slots] |= result.success
        # From here to the end of the chunk: what comes later overwrites it, and nothing does after the episode's end.
        rest = np.arange(self.replan - 1) >= step[:, None]
        row, place = np.nonzero(rest)
        for name, frames in seen.images.items():
            self._between[name][slots[row], place] = frames[row]
        self._proprio_between[slots[row], place] = seen.proprio[row]
        over = result.terminated | result.truncated | (step == self.replan - 1)
        self._step[slots[~over]] += 1
        done = np.flatnonzero(over)
        if not len(done):
            return [], slots[~over]
        places = slots[done]
        observation = seen.take(done)
        observation.between = {name: frames[places] for name, frames in self._between.items()}
        observation.proprio_between = self._proprio_between[places]
        whole = StepResult(
            observation, self._rewards[places], self._valid[places], result.terminated[done],
            result.truncated[done], self._success[places],
        )  # fmt: skip
        return [Landed(places, observation, whole)], slots[~over]

    def tasks(self, slots: Slots) -> list[str]:
        """Task of the running episode in each slot."""
        return self.env.tasks(slots)

    def state(self) -> dict[str, Any] | None:
        """The environment's, between decisions."""
        return self.env.state()

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.env.load(state)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _joined(parts: list[Landed]) -> list[Landed]:
    """One entry, in the order of the slots."""
    if not parts:
        return []
    slots = np.concatenate([part.slots for part in parts])
    result = StepResult.joined([part.result for part in parts if part.result is not None])
    order = np.argsort(slots, kind="stable")
    result = result.take(order)
    return [Landed(slots[order], result.observation, result)]
