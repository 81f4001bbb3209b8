"""One run of the benchmark ``lag``: a policy that learns from episodes which an earlier version of it plays.

Shape letters: n episodes, T decisions, F features.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from platform.acceleration import OptimizerStep
from platform.context import POLICY, Context, make_context
from platform.envs import make_env
from platform.envs.base import Observation
from platform.metrics import SuccessRate
from platform.models import read_model
from platform.weights import load_arrays
from typing import Any

import numpy as np
import torch

from configs.algorithm import DecoupledPPOConfig
from configs.loader import load_config
from configs.schema import TrainConfig
from policies.advantages import AdvantageStatistics, gae, normalize
from policies.base import ObservationTensors, Policy
from policies.objectives import policy_loss, value_loss
from policies.proximal import Age

ENV = "env=tabletop_reach"
SMALL = ["policy.width=48", "policy.layers=1", "policy.stem_channels=[16,32]", "policy.keypoints=8"]
"""A quarter of the default policy's cost: sixty runs of it must fit into an afternoon."""
ARMS = {
    "gipo 0.1": ["algorithm=gipo", "algorithm.sigma=0.1"],
    "gipo 0.3": ["algorithm=gipo", "algorithm.sigma=0.3"],
    "gipo 0.5": ["algorithm=gipo", "algorithm.sigma=0.5"],
    "gipo 1.0": ["algorithm=gipo", "algorithm.sigma=1.0"],
    "ppo": ["algorithm=ppo"],
    "decoupled": ["algorithm=decoupled_ppo"],
    "interpolated": ["algorithm=decoupled_ppo", "algorithm.anchor=interpolate"],
}
TRAIN_SEED, HELD_OUT_SEED = 20_000_000, 1_000_000


@dataclass(frozen=True)
class Size:
    """How much work."""

    episodes: int
    policy_updates: int
    lags: tuple[int, ...]
    updates: int
    batch: int
    batches: int
    """Per turn: episodes are played anew after so many updates."""
    warm_up: int
    """Turns of the critic alone."""
    trials: int
    seeds: int


@dataclass(frozen=True)
class Job:
    """One run."""

    arm: str
    lag: int
    seed: int
    size: Size
    policy: Path
    learning_rate: float

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.arm.replace(' ', '_')}_{self.lag}_{self.seed}.json"


@dataclass
class Episodes:
    """``n`` episodes of at most ``T`` decisions."""

    observations: list[Observation]
    """Per decision, of those that run; the last one of each episode stands behind it."""
    rows: list[np.ndarray]
    """Which episodes each of them is of."""
    tokens: torch.Tensor
    log_probs: torch.Tensor
    valid: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    lengths: torch.Tensor
    success: np.ndarray


def play(
    context: Context,
    env: Any,
    policy: Policy,
    seeds: np.ndarray,
    generator: torch.Generator | None,
    gamma: float,
) -> Episodes:
    """One episode per seed; greedy without a generator."""
    n, longest, k = len(seeds), context.record_spec.max_decisions, context.policy_config.chunk
    shape = (n, longest, k, context.env_spec.action_dim)
    tokens, log_probs = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
    valid, rewards = torch.zeros(shape[:3], dtype=torch.bool), torch.zeros(n, longest)
    ended, lengths, success = (
        torch.zeros(n, dtype=torch.bool),
        torch.zeros(n, dtype=torch.int64),
        np.zeros(n, bool),
    )
    live, observation = np.arange(n), env.reset(np.arange(n), seeds)
    observations, rows = [observation], [live]
    for step in range(longest):
        choice = policy.act(context.tensors(observation), greedy=generator is None, generator=generator)
        result = env.step(live, context.tokenizer.decode(choice.tokens.numpy()))
        at = torch.from_numpy(live)
        tokens[at, step], log_probs[at, step] = choice.tokens, choice.log_probs
        valid[at, step] = torch.from_numpy(result.valid)
        rewards[at, step] = torch.from_numpy(result.chunk_rewards(gamma))
        ended[at] = torch.from_numpy(result.terminated)
        lengths[at] += 1
        success[live] |= result.success
        observations.append(result.observation)
        rows.append(live)
        going = ~(result.terminated | result.truncated)
        live, observation = live[going], choose(result.observation, going)
        if not len(live):
            break
    return Episodes(observations, rows, tokens, log_probs, valid, rewards, ended, lengths, success)


