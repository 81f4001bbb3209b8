"""Record demonstrations: python -m platform.demos [key=value ...]

Writes episodes of a scripted expert (the tabletop's, or LIBERO's) as a dataset folder. Also, each with a --help of its own:

export data=<folder> out=<folder>    a dataset, or a run's real episodes, as a LeRobot dataset
import data=<folder> out=<folder>    a LeRobot dataset or LIBERO's HDF5 files as a dataset folder
inspect <folder>                     what is in a dataset of any of these formats
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from buffers.dataset import DatasetWriter
from buffers.records import Record
from configs.errors import EnvError
from configs.libero import LiberoConfig
from configs.loader import config_to_dict, load_config, to_yaml
from configs.obs_model import ObsModelConfig
from configs.schema import DemosConfig
from configs.world_model import WorldModelConfig

from .command import main
from .context import Context
from .counting import counted
from .demos_parallel import collected_in_processes
from .envs import make_env_here
from .envs.base import DecisionEnv, Observation, StepResult
from .envs.tabletop_tasks import Floats, mix, uniform
from .episode import EpisodeBuilder
from .exchange import VERBS, verb_of
from .experts import has_expert, make_expert
from .inference import Decisions

LEVEL_DOMAIN, NOISE_DOMAIN = np.uint64(0x1EE7), np.uint64(0x4015E)
"""Keep the draws of noise levels and of noise apart from the starts, which come from the same seeds."""


@dataclass
class LevelSummary:
    """What one noise level yielded."""

    episodes: int = 0
    successes: int = 0


@dataclass
class DemosSummary:
    """What ``write_demos`` wrote."""

    folder: Path
    episodes: int = 0
    env_steps: int = 0
    bytes: int = 0
    wall_s: float = 0.0
    levels: list[LevelSummary] = field(default_factory=list)

    def count(self, record: Record, level: int) -> None:
        """One more episode."""
        self.episodes += 1
        self.env_steps += record.env_steps
        self.levels[level].episodes += 1
        self.levels[level].successes += record.success


class Demonstrator:
    """Chunks of tokens of the expert under each slot's noise level; a function of the episode's seed alone."""

    def __init__(self, config: DemosConfig, context: Context, env: DecisionEnv) -> None:
        self._chunk, self._dim = config.policy.chunk, env.spec.action_dim
        self._expert = make_expert(env, chunk=config.policy.chunk, replan=config.policy.replan)
        self._tokenizer = context.tokenizer
        self._noise = np.array([level.action_noise for level in config.noise], np.float32)
        self._speed = np.array([level.speed for level in config.noise], np.float32)
        self._random = np.array([level.random_decisions for level in config.noise], np.float32)
        self._shares = np.cumsum([level.share for level in config.noise])
        self._keys = np.zeros(env.num_slots, np.uint64)
        self._decisions = np.zeros(env.num_slots, np.uint64)
        self.level = np.zeros(env.num_slots, np.int64)

    def begin(self, slots: NDArray[np.int64], seeds: NDArray[np.int64]) -> None:
        """Draw the noise level of the episodes that start in ``slots``."""
        self._expert.begin(slots)
        keys = seeds.astype(np.uint64)
        self._keys[slots] = mix(keys ^ NOISE_DOMAIN, 0)
        self._decisions[slots] = 0
        draw = uniform(mix(keys ^ LEVEL_DOMAIN, 0), 0, 1)[:, 0] * self._shares[-1]
        last = len(self._shares) - 1
        self.level[slots] = np.minimum(np.searchsorted(self._shares, draw, side="right"), last)

    def decide(self, slots: NDArray[np.int64]) -> NDArray[np.int16]:
        """Tokens ``[n, K, D]``: the expert in closed loop, disturbed, then quantised, so tokens are what is executed.

        A random decision holds one uniform action for its whole chunk: the gripper then really opens or closes.
        """
        n, chunk, dim = len(slots), self._chunk, self._dim
        keys = mix(self._keys[slots], self._decisions[slots])
        self._decisions[slots] += np.uint64(1)
        noise = _normal(keys, chunk * dim).reshape(n, chunk, dim) * self._noise[self.level[slots], None, None]
        noise *= self._expert.noise
        draws = uniform(keys, 2, 1 + dim)
        random = draws[:, :1] < self._random[self.level[slots], None]
        held = 2 * draws[:, 1:] - 1
        speed = self._speed[self.level[slots], None]
        tokens = np.zeros((n, chunk, dim), np.int16)

        def behave(step: int, actions: Floats) -> Floats:
            careful = np.concatenate([actions[:, :-1] * speed, actions[:, -1:]], axis=1)
            disturbed = np.where(random, held, careful + noise[:, step])
            tokens[:, step] = self._tokenizer.encode(disturbed)
            return self._tokenizer.decode(tokens[:, step])

        self._expert.chunks(slots, behave)
        return tokens


def _normal(keys: NDArray[np.uint64], count: int) -> Floats:
    """``[n, count]`` standard normal numbers by Box and Muller."""
    radius = np.sqrt(-2 * np.log1p(-uniform(keys, 0, count)))
    normal: Floats = radius * np.cos(np.float32(2 * np.pi) * uniform(keys, 1, count))
    return normal


def _context(config: DemosConfig) -> Context:
    step: Literal["env_step", "decision"] = "env_step" if config.frames_between else "decision"
    models = WorldModelConfig(obs_model=ObsModelConfig(step=step))
    return Context(config.env, config.policy, models, config.seed, "cpu")


class DemosCollector:
    """Runs episodes in ``slots`` slots of this process and hands each finished record, with its noise level, to ``add``.

    Raises:
        EnvError: there is no expert for the environment.
    """

    def __init__(self, config: DemosConfig, slots: int, add: Callable[[Record, int], None]) -> None:
        self._config = config
        self._add = add
        self.context = _context(config)
        self._env = make_env_here(
            config.env, slots, chunk=config.policy.chunk, replan=config.policy.replan,
            between=self.context.record_spec.between,
        )  # fmt: skip
        self._demonstrator = Demonstrator(config, self.context, self._env)
        self._episodes: dict[int, EpisodeBuilder] = {}
        self._waiting: list[int] = []

    def run(self, numbers: Sequence[int]) -> None:
        """Episodes ``numbers``, once each."""
        self._waiting = list(numbers)
        self._start(np.arange(min(self._env.num_slots, len(numbers))))
        while self._episodes:
            slots = np.array(sorted(self._episodes), np.int64)
            tokens = self._demonstrator.decide(slots)
            result = self._env.step(slots, self.context.tokenizer.decode(tokens))
            self._note(slots, tokens, result)
            free = slots[result.terminated | result.truncated]
            self._start(free[: len(self._waiting)])

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _start(self, slots: NDArray[np.int64]) -> None:
        if not len(slots):
            return
        numbers = np.array(self._waiting[: len(slots)], np.int64)
        del self._waiting[: len(slots)]
        seeds = numbers + self._config.seed
        first: Observation = self._env.reset(slots, seeds)
        self._demonstrator.begin(slots, seeds)
        for row, (slot, task) in enumerate(zip(slots, self._env.tasks(slots), strict=True)):
            builder = EpisodeBuilder(int(numbers[row]), int(seeds[row]), task, first.instructions[row])
            builder.see(first, row)
            self._episodes[int(slot)] = builder

    def _note(self, slots: NDArray[np.int64], tokens: NDArray[np.int16], result: StepResult) -> None:
        unknown = Decisions(
            tokens, np.zeros(tokens.shape, np.float32), np.zeros(len(slots), np.float32), version=0
        )
        rewards = result.chunk_rewards(self._config.gamma)
        for row, slot in enumerate(slots):
            builder = self._episodes[int(slot)]
            builder.decide(unknown, row, result.valid[row], float(rewards[row]))
            builder.see(result.observation, row)
            if result.terminated[row] or result.truncated[row]:
                self._finish(int(slot), row, result)

    def _finish(self, slot: int, row: int, result: StepResult) -> None:
        success = bool(result.success[row])
        record = self._episodes.pop(slot).finish(
            terminated=bool(result.terminated[row]),
            truncated=bool(result.truncated[row]),
            success=success,
            source="demonstration",
        )
        level = int(self._demonstrator.level[slot])
        record.extra["noise_level"] = float(level)
        self._add(record, level)


def write_demos(config: DemosConfig, progress: Callable[[int], None] | None = None) -> DemosSummary:
    """Write ``config.out``: whole, or nothing of it. ``progress`` hears how many episodes have finished.

    Raises:
        EnvError: there is no expert for the environment.
        DataError: the folder exists.
        ResourceError: the disk refuses.
    """
    began = time.monotonic()
    if not has_expert(config.env.kind):
        raise EnvError(
            f"there is no scripted expert for env={config.env.kind}", where="env.kind",
            remedy="use env=tabletop, env=libero_object or env=libero_spatial",
        )  # fmt: skip
    context = _context(config)
    plain = config_to_dict(config)
    spec = context.env_spec
    info = {
        "env": plain["env"],
        "noise": plain["noise"],
        "seed": config.seed,
        "episodes": config.episodes,
        "gamma": config.gamma,
        "action_low": list(spec.action_low),
        "action_tokens": context.tokenizer.to_json(),
        "action_high": list(spec.action_high),
        "instructions": list(spec.instructions),
    }
    summary = DemosSummary(folder=Path(config.out), levels=[LevelSummary() for _ in config.noise])
    report = progress or _ignore
    with DatasetWriter(config.out, context.record_spec, info) as writer:

        def add(record: Record, level: int) -> None:
            writer.add(record)
            summary.count(record, level)
            report(summary.episodes)

        if isinstance(config.env, LiberoConfig):
            for record, level in collected_in_processes(config, config.env.processes):
                add(record, level)
        else:
            collector = DemosCollector(config, min(config.envs, config.episodes), add)
            with closing(collector):
                collector.run(range(config.episodes))
    summary.bytes = sum(path.stat().st_size for path in summary.folder.iterdir())
    summary.wall_s = time.monotonic() - began
    return summary


def _ignore(_finished: int) -> None:
    """Nobody wants to know."""


def summarise(config: DemosConfig, summary: DemosSummary) -> str:
    """A few lines for a person."""
    lines = [
        f"{summary.episodes} episodes, {summary.env_steps} env steps, {summary.bytes / 1e6:.1f} MB "
        f"in {summary.wall_s:.1f} s: {summary.folder}"
    ]
    for level, result in zip(config.noise, summary.levels, strict=True):
        share = f"{result.successes / result.episodes:.0%}" if result.episodes else "-"
        lines.append(
            f"  noise {level.action_noise:g}, random decisions {level.random_decisions:g}: "
            f"{result.episodes} episodes, {share} succeed"
        )
    return "\n".join(lines)


def _write_with_progress(config: DemosConfig) -> DemosSummary:
    with counted("episodes", config.episodes) as finished:
        return write_demos(config, finished)


def run(argv: list[str]) -> int:
    """Write the dataset and say what is in it, or do what the first word says."""
    if argv and "=" not in argv[0]:
        verb, rest = verb_of(argv)
        return verb.run(rest)
    config = load_config(DemosConfig, argv)
    sys.stdout.write(summarise(config, _write_with_progress(config)) + "\n")
    return 0


def dry_run(argv: list[str]) -> int:
    """Show the configuration."""
    sys.stdout.write(to_yaml(load_config(DemosConfig, argv)))
    return 0


def start(argv: list[str]) -> int:
    """The command, or the one that its first word names, with the help of its own."""
    if argv and argv[0] in VERBS:
        verb = VERBS[argv[0]]
        return main(run, verb.usage, config=verb.config, argv=argv)
    return main(run, __doc__ or "", config=DemosConfig, dry_run=dry_run, argv=argv)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
