"""Runs a train config from start to summary: builds, watches, logs, checkpoints, stops, reports."""

from __future__ import annotations

import logging
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from buffers.dataset import read_dataset
from buffers.records import Record
from configs.errors import ReplayError, RoleFailure, StallError
from configs.schema import TrainConfig

from .assembly import HOSTS, Services, place_roles, place_services, publish_first
from .checkpoint import write_checkpoint
from .context import BEST, OBS_MODEL, POLICY, REWARD_MODEL, Context, make_context
from .evaluation import Evaluation, evaluate_policy
from .hosts.base import Host
from .lost_work import LostWork
from .metrics import make_trackers, read_rows
from .model_card import untrained_loss
from .model_watch import FilmShelf
from .models import read_model
from .preflight import check_dataset
from .progress import ProgressLine, metric_row
from .self_check import self_check
from .shares import shares
from .weights import Arrays, load_arrays, module_arrays

if TYPE_CHECKING:
    from policies.base import Policy

log = logging.getLogger(__name__)

PAUSE_TIMEOUT_S = 30.0
INTERRUPT_PAUSE_S = 3.5
"""An interrupted run must be gone within seconds."""


@dataclass
class Progress:
    """What the run itself must remember."""

    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    before: dict[str, Any] = field(default_factory=dict)
    demonstration_steps: int = 0
    warm_up_steps: int = 0
    wall_s: float = 0.0
    stages_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Outcome:
    """What ``run`` leaves for the report."""

    services: Services
    context: Context
    board: dict[str, Any]
    progress: Progress
    models: dict[str, Arrays]
    after: dict[str, Any]
    role_busy_s: dict[str, float]
    lag: dict[str, float]
    """Of the whole run: mean, p95 and max, in versions."""
    interrupted: bool
    restarts: dict[str, int]
    """Times that roles were built again since this process began, by name."""


