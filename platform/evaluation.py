"""Success in the real environment, apart from training, and the outcome agreement of the models."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from buffers.replay import Modelling
from configs.system import EvaluationConfig

from .context import BEST, POLICY, Context
from .learners import policy_waits_for_models
from .metrics import Averages, SuccessRate
from .model_watch import ModelWatch
from .role import State
from .weights import Board, Published, Weights, load_arrays

if TYPE_CHECKING:
    from policies.base import Policy

    from .envs.base import DecisionEnv, Observation


@dataclass(frozen=True)
class Evaluation:
    """Trials in the real environment; trial k starts from seed ``first_seed + k``."""

    success: NDArray[np.bool_]
    """``[trials]``"""
    env_steps: NDArray[np.int64]
    """``[trials]``"""

    @property
    def rate(self) -> SuccessRate:
        """With its interval."""
        return SuccessRate.of(int(self.success.sum()), len(self.success))


def evaluate_policy(
    context: Context, env: DecisionEnv, policy: Policy, *, trials: int, first_seed: int, greedy: bool
) -> Evaluation:
    """Run each trial once, many at a time. An environment error propagates: it is no failure of the policy."""
    import torch

    generator = torch.Generator().manual_seed(first_seed)
    success = np.zeros(trials, np.bool_)
    steps = np.zeros(trials, np.int64)
    begun = 0
    trial_of: dict[int, int] = {}
    seen: dict[int, Observation] = {}
    while begun < trials or trial_of:
        idle = [slot for slot in range(env.num_slots) if slot not in trial_of][: trials - begun]
        if idle:
            slots = np.array(idle, np.int64)
            numbers = np.arange(begun, begun + len(idle))
            _remember(seen, slots, env.reset(slots, first_seed + numbers))
            trial_of.update(zip(idle, numbers.tolist(), strict=True))
            begun += len(idle)
        slots = np.array(sorted(trial_of), np.int64)
        observation = _below([seen[int(slot)] for slot in slots])
        with torch.inference_mode():
            tokens = policy.act(context.tensors(observation), greedy=greedy, generator=generator).tokens
        result = env.step(slots, context.tokenizer.decode(tokens.cpu().numpy()))
        _remember(seen, slots, result.observation)
        numbers = np.array([trial_of[int(slot)] for slot in slots])
        success[numbers] |= result.success
        steps[numbers] += result.valid.sum(axis=1)
        for slot in slots[result.terminated | result.truncated]:
            del trial_of[int(slot)], seen[int(slot)]
    return Evaluation(success, steps)


def _remember(seen: dict[int, Observation], slots: NDArray[np.int64], observation: Observation) -> None:
    for row, slot in enumerate(slots):
        seen[int(slot)] = observation.take(np.array([row]))


def _below(observations: Sequence[Observation]) -> Observation:
    from .inference import concatenate

    return concatenate(list(observations))


class Evaluator:
    """A role with a queue of jobs; one job per ``step``. Its env steps are no training data and are counted apart."""

    def __init__(
        self,
        context: Context,
        config: EvaluationConfig,
        env: DecisionEnv,
        real: Modelling,
        weights: Weights,
        board: Board,
        *,
        quality_horizon: int,
    ) -> None:
        self.name = "evaluator"
        self._context, self._config, self._env = context, config, env
        self._real, self._weights, self._board = real, weights, board
        self._policy = context.make_policy().eval()
        self._watch = ModelWatch(context, real, weights, horizon=quality_horizon) if quality_horizon else None
        self._jobs: deque[str] = deque()
        self._next_policy = config.every
        self._next_quality = 0
        self._models_seen = 0
        self._best = -1.0
        self._averages = Averages()
        self._run = {"success": self._success, "quality": self._quality}

    def step(self) -> bool:
        """Run the next job, if one is due."""
        board = self._board.read()
        self._plan(board)
        if not self._jobs:
            return False
        job = self._jobs.popleft()
        began = time.monotonic()
        self._run[job](board)
        self._board.keep(self.name, self.state(), {})
        self._averages.add({f"time/evaluate/{job}_s": time.monotonic() - began})
        return True

    def _plan(self, board: dict[str, Any]) -> None:
        config = self._config
        version, models = int(board.get("policy/version", 0)), int(board.get("obs_model/version", 0))
        due = version >= self._next_quality
        if policy_waits_for_models(board):
            due = due or models >= self._models_seen + config.quality_every
        if (
            due
            and self._watch is not None
            and config.quality_every
            and self._real.stats()["held_out_decisions"]
        ):
            self._jobs.append("quality")
            self._next_quality, self._models_seen = version + config.quality_every, models
        if config.every and version >= self._next_policy:
            self._jobs.append("success")
            self._next_policy = version + config.every

    def _success(self, board: dict[str, Any]) -> None:
        published = self._weights.fetch(POLICY, -1)
        assert published is not None
        load_arrays(self._policy, published.arrays)
        steps = sum(value for key, value in board.items() if key.startswith("real_steps/"))
        facts: dict[str, Any] = {"evaluation/version": published.version, "evaluation/real_steps": steps}
        for name in ("greedy", "sampled"):
            result = evaluate_policy(
                self._context, self._env, self._policy, trials=self._config.online_trials,
                first_seed=self._config.online_seed, greedy=name == "greedy",
            )  # fmt: skip
            facts[f"evaluation/{name}"] = result.rate.to_json()
        self._board.put(facts)
        self._keep_best(published, facts)

    def _keep_best(self, published: Published, facts: dict[str, Any]) -> None:
        """Greedy and sampled success together: the mean of two halves the noise of one."""
        score = (facts["evaluation/greedy"]["rate"] + facts["evaluation/sampled"]["rate"]) / 2
        if score > self._best:
            self._best = score
            # A predecessor that died may have come so far.
            if self._weights.fetch(BEST, published.version - 1) is None:
                self._weights.publish(BEST, published.version, published.arrays)
            self._board.put({"evaluation/best_version": published.version})

    def _quality(self, board: dict[str, Any]) -> None:
        assert self._watch is not None
        self._board.put(self._watch.measure(int(board.get("policy/version", 0))))

    def state(self) -> State:
        """What is due; models and policy come from the store."""
        return {
            "jobs": list(self._jobs),
            "next_policy": self._next_policy,
            "next_quality": self._next_quality,
            "models_seen": self._models_seen,
            "best": self._best,
            "watch": None if self._watch is None else self._watch.state(),
        }

    def load(self, state: State) -> None:
        """Continue from ``state``."""
        self._jobs = deque(state["jobs"])
        if self._watch is not None:
            self._watch.load(state["watch"])
        self._next_policy, self._next_quality = state["next_policy"], state["next_quality"]
        self._models_seen, self._best = state["models_seen"], state["best"]

    def metrics(self) -> dict[str, float]:
        """Times of the jobs."""
        return self._averages.take()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
