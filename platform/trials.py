"""Trials of an evaluation: which there are, and how one is run. A trial depends on nothing but itself."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from configs.env import EnvConfig
from configs.errors import ConfigError, DataError, RoleFailure
from configs.libero import LiberoConfig
from configs.schema import EvaluateConfig

from .actors import Actor, make_actor
from .context import Context
from .envs import env_spec, make_env_here, most_trials, trial_seed

if TYPE_CHECKING:
    from .envs.base import DecisionEnv, Observation
    from .weights import Arrays

FPS = 20
"""Env steps per second of a film: LIBERO's own pace."""
LEAST_SIDE = 128
"""Smaller frames are enlarged in films."""
_ONLY = np.zeros(1, np.int64)
"""The one slot of a worker's environment."""


@dataclass(frozen=True)
class Trial:
    """One episode to be judged."""

    suite: str
    task_index: int
    """Its place among the environment's tasks."""
    task: str
    trial: int
    choice: str
    seed: int
    """What its start is made from."""

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Tells trials apart, and orders them."""
        return self.suite, self.choice, self.task_index, self.trial

    @property
    def film(self) -> Path:
        """Its film below the run directory."""
        name = f"task_{self.task_index:02d}_trial_{self.trial:02d}.mp4"
        return Path("videos") / self.suite / self.choice / name


@dataclass(frozen=True)
class Outcome:
    """What became of it. All but ``wall_s`` is the same whoever runs it, and when."""

    outcome: str
    """``success``, ``failure``, or ``error``: the environment failed, not the policy."""
    env_steps: int = 0
    decisions: int = 0
    error: str = ""
    digest: str = ""
    """SHA-256 of every action taken and everything seen on the way."""
    wall_s: float = 0.0


def env_configs(config: EvaluateConfig) -> dict[str, EnvConfig]:
    """Environment of each suite: that of ``env`` first, then its perturbed ones.

    Raises:
        ConfigError: perturbations of something else than LIBERO.
        EnvError: as ``env_spec``.
    """
    wanted = config.evaluation.perturbations
    configs: dict[str, EnvConfig] = {env_spec(config.env).name: config.env}
    if wanted and not isinstance(config.env, LiberoConfig):
        raise ConfigError(
            f"env={config.env.kind} has no perturbed suites", where="evaluation.perturbations",
            remedy="use one of LIBERO's suites, or drop it",
        )  # fmt: skip
    if isinstance(config.env, LiberoConfig):
        for name in wanted:
            perturbed = replace(config.env, suite=f"{config.env.suite}_{name}")
            configs[env_spec(perturbed).name] = perturbed
    return configs


def plan_trials(config: EvaluateConfig) -> list[Trial]:
    """Every trial, in the order of the table.

    Raises:
        ConfigError: a task that is not there.
        DataError: more trials than the environment has starts for.
    """
    evaluation, trials = config.evaluation, []
    choices = evaluation.choices if evaluation.actor == "policy" else evaluation.choices[:1]
    for suite, env in env_configs(config).items():
        names = env_spec(env).tasks
        beyond = [index for index in evaluation.tasks if index >= len(names)]
        if beyond:
            raise ConfigError(
                f"{suite} has no task {beyond[0]}", where="evaluation.tasks",
                remedy=f"give indices from 0 to {len(names) - 1}",
            )  # fmt: skip
        most = most_trials(env)
        if most is not None and evaluation.trials > most:
            raise DataError(
                f"{suite} has starts for {most} trials of a task, not for {evaluation.trials}",
                where="evaluation.trials", remedy=f"give at most {most}",
            )  # fmt: skip
        trials += [
            Trial(suite, index, names[index], trial, choice, trial_seed(env, evaluation.seed, trial))
            for choice in choices
            for index in (evaluation.tasks or range(len(names)))
            for trial in range(evaluation.trials)
        ]
    return trials


@dataclass
class Bench:
    """All that a worker needs to run trials; picklable."""

    config: EvaluateConfig
    context: Context
    """Its instructions are those that the policy knows."""
    envs: dict[str, EnvConfig]
    arrays: Arrays | None
    """The policy's weights; None for scripted actors."""
    folder: Path