def choose(observation: Observation, rows: np.ndarray) -> Observation:
    """Some rows."""
    return Observation(
        {name: frames[rows] for name, frames in observation.images.items()}, observation.proprio[rows],
        [text for text, keep in zip(observation.instructions, rows, strict=True) if keep],
    )  # fmt: skip


class Run:
    """One policy that learns from episodes of an earlier one."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(job.seed)
        size = job.size
        config = load_config(
            TrainConfig,
            [
                "real", ENV, *SMALL, *ARMS[job.arm], f"algorithm.batch={size.batch}",
                f"algorithm.micro_batch={size.batch}", "algorithm.gamma=0.95", "algorithm.gae_lambda=0.7",
                f"algorithm.learning_rate={job.learning_rate}", "algorithm.kl_anchor=0", f"run.seed={job.seed}",
            ],
        )  # fmt: skip
        self.job, self.algorithm = job, config.algorithm
        self.context = make_context(config, seed=job.seed, device="cpu")
        self.env = make_env(config.env, size.trials, chunk=config.policy.chunk, replan=config.policy.replan)
        self.discount = self.algorithm.gamma**config.policy.replan
        self.policy, self.behaviour = self.context.make_policy(), self.context.make_policy()
        load_arrays(self.policy, read_model(job.policy, POLICY, self.context))
        self.actor = OptimizerStep(
            self.policy.actor_parameters(), learning_rate=job.learning_rate, max_grad_norm=0.5, device="cpu"
        )
        self.critic = OptimizerStep(
            self.policy.critic_parameters(), learning_rate=1e-3, max_grad_norm=5.0, device="cpu"
        )
        self.generator = torch.Generator().manual_seed(job.seed)
        self.past: deque[dict[str, torch.Tensor]] = deque(maxlen=-(-job.lag // size.batches) + 1)
        self.updates, self.real_steps = 0, 0
        self.statistics: dict[str, list[float]] = {}

    def turn(self, number: int) -> None:
        """Play by the policy of ``lag`` updates ago, then one pass over it."""
        size = self.job.size
        warm = number < size.warm_up
        if self.updates or not self.past:
            self.past.append({name: tensor.clone() for name, tensor in self.policy.state_dict().items()})
        self.behaviour.load_state_dict(self.past[0])
        count = max(8, size.batch * size.batches // 5)
        seeds = TRAIN_SEED * (1 + self.job.seed) + 1000 * number + np.arange(count)
        episodes = play(self.context, self.env, self.behaviour, seeds, self.generator, self.algorithm.gamma)
        self.real_steps += int(episodes.valid.sum())
        self.learn(episodes, len(self.past) - 1, warm)

    def learn(self, episodes: Episodes, lag: int, warm: bool) -> None:
        """GAE with the newest critic, then actor and critic."""
        taken = episodes.valid.any(dim=2)
        features = self.features(episodes)
        with torch.no_grad():
            values = self.policy.value(features)
        advantages, returns = gae(
            episodes.rewards,
            values,
            episodes.terminated,
            episodes.lengths,
            self.discount,
            self.algorithm.gae_lambda,
        )
        advantages = normalize(advantages, taken, AdvantageStatistics.of(advantages, taken))[taken]
        kept, targets, features = self.decided(episodes), returns[taken], features[:, :-1][taken]
        tokens, behaviour, valid = (x[taken] for x in (episodes.tokens, episodes.log_probs, episodes.valid))
        proximal = behaviour
        if isinstance(self.algorithm, DecoupledPPOConfig) and self.algorithm.anchor == "recompute":
            with torch.no_grad():
                proximal = self.policy.log_probs(kept, tokens)[0]
        lags = torch.full((len(tokens),), lag)
        pieces = torch.randperm(len(tokens), generator=self.generator).tensor_split(self.job.size.batches)
        for rows in () if warm else pieces:
            result = policy_loss(
                self.algorithm, self.policy(kept.take(rows)).logits, tokens[rows], behaviour[rows], advantages[rows],
                valid[rows], age=Age(lags[rows], proximal[rows]),
            )  # fmt: skip
            self.actor.scale_rate(min(1.0, (self.updates + 1) / 10))
            self.actor.backward(result.loss)
            self.actor.apply()
            self.updates += 1
            for name, value in result.statistics.items():
                self.statistics.setdefault(name, []).append(float(value))
        for rows in itertools.chain(pieces, pieces):
            guess = self.policy.value(features[rows])
            loss = value_loss(
                self.algorithm, guess, targets[rows], targets[rows], valid[rows].any(dim=1)
            ).loss
            self.critic.backward(loss)
            self.critic.apply()

    def features(self, episodes: Episodes) -> torch.Tensor:
        """``[n, T + 1, F]`` of the newest actor."""
        n, longest = episodes.rewards.shape
        parts = []
        for observation in episodes.observations:
            with torch.no_grad():
                parts.append(self.policy.features(self.context.tensors(observation)))
        answer = torch.zeros(n, longest + 1, parts[0].shape[1])
        for step, (rows, part) in enumerate(zip(episodes.rows, parts, strict=True)):
            answer[torch.from_numpy(rows), step] = part
        return answer

    def decided(self, episodes: Episodes) -> ObservationTensors:
        """The observations of all decisions, in the order of ``taken``."""
        places = np.array([(row, step) for step, rows in enumerate(episodes.rows) for row in rows])
        tensors = [self.context.tensors(observation) for observation in episodes.observations]
        flat = ObservationTensors(
            {name: torch.cat([part.images[name] for part in tensors]) for name in tensors[0].images},
            torch.cat([part.proprio for part in tensors]),
            torch.cat([part.instruction_ids for part in tensors]),
        )
        order = np.lexsort((places[:, 1], places[:, 0]))
        row, step = places[order].T
        decisions = step < episodes.lengths.numpy()[row]
        return flat.take(torch.from_numpy(order[decisions]))

    def success(self, trials: int, *, greedy: bool) -> SuccessRate:
        """On held-out starts."""
        seeds = HELD_OUT_SEED + np.arange(trials)
        generator = None if greedy else torch.Generator().manual_seed(1)
        played = play(self.context, self.env, self.policy, seeds, generator, self.algorithm.gamma)
        return SuccessRate.of(int(played.success.sum()), trials)


def run(job: Job) -> dict[str, Any]:
    """Train to the end; success before, on the way and after."""
    began, size = time.monotonic(), job.size
    this = Run(job)
    turns = size.warm_up + -(-size.updates // size.batches)
    looks = {round(turns * share) for share in (0.2, 0.4, 0.6, 0.8)}
    curve = [(0, this.success(size.trials, greedy=True).rate)]
    for number in range(turns):
        this.turn(number)
        if number + 1 in looks:
            curve.append((this.updates, this.success(size.trials, greedy=True).rate))
    greedy, sampled = (this.success(size.trials, greedy=which) for which in (True, False))
    last = {
        name: float(np.mean(values[-len(values) // 5 :]))
        for name, values in this.statistics.items()
        if "/" not in name
    }
    return {
        "arm": job.arm, "lag": job.lag, "seed": job.seed, "curve": [*curve, (this.updates, greedy.rate)],
        "greedy": greedy.to_json(), "sampled": sampled.to_json(), "updates": this.updates,
        "real_steps": this.real_steps, "skipped": this.actor.skipped, "statistics": last,
        "wall_s": round(time.monotonic() - began),
    }  # fmt: skip
