"""The rollout role: steps real environments with the inference service's decisions and fills ``B_real``."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from buffers.samples import Admission, Admitted

from .context import Context
from .episode import EpisodeBuilder
from .inference import Decisions, InferenceClient
from .metrics import Averages
from .role import State
from .services import Collecting
from .weights import Board

if TYPE_CHECKING:
    from .envs.base import DecisionEnv, Observation, StepResult

# Training episodes draw their seeds far above those of demonstrations (0…) and held-out evaluation (1,000,000…).
FIRST_TRAINING_SEED = 10_000_000


class Rollout:
    """One worker with ``num_slots`` environment slots. Each ``step`` either asks for decisions or executes them.

    ``admission`` says what may be started, ``admission_alone`` the same while imagination is shut; ``max_steps`` are the
    real steps after which no episode is started.
    """

    def __init__(
        self,
        context: Context,
        env: DecisionEnv,
        buffer: Collecting,
        inference: InferenceClient,
        board: Board,
        *,
        index: int,
        admission: Admission,
        admission_alone: Admission,
        gamma: float,
        max_steps: int | None,
        segment: int | None = None,
    ) -> None:
        self.name = f"rollout_{index}"
        self._context = context
        self._env = env
        self._buffer = buffer
        self._inference = inference
        self._board = board
        self._admission = {True: admission, False: admission_alone}
        self._gamma = gamma
        self._max_steps = max_steps
        self._segment = segment
        self._episodes: dict[int, EpisodeBuilder] = {}
        self._observation: Observation | None = None
        self._slots: NDArray[np.int64] = np.zeros(0, np.int64)
        self._ticket: object | None = None
        self.real_steps = 0
        self._averages = Averages()
        self._outcomes: list[tuple[bool, float, int]] = []
        self._waiting_since = 0.0

    def step(self) -> bool:
        """Execute decisions that have arrived, or start episodes and ask for the next decisions."""
        if self._ticket is not None:
            decisions = self._inference.poll(self._ticket)
            if decisions is None:
                return False
            self._ticket = None
            self._averages.add({"time/rollout/waited_s": time.monotonic() - self._waiting_since})
            self._execute(decisions)
            return True
        started = self._start_episodes()
        if not self._slots.size:
            return started
        assert self._observation is not None
        keys = np.array([self._episodes[int(slot)].key for slot in self._slots], np.int64)
        self._ticket = self._inference.submit(replace(self._observation, keys=keys))
        self._waiting_since = time.monotonic()
        return True

    def _start_episodes(self) -> bool:
        cut = [slot for slot, builder in self._episodes.items() if builder.sample_id < 0]
        idle = [slot for slot in range(self._env.num_slots) if slot not in self._episodes]
        if self._max_steps is not None and self.real_steps >= self._max_steps:
            idle = []
        if not idle and not cut:
            return False
        admission = self._admission[bool(self._board.read().get("imagination/open", True))]
        samples = self._buffer.admit(len(cut) + len(idle), admission)
        for slot, sample in zip(cut, samples, strict=False):
            self._join(np.array([slot]), self._episodes[slot].go_on(sample))
        fresh = samples[len(cut) :]
        if fresh:
            self._reset(idle[: len(fresh)], fresh)
        return bool(samples)

    def _reset(self, idle: list[int], samples: list[Admitted]) -> None:
        slots = np.array(idle, np.int64)
        # Episodes of a group have the same start, so the group's number seeds them.
        seeds = np.array([self._episode_seed(s.group) for s in samples], np.int64)
        began = time.monotonic()
        first = self._env.reset(slots, seeds)
        self._averages.add({"time/env/reset_s": time.monotonic() - began})
        for row, (slot, sample, task) in enumerate(zip(slots, samples, self._env.tasks(slots), strict=True)):
            builder = EpisodeBuilder(
                sample.sample_id, int(seeds[row]), task, first.instructions[row], attempt=sample.attempt
            )
            builder.see(first, row)
            self._episodes[int(slot)] = builder
        self._join(slots, first)

    def _episode_seed(self, group: int) -> int:
        return FIRST_TRAINING_SEED * (1 + self._context.seed) + group

    def _join(self, slots: NDArray[np.int64], first: Observation) -> None:
        from .inference import concatenate

        running = self._slots.size > 0 and self._observation is not None
        self._observation = (
            concatenate([self._observation, first]) if running and self._observation else first
        )
        self._slots = np.concatenate([self._slots, slots]) if running else slots

    def _execute(self, decisions: Decisions) -> None:
        actions = self._context.tokenizer.decode(decisions.tokens)
        began = time.monotonic()
        result = self._env.step(self._slots, actions)
        self._averages.add({"time/env/step_s": time.monotonic() - began})
        self.real_steps += int(result.valid.sum())
        rewards = result.chunk_rewards(self._gamma)
        for row, slot in enumerate(self._slots):
            builder = self._episodes[int(slot)]
            builder.decide(decisions, row, result.valid[row], float(rewards[row]))
            builder.see(result.observation, row)
        self._finish(result)

    def _finish(self, result: StepResult) -> None:
        ended = result.terminated | result.truncated
        for row in np.flatnonzero(ended):
            builder = self._episodes.pop(int(self._slots[row]))
            record = builder.finish(
                terminated=bool(result.terminated[row]),
                truncated=bool(result.truncated[row]),
                success=bool(result.success[row]),
            )
            self._buffer.append(record, sample_id=builder.sample_id)
            returned = builder.past_return + float(record.rewards.sum())
            self._outcomes.append((record.success, returned, builder.past_steps + record.env_steps))
        going = np.array(
            [row for row in np.flatnonzero(~ended) if not self._cut(int(self._slots[row]))], np.int64
        )
        self._slots = self._slots[going]
        self._observation = result.observation.take(going)
        self._board.put({f"real_steps/{self.name}": self.real_steps})

    def _cut(self, slot: int) -> bool:
        """Whether the episode was long enough to be cut; then it waits for a sample to go on in."""
        builder = self._episodes[slot]
        if self._segment is None or len(builder.tokens) < self._segment:
            return False
        sample_id = builder.sample_id
        self._buffer.append(builder.cut(), sample_id=sample_id)
        return True

    def state(self) -> State:
        """Episodes under way and the environment, when it can say; else they are started again (attempt + 1)."""
        env_state = self._env.state()
        # A ticket that is a reference into a running cluster dies with it: the request is then made again.
        ticket = self._ticket if isinstance(self._ticket, int) else None
        shared: State = {"real_steps": self.real_steps, "ticket": ticket}
        if env_state is None or self._observation is None:
            return {
                **shared,
                "env": None,
                "running": [b.sample_id for b in self._episodes.values() if b.sample_id >= 0],
            }
        return {
            **shared,
            "env": env_state,
            "slots": self._slots,
            "episodes": {str(slot): builder.state() for slot, builder in self._episodes.items()},
            "images": dict(self._observation.images),
            "proprio": self._observation.proprio,
            "instructions": list(self._observation.instructions),
        }

    def load(self, state: State) -> None:
        """Continue from ``state``."""
        from .envs.base import Observation

        self.real_steps = state["real_steps"]
        if state["env"] is None:
            self._buffer.reissue(state["running"])
            return
        self._env.load(state["env"])
        self._slots = state["slots"]
        self._episodes = {int(slot): EpisodeBuilder(**fields) for slot, fields in state["episodes"].items()}
        self._observation = Observation(state["images"], state["proprio"], state["instructions"])
        self._ticket = state["ticket"]

    def metrics(self) -> dict[str, float]:
        """Times, and the outcomes of the episodes that ended."""
        row = self._averages.take()
        if self._outcomes:
            success, returns, lengths = zip(*self._outcomes, strict=True)
            row["env/success_once"] = float(np.mean(success))
            row["env/return"] = float(np.mean(returns))
            row["env/length"] = float(np.mean(lengths))
            row["env/episodes"] = float(len(success))
            self._outcomes.clear()
        return row

    def close(self) -> None:
        """Close the environments."""
        self._env.close()