class TrialRunner:
    """Runs one trial after the other in one process. Keeps the environment as long as the suite stays the same."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._actor: Actor = make_actor(bench.config.evaluation.actor, bench.context, bench.arrays)
        self._suite = ""
        self._env: DecisionEnv | None = None

    def run(self, trial: Trial) -> Outcome:
        """The trial's outcome; an exception of the environment is one, an exception of ours is not caught."""
        began = time.monotonic()
        try:
            outcome = self._episode(trial)
        except _EnvFailed as failure:
            self.close()
            outcome = Outcome("error", error=str(failure))
        return replace(outcome, wall_s=time.monotonic() - began)

    def _episode(self, trial: Trial) -> Outcome:
        env = self._env_of(trial.suite)
        observation = _guarded(env.reset, _ONLY, np.array([trial.seed], np.int64), [trial.task])
        _guarded(self._actor.begin, env)
        seen, digest, steps, decisions, success = [observation], hashlib.sha256(), 0, 0, False
        ended = False
        while not ended:
            key = np.array([[trial.task_index, trial.trial, decisions]], np.int64)
            actions = self._actor.decide(observation, key, greedy=trial.choice == "greedy")
            result = _guarded(env.step, _ONLY, actions)
            observation = result.observation
            _digest(digest, actions, observation)
            steps, decisions = steps + int(result.valid.sum()), decisions + 1
            success = success or bool(result.success[0])
            ended = bool(result.terminated[0] or result.truncated[0])
            seen.append(observation)
        if self._bench.config.evaluation.videos:
            self._film(trial, seen)
        return Outcome("success" if success else "failure", steps, decisions, digest=digest.hexdigest())

    def _env_of(self, suite: str) -> DecisionEnv:
        if self._env is None or suite != self._suite:
            self.close()
            policy = self._bench.config.policy
            # A package or a graphics library that is missing is missing for every trial: the command ends with it.
            self._env = make_env_here(self._bench.envs[suite], 1, chunk=policy.chunk, replan=policy.replan)
            self._suite = suite
        return self._env

    def _film(self, trial: Trial, seen: list[Observation]) -> None:
        pictures = [np.concatenate([frames[0] for frames in each.images.values()], axis=1) for each in seen]
        write_film(
            self._bench.folder / trial.film, pictures, fps=max(1, FPS // self._bench.config.policy.replan)
        )

    def close(self) -> None:
        """Close the environment; one that fails even at that is left to its process's end."""
        env, self._env = self._env, None
        if env is not None:
            try:
                _guarded(env.close)
            except _EnvFailed:
                return


class _EnvFailed(Exception):
    """An exception of the environment, in one line."""


def _guarded(call: Any, *arguments: Any, **named: Any) -> Any:
    try:
        return call(*arguments, **named)
    except Exception as error:
        raise _EnvFailed(" ".join(f"{type(error).__name__}: {error}".split())) from error


def _digest(digest: Any, actions: NDArray[np.float32], observation: Observation) -> None:
    digest.update(np.ascontiguousarray(actions).tobytes())
    digest.update(np.ascontiguousarray(observation.proprio).tobytes())
    for frames in observation.images.values():
        digest.update(np.ascontiguousarray(frames).tobytes())


def write_film(path: Path, pictures: list[NDArray[np.uint8]], *, fps: int) -> None:
    """Write an mp4 of ``pictures`` ``[H, W, 3]`` under ``path``; a film that is there already keeps its name."""
    import imageio.v2 as imageio

    times = max(1, -(-LEAST_SIDE // pictures[0].shape[0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    free = path
    number = 2
    while free.exists():
        free, number = path.with_stem(f"{path.stem}_{number}"), number + 1
    partial = free.with_name(f".{free.stem}.{os.getpid()}.mp4")
    writer: Any = imageio.get_writer(partial, fps=fps, codec="libx264", macro_block_size=2)
    with writer:
        for picture in pictures:
            writer.append_data(picture.repeat(times, axis=0).repeat(times, axis=1))
    partial.rename(free)


def row_of(trial: Trial, outcome: Outcome) -> dict[str, Any]:
    """One line of ``trials.jsonl``."""
    return {**asdict(trial), **asdict(outcome)}


def read_row(row: dict[str, Any]) -> tuple[Trial, Outcome]:
    """The inverse of ``row_of``; RoleFailure for a line that is something else."""
    fields = Trial.__dataclass_fields__.keys(), Outcome.__dataclass_fields__.keys()
    if not set(row) >= {*fields[0], *fields[1]}:
        raise RoleFailure(f"a row has only {', '.join(row)}", where="trials.jsonl", remedy="start anew")
    return Trial(**{name: row[name] for name in fields[0]}), Outcome(
        **{name: row[name] for name in fields[1]}
    )
