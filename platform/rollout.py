"""The rollout role: steps real environments with the inference service's decisions and fills ``B_real``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from buffers.replay import Collecting
from buffers.samples import Admission, Admitted
from configs.errors import StallError

from .context import Context
from .episode import EpisodeBuilder
from .inference import InferenceClient, concatenate
from .metrics import Averages
from .role import State
from .slots import Occupancy, Request, Slots, Start, Stepping
from .step_count import StepCount
from .weights import Board

if TYPE_CHECKING:
    from .balance import Balancer
    from .envs.base import DecisionEnv, Landed, StepResult
    from .task_sampling import TaskSampler

# Training episodes draw their seeds far above those of demonstrations (0…) and held-out evaluation (1,000,000…).
FIRST_TRAINING_SEED = 10_000_000
MOST_REQUESTS = 2
"""Requests of one worker under way: one is computed while the next one fills."""
LOOK_S = 0.02
"""How long one look waits for the only thing that can come."""
GLANCE_S = 0.002
"""The same where both an answer and an environment may come."""
PATIENCE_S = 0.5
"""How long one step waits while environments work; then the host has a look at the worker."""
REFUSED_S = 0.005
"""Pause after a refused admission: every look costs two calls, and slots land all the time."""
TELL_S = 0.1
"""Pause between two tellings of the real steps, for the same reason."""


class Rollout:
    """One worker with ``num_slots`` environment slots. Each ``step`` moves every slot on that can move.

    A slot without an episode starts one; one that has seen something asks for a decision; one that was answered executes
    it. Where the environment overlaps, no slot waits for another one: what has landed is asked for at once. ``exact``
    gives that up for a fixed order, in which every slot waits for all.

    ``admission`` says what may be started after so many turns of the policy learner, ``admission_alone`` the same while
    imagination is shut; ``max_steps`` are the real steps after which no episode is started; ``segment`` is after how many
    decisions an episode is cut (None: never); ``stall_s`` is the longest that a slot may be inside its environment;
    ``sampler`` chooses the tasks (None: the seeds do); ``balancer`` says how many slots may be used (None: all).
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
        admission: Callable[[int], Admission],
        admission_alone: Admission,
        gamma: float,
        max_steps: int | None,
        segment: int | None,
        exact: bool,
        stall_s: float,
        sampler: TaskSampler | None,
        balancer: Balancer | None,
    ) -> None:
        self.name = f"rollout_{index}"
        self._context = context
        self._env = env
        self._buffer = buffer
        self._inference = inference
        self._board = board
        self._admission, self._admission_alone = admission, admission_alone
        self._gamma = gamma
        self._max_steps = max_steps
        self._segment = segment
        self._exact = exact
        self._waits = exact or not env.overlaps
        self._stall_s = stall_s
        self._sampler = sampler
        self._balancer = balancer
        self._allotted = env.num_slots if balancer is None else balancer.allotted({})
        self._starting: dict[int, Start] = {}
        self._episodes: dict[int, EpisodeBuilder] = {}
        self._requests: list[Request] = []
        self._stepping: dict[int, Stepping] = {}
        self._steps = StepCount(ahead=env.num_slots * context.record_spec.replan)
        self._told_steps = 0
        self._told_at = 0.0
        self._refused_at = 0.0
        self._occupancy = Occupancy()
        self._in_env = Occupancy()
        self._averages = Averages()
        self._outcomes: list[tuple[bool, float, int]] = []

    def step(self) -> bool:
        """Move every slot that can move; while environments work, wait a while for the first to land."""
        give_up = time.monotonic() + PATIENCE_S
        while not (moved := self._move()) and self._working and time.monotonic() < give_up:
            pass
        self._check_stall()
        return moved

    def _check_stall(self) -> None:
        """The other slots would go on without one that hangs, and nobody would know."""
        under_way = {slot: start.began for slot, start in self._starting.items()}
        under_way |= {slot: stepping.began for slot, stepping in self._stepping.items()}
        for slot, began in under_way.items():
            seconds = time.monotonic() - began
            if seconds > self._stall_s:
                raise StallError(
                    f"{self._env.spec.name} has been inside slot {slot} for {seconds:.0f} s",
                    where=self.name,
                    remedy="look at the simulator or robot, or raise run.stall_s",
                )

    @property
    def _working(self) -> bool:
        return bool(self._stepping or self._starting)

    def _move(self) -> bool:
        moved = self._execute_answers()
        moved |= self._land(0.0 if moved else LOOK_S)
        if self._start_episodes():
            moved = True
            self._land(0.0)
        self._note()
        return self._ask() or moved

    def _note(self) -> None:
        """How many slots have an episode, and how many are inside their environment, from now on."""
        now, slots = time.monotonic(), max(1, self._allotted)
        self._occupancy.note(now, min(slots, len(self._episodes) + len(self._starting)), slots)
        self._in_env.note(now, min(slots, len(self._stepping) + len(self._starting)), slots)
        if self._balancer is not None and self._balancer.due(now):
            share = self._in_env.take(now)
            if share is not None:
                self._balancer.tell(now, share)

    def _execute_answers(self) -> bool:
        """Let the slots whose decisions have arrived execute them."""
        waiting = []
        for request in self._requests:
            decisions = self._inference.poll(request.ticket, timeout_s=0.0 if self._working else LOOK_S)
            if decisions is None:
                waiting.append(request)
                continue
            now = time.monotonic()
            self._averages.add({"time/rollout/waited_s": now - request.asked})
            rows = self._going_on(request.slots, decisions.version)
            slots = request.slots[rows]
            for row, slot in zip(rows, slots, strict=True):
                self._stepping[int(slot)] = Stepping(decisions, int(row), now)
            self._note()
            self._reserve()
            if len(slots):
                self._env.begin(slots, self._context.tokenizer.decode(decisions.tokens[rows]))
        moved = len(waiting) < len(self._requests)
        self._requests = waiting
        return moved

    def _going_on(self, slots: Slots, version: int) -> NDArray[np.int64]:
        """Rows of ``slots`` whose episodes ``version`` may decide in.

        Where episodes end under the version that they began with, a replica that died and came back may only have newer
        weights: the others are then given back, to be started again.
        """
        if not self._admission_alone.drain:
            return np.arange(len(slots))
        made = [self._episodes[int(slot)].version for slot in slots]
        stays = np.array([not versions or versions[-1] == version for versions in made], np.bool_)
        lost = [self._episodes.pop(int(slot)).sample_id for slot in slots[~stays]]
        if lost:
            self._buffer.reissue(lost)
        return np.flatnonzero(stays)

    def _reserve(self) -> None:
        """Whoever takes over from this worker must know of the steps that begin now."""
        if self._steps.reserve(len(self._stepping) * self._context.record_spec.replan):
            state = {**self._shared_state(), "steps": self._steps.inherited(), "env": None}
            self._board.keep(self.name, state, {})

    def _land(self, look_s: float) -> bool:
        """Take what has landed, after at most ``look_s`` of waiting where nothing else could come meanwhile."""
        if not self._working:
            return False
        timeout = min(look_s, GLANCE_S) if self._requests else look_s
        landed = self._env.ready(None if self._waits else timeout)
        for part in landed:
            if part.result is None:
                self._open(part)
            else:
                self._record(part.slots, part.result)
        return bool(landed)

    def wait_for_work(self, timeout_s: float) -> None:
        """Until decisions may have arrived, or the time is over."""
        if self._requests:
            self._inference.wait(self._requests[0].ticket, timeout_s)
        else:
            time.sleep(timeout_s)

    def _start_episodes(self) -> bool:
        cut = [builder for builder in self._episodes.values() if builder.is_cut]
        idle = [s for s in range(self._env.num_slots) if s not in self._episodes and s not in self._starting]
        if self._max_steps is not None and self.real_steps >= self._max_steps:
            idle = []
        if not idle and not cut:
            return False
        if not self._waits and time.monotonic() < self._refused_at + REFUSED_S:
            return False
        facts = self._board.read()
        if self._balancer is not None:
            self._allotted = self._balancer.allotted(facts)
        taken = len(self._episodes) + len(self._starting)
        idle = idle[: max(0, self._allotted - taken)]
        admission = self._admission_alone
        if facts.get("imagination/open", True):
            admission = self._admission(int(facts.get("policy/turns", 0)))
        wanted = len(cut) + len(idle)
        samples = self._buffer.admit(wanted, admission, self.name) if wanted else []
        if not samples:
            self._refused_at = time.monotonic()
            return False
        for builder, sample in zip(cut, samples, strict=False):
            builder.go_on(sample)
        fresh = samples[len(cut) :]
        if fresh:
            self._reset(idle[: len(fresh)], fresh)
        return True

    def _reset(self, idle: list[int], samples: list[Admitted]) -> None:
        slots = np.array(idle, np.int64)
        # Episodes of a group have the same start, so the group's number seeds them.
        seeds = np.array([self._episode_seed(s.group) for s in samples], np.int64)
        tasks = None if self._sampler is None else self._sampler.choose(seeds)
        began = time.monotonic()
        for slot, sample, seed in zip(slots, samples, seeds, strict=True):
            self._starting[int(slot)] = Start(sample, int(seed), began)
        self._note()
        self._env.begin_reset(slots, seeds, tasks)

    def _episode_seed(self, group: int) -> int:
        return FIRST_TRAINING_SEED * (1 + self._context.seed) + group

    def _open(self, landed: Landed) -> None:
        """The first observations of new episodes."""
        for row, (slot, task) in enumerate(zip(landed.slots, self._env.tasks(landed.slots), strict=True)):
            start = self._starting.pop(int(slot))
            builder = EpisodeBuilder(
                start.sample.sample_id, start.seed, task, landed.observation.instructions[row],
                attempt=start.sample.attempt,
            )  # fmt: skip
            builder.see(landed.observation, row)
            self._episodes[int(slot)] = builder
            self._averages.add({"time/env/reset_s": time.monotonic() - start.began})

    def _ask(self) -> bool:
        """One request for every slot that waits for a decision.

        What lands while the most requests are out goes into the next one together: a request costs the service and the
        way there the same for one slot as for many.
        """
        if len(self._requests) >= (1 if self._waits else MOST_REQUESTS):
            return False
        busy = set(self._stepping).union(*(request.slots.tolist() for request in self._requests))
        seen = {slot for slot, builder in self._episodes.items() if not builder.is_cut}
        slots = sorted(seen - busy)
        if not slots:
            return False
        observation = concatenate([self._episodes[slot].latest() for slot in slots])
        ticket = self._inference.submit(observation)
        self._requests.append(Request(ticket, np.array(slots, np.int64), time.monotonic()))
        return True

    def _record(self, slots: Slots, result: StepResult) -> None:
        """What was decided in ``slots``, and what came of it."""
        now = time.monotonic()
        self._steps.taken += int(result.valid.sum())
        rewards = result.chunk_rewards(self._gamma)
        for row, slot in enumerate(slots):
            builder, stepped = self._episodes[int(slot)], self._stepping.pop(int(slot))
            builder.decide(stepped.decisions, stepped.row, result.valid[row], float(rewards[row]))
            builder.see(result.observation, row)
            self._averages.add({"time/env/step_s": now - stepped.began})
        self._finish(slots, result)

    def _finish(self, slots: Slots, result: StepResult) -> None:
        for row in np.flatnonzero(result.terminated | result.truncated):
            builder = self._episodes.pop(int(slots[row]))
            record = builder.finish(
                terminated=bool(result.terminated[row]),
                truncated=bool(result.truncated[row]),
                success=bool(result.success[row]),
            )
            self._buffer.append(record, sample_id=builder.sample_id)
            if self._sampler is not None:
                self._sampler.record(record.task, success=record.success)
            returned = builder.past_return + float(record.rewards.sum())
            self._outcomes.append((record.success, returned, builder.past_steps + record.env_steps))
        for row in np.flatnonzero(~(result.terminated | result.truncated)):
            self._cut(self._episodes[int(slots[row])])
        if self._waits or time.monotonic() >= self._told_at + TELL_S:
            self._tell_steps()

    def _cut(self, builder: EpisodeBuilder) -> None:
        """An episode that was long enough is cut; then it waits for a sample to go on in."""
        if self._segment is not None and len(builder.tokens) >= self._segment:
            sample_id = builder.sample_id
            self._buffer.append(builder.cut(), sample_id=sample_id)

    @property
    def real_steps(self) -> int:
        """Env steps taken."""
        return self._steps.taken

    def _tell_steps(self) -> None:
        if self.real_steps != self._told_steps:
            self._board.put({f"real_steps/{self.name}": self.real_steps})
            self._told_steps, self._told_at = self.real_steps, time.monotonic()

    def state(self) -> State:
        """Episodes under way and the environment, when it can say; else they are started again (attempt + 1)."""
        self._tell_steps()
        env_state = self._env.state()
        if env_state is None:
            return {**self._shared_state(), "env": None}
        # A ticket that is a reference into a running cluster dies with it: the request is then made again.
        requests = [
            {"ticket": request.ticket, "slots": request.slots}
            for request in self._requests
            if isinstance(request.ticket, int)
        ]
        return {
            **self._shared_state(),
            "env": env_state,
            "episodes": {str(slot): builder.state() for slot, builder in self._episodes.items()},
            "requests": requests,
        }

    def _shared_state(self) -> State:
        return {
            "steps": self._steps.state(),
            "outcomes": None if self._sampler is None else self._sampler.state(),
        }

    def load(self, state: State) -> None:
        """Continue from ``state``. What was asked on the serial host is asked anew on another."""
        self._steps.load(state["steps"])
        if self._sampler is not None and state["outcomes"] is not None:
            self._sampler.load(state["outcomes"])
        if state["env"] is None:
            self._buffer.reissue_of(self.name)
            return
        self._env.load(state["env"])
        self._episodes = {int(slot): EpisodeBuilder(**fields) for slot, fields in state["episodes"].items()}
        if self._exact:
            now = time.monotonic()
            self._requests = [Request(held["ticket"], held["slots"], now) for held in state["requests"]]

    def metrics(self) -> dict[str, float]:
        """Times, how full the slots were, and the outcomes of the episodes that ended."""
        row = self._averages.take()
        share = self._occupancy.take(time.monotonic())
        if share is not None:
            row["rollout/slots_busy"] = share
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