class Runner:
    """One run in one directory. ``resumed`` is (turns, states) of a checkpoint."""

    def __init__(
        self, config: TrainConfig, folder: Path, resumed: tuple[int, dict[str, Any]] | None = None
    ) -> None:
        self._config, self._folder, self._resumed = config, folder, resumed
        self._context = make_context(config, seed=config.run.seed, device=config.run.device)
        self._progress = Progress()
        if resumed is not None:
            self._progress = Progress(**resumed[1]["runner"])
        self._interrupted = False
        self._checkpointed = 0 if resumed is None else resumed[0]
        self._films = FilmShelf(folder / "media" / "films")
        self._lost_work = LostWork(None if resumed is None else resumed[1])
        self._busy: dict[str, float] = {}
        self._moved: dict[str, tuple[int, float]] = {}

    def run(self, report: Callable[[Outcome], dict[str, Any]]) -> dict[str, Any]:
        """Run, then let ``report`` look while the buffers are still there; its answer. Raises what went wrong; nothing
        keeps running then.
        """
        first = self._first_weights()
        records = self._offline_records()
        if self._resumed is None:
            self._timed(
                "self_check", lambda: self_check(self._context, first[POLICY], self._config.algorithm)
            )
            self._timed("evaluate_before", lambda: self._evaluate_before(first[POLICY]))
        host = self._timed("host", lambda: HOSTS[type(self._config.host)](self._config.host))
        try:
            return report(self._run_on(host, first, records))
        except (RoleFailure, ReplayError) as error:
            raise self._with_remedy(error) from error
        finally:
            host.close()

    def _with_remedy(self, error: RoleFailure | ReplayError) -> RoleFailure | ReplayError:
        """The run can go on from its last checkpoint, once what is wrong is put right where that has a remedy."""
        if not self._checkpointed:
            return error
        remedy = f"run.resume={self._folder} goes on from policy turn {self._checkpointed}{self._lost_work.since_checkpoint()}"
        kind = type(error) if isinstance(error, RoleFailure) else RoleFailure
        return kind(
            error.what, where=error.where, remedy=f"{error.remedy}; {remedy}" if error.remedy else remedy
        )

    def _timed(self, stage: str, work: Any) -> Any:
        began = time.monotonic()
        result = work()
        stages = self._progress.stages_s
        stages[stage] = stages.get(stage, 0.0) + time.monotonic() - began
        return result

    def _first_weights(self) -> dict[str, Arrays]:
        """From the folders that the config names, else random."""
        context, config = self._context, self._config
        path = config.policy.path
        if path is None and getattr(config.policy, "base", None) is None:
            log.warning("policy.path is not set: the policy starts from random weights")
        first = {
            POLICY: module_arrays(context.make_policy())
            if path is None
            else read_model(Path(path), POLICY, context)
        }
        if shares(config).imagines:
            makers: dict[str, Callable[[], Any]] = {
                OBS_MODEL: context.make_obs_model,
                REWARD_MODEL: lambda: context.make_reward_model(self._policy_of(first[POLICY])),
            }
            folder = config.world_model.path
            if folder is None:
                log.warning("world_model.path is not set: the models start from random weights")
            for name, make in makers.items():
                given = folder is not None
                first[name] = (
                    read_model(Path(str(folder)) / name, name, context) if given else module_arrays(make())
                )
        return first

    def _policy_of(self, arrays: Arrays) -> Policy:
        policy = self._context.make_policy()
        load_arrays(policy, arrays)
        return policy

    def _offline_records(self) -> list[Record]:
        """Demonstrations of ``data``; checked against the run before anything starts."""
        if self._config.data is None:
            return []
        dataset = read_dataset(self._config.data, between=self._context.record_spec.between)
        check_dataset(dataset, self._context, self._config.data)
        self._progress.demonstration_steps = sum(record.env_steps for record in dataset.records)
        return dataset.records

    def _evaluate_before(self, arrays: Arrays) -> None:
        log.info("evaluating the policy that the run starts from")
        self._progress.before = {name: e.rate.to_json() for name, e in self.evaluate(arrays).items()}

    def evaluate(self, arrays: Arrays) -> dict[str, Evaluation]:
        """Greedy and sampled success of a policy on the held-out starts."""
        from .envs import make_env

        config = self._config
        policy = self._policy_of(arrays)
        env = make_env(
            config.env, config.evaluation.envs, chunk=config.policy.chunk, replan=config.policy.replan
        )
        try:
            return {
                name: evaluate_policy(
                    self._context, env, policy, trials=config.evaluation.trials,
                    first_seed=config.evaluation.seed, greedy=name == "greedy",
                )
                for name in ("greedy", "sampled")
            }  # fmt: skip
        finally:
            env.close()

    def _run_on(self, host: Host, first: dict[str, Arrays], records: list[Record]) -> Outcome:
        services = place_services(host, self._config, self._context, self._folder.absolute())
        publish_first(services, first)
        if self._resumed is None and records:
            services.real.extend(records)
        self._put_first_facts(services)
        place_roles(host, self._config, self._context, services)
        self._timed("start", host.start)
        if self._resumed is not None:
            host.load({name: state for name, state in self._resumed[1].items() if name != "runner"})
        began = time.monotonic()
        trackers = make_trackers(self._config.track, self._folder, self._progress.run_id)
        try:
            with self._catch_interrupt():
                host.resume()
                self._loop(host, services, trackers)
                return self._finish(host, services, began)
        finally:
            for tracker in trackers:
                tracker.close()

    def _put_first_facts(self, services: Services) -> None:
        if self._resumed is not None:
            return
        known = untrained_loss(self._config.world_model)
        facts = {"policy/version": 0, "policy/turns": 0, "obs_model/first_val_loss": known}
        judged = shares(self._config).imagines and self._config.evaluation.quality_every > 0
        facts["quality/first_is_due"] = judged and services.real.stats()["held_out_decisions"] > 0
        services.store.put({**facts, "policy/learns_from_real": self._config.mode != "imagined"})

    @contextmanager
    def _catch_interrupt(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) asks for an orderly end, the second one gets through."""

        def ask(_signum: int, _frame: FrameType | None) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            log.warning("interrupted: writing a checkpoint; once more ends at once")

        held = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in held.items():
                signal.signal(number, handler)

    def _loop(self, host: Host, services: Services, trackers: list[Any]) -> None:
        config, started = self._config.run, time.monotonic()
        line = ProgressLine(self._config, started, self._progress.wall_s)
        logged = time.monotonic()
        while not self._interrupted:
            host.pump()
            now = time.monotonic()
            board = services.store.read()
            self._lost_work.see(board)
            if now - logged >= config.log_every_s:
                self._log(host, services, board, trackers, line, now)
                logged = now
            due = (
                int(board.get("policy/turns", 0)) // config.checkpoint_every if config.checkpoint_every else 0
            )
            if config.checkpoint_every and due > self._checkpointed // config.checkpoint_every:
                self._checkpoint(host)
                if not self._interrupted:
                    host.resume()
            self._watch(host, now)
            if self._should_stop(board, now - started):
                self._log(host, services, services.store.read(), trackers, line, now)
                return

    def _should_stop(self, board: dict[str, Any], wall_s: float) -> bool:
        stop = self._config.run.stop
        greedy = board.get("evaluation/greedy")
        return (
            int(board.get("policy/turns", 0)) >= stop.updates
            or (stop.real_steps is not None and online_steps(board) >= stop.real_steps)
            or (stop.wall_s is not None and self._progress.wall_s + wall_s >= stop.wall_s)
            or (stop.success is not None and greedy is not None and greedy["rate"] >= stop.success)
        )

    def _log(
        self,
        host: Host,
        services: Services,
        board: dict[str, Any],
        trackers: list[Any],
        line: ProgressLine,
        now: float,
    ) -> None:
        by_role = host.metrics()
        for name, row in by_role.items():
            self._busy[name] = self._busy.get(name, 0.0) + row["busy_s"]
        if int(board.get("policy/turns", 0)) <= self._config.algorithm.critic_warm_up:
            self._progress.warm_up_steps = online_steps(board)
        buffers = self._buffers(services)
        row = metric_row(by_role, buffers, board | restart_facts(host), line.wall_s(now))
        for tracker in trackers:
            tracker.write(row, int(board.get("policy/turns", 0)))
        self._films.collect(services.store)
        log.info("%s", line.text(row, board, now))

    def _buffers(self, services: Services) -> dict[str, dict[str, Any]]:
        """Their statistics; what they lost is told."""
        found = {"real": services.real.stats(), "img": services.imagined.stats()}
        self._lost_work.look(found)
        return found

    def _watch(self, host: Host, now: float) -> None:
        """No silent stall: a step that never ends, or loops that all stand still."""
        limit = self._config.run.stall_s
        health = host.health()
        for role in health:
            if role.step_s > limit:
                raise StallError(
                    f"{role.name} has been inside one step for {role.step_s:.0f} s", where=role.name
                )
            if self._moved.get(role.name, (-1, 0.0))[0] != role.progress:
                self._moved[role.name] = (role.progress, now)
        if health and all(now - self._moved[role.name][1] > limit for role in health):
            idle = ", ".join(role.name for role in health)
            raise StallError(
                f"no loop made progress for {limit:.0f} s ({idle})", where="run.stall_s",
                remedy="see the metrics: gate, guard or admission may hold everything back",
            )  # fmt: skip

    def _checkpoint(self, host: Host) -> dict[str, Arrays]:
        haste = self._interrupted
        timeout_s = INTERRUPT_PAUSE_S if haste else PAUSE_TIMEOUT_S
        late = host.pause(timeout_s, haste=haste)
        needed = ", ".join(name for name in late if not host.is_spare(name))
        if needed and not haste:
            raise RoleFailure(f"{needed} did not pause within {timeout_s:.0f} s", where="checkpoint")
        states = host.states(skip=late)
        held = states["store"]["weights"]
        models = {name: held[name]["arrays"] for name in (OBS_MODEL, REWARD_MODEL) if name in held}
        # What a checkpoint offers for use is the policy that evaluated best, once a run has evaluated any.
        models[POLICY] = held[BEST if BEST in held else POLICY]["arrays"]
        if needed:
            log.warning("%s did not pause in time: the checkpoint before stays the newest", needed)
            return models
        states["runner"] = vars(self._progress)
        turns = int(states["policy_learner"]["turns"])
        write_checkpoint(
            self._folder / "checkpoints", turns, states, models, self._context,
            keep=self._config.run.keep_checkpoints,
        )  # fmt: skip
        self._checkpointed = turns
        self._lost_work.saved(states["store"]["board"])
        return models

    def _finish(self, host: Host, services: Services, began: float) -> Outcome:
        """A last checkpoint, the evaluation after, and what the report needs from the buffers."""
        self._progress.wall_s += time.monotonic() - began
        models = self._checkpoint(host)
        self._buffers(services)
        board = services.store.read()
        after = {}
        if not self._interrupted:
            log.info("evaluating the trained policy")
            results = self._timed("evaluate_after", lambda: self.evaluate(models[POLICY]))
            after = {name: result.rate.to_json() for name, result in results.items()}
        return Outcome(
            services,
            self._context,
            board,
            self._progress,
            models,
            after,
            self._busy,
            self._lag(),
            self._interrupted,
            host.restarts(),
        )

    def _lag(self) -> dict[str, float]:
        """From the rows of the metrics, so that a resumed run counts its whole life."""
        rows = list(read_rows(self._folder / "metrics.jsonl"))

        def of(name: str) -> list[float]:
            # A row may be written between the two moments of a turn that these are measured at.
            return [row[f"staleness/{name}"] for row in rows if f"staleness/{name}" in row] or [0.0]

        return {
            "mean": float(np.mean(of("lag_mean"))),
            "p95": float(np.percentile(of("lag_p95"), 95)),
            "max": float(max(of("lag_max"))),
        }


def restart_facts(host: Host) -> dict[str, int]:
    """``host/restarts`` in all, and by role."""
    restarts = host.restarts()
    return {
        "host/restarts": sum(restarts.values()),
        **{f"host/restarts/{name}": count for name, count in restarts.items()},
    }


def online_steps(board: dict[str, Any]) -> int:
    """Real env steps taken by the rollout workers."""
    return int(
        np.sum([value for key, value in board.items() if key.startswith("real_steps/")], dtype=np.int64)
    )
