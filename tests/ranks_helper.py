"""A policy learner over ranks without Ray: each rank in a process of its own, since a process is one rank for ever."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from buffers.memory import MemoryBuffer
from buffers.records import Record, RecordSpec
from configs.errors import RoleFailure
from configs.loader import load_config
from configs.schema import TrainConfig
from tests.run_helper import FAST
from tests.run_helper import POLICY as SMALL

START = multiprocessing.get_context("spawn")
SETTINGS = [text for text in FAST if text not in SMALL]
TIMEOUT_S = 600
"""A machine that others use can be many times slower than one of its own."""


def random_record(spec: RecordSpec, number: int, version: int = 0) -> Record:
    """Any length, any number of executed actions, anything to see."""
    rng = np.random.default_rng([number, 5])
    length, chunk, dims = int(rng.integers(1, spec.max_decisions + 1)), spec.chunk, spec.action_dim
    return Record(
        images={
            name: rng.integers(0, 256, (length + 1, *size, 3), np.uint8)
            for name, size in spec.cameras.items()
        },
        proprio=rng.random((length + 1, spec.proprio_dim), np.float32),
        instruction="",
        tokens=rng.integers(0, spec.bins, (length, chunk, dims)).astype(np.int16),
        log_probs=rng.uniform(-3.5, -2.0, (length, chunk, dims)).astype(np.float32),
        valid=np.arange(chunk) < rng.integers(1, chunk + 1, (length, 1)),
        rewards=rng.normal(size=length).astype(np.float32),
        values=rng.normal(size=length).astype(np.float32),
        version=np.full(length, version, np.int32),
        terminated=bool(number % 2),
        truncated=not number % 2,
        success=bool(number % 2),
        task="reach",
        seed=number,
        episode_id=number,
    )


def make_learner(
    overrides: tuple[str, ...], colleagues: tuple[Any, ...] = (), version: int = 0, records: int = 24
) -> Any:
    """A learner with its own store and its own buffers of random records (rank 0 is the one who leases from them)."""
    from platform.context import ANCHOR, POLICY, make_context
    from platform.lean_optimizer import Lean
    from platform.policy_learner import Pacing, PolicyLearner
    from platform.policy_trainer import PolicyTrainer
    from platform.ranks import LOOPBACK, gather
    from platform.staleness import Rules
    from platform.weights import WeightStore, module_arrays

    sizes = () if any(text.startswith("policy=") for text in overrides) else SMALL
    settings = load_config(
        TrainConfig, ["real+imagined", *SETTINGS, "env=tabletop_reach", *sizes, *overrides]
    )
    context = make_context(settings, seed=0, device="cpu")
    team = gather(colleagues, address=LOOPBACK, device="cpu")
    store = WeightStore()
    first = module_arrays(context.make_policy())
    store.publish(POLICY, version, first)
    store.publish(ANCHOR, 0, {name: array * 0.9 for name, array in first.items()})
    buffers = []
    for offset, name in ((0, "real"), (1000, "imagined")):
        buffer = MemoryBuffer(context.record_spec, settings.buffers.real, seed=1, name=name)
        made = [random_record(context.record_spec, offset + number) for number in range(records)]
        for record in made:
            record.instruction = context.env_spec.instructions[record.seed % 2]
        buffer.extend(made)
        buffers.append(buffer)
    pacing = Pacing(
        real_decisions=21, imagined_decisions=43, retired_decisions=0, turns_per_publish=1, rules=Rules(),
        max_turns=100,
    )  # fmt: skip
    trainer = PolicyTrainer(
        context, settings.algorithm, store, bound=pacing.rules.bound, discount=0.95, max_turns=100, precision="no",
        lean=Lean(shard=settings.learner.shard) if settings.learner.shard != "nothing" else None,
    )  # fmt: skip
    return PolicyLearner(trainer, pacing, buffers[0], buffers[1], store, store, team=team)


def make_trainer(overrides: tuple[str, ...]) -> Any:
    """What a rank above 0 has of it."""
    return make_learner(overrides).trainer


class Piped:
    """Another rank at the end of a pipe."""

    def __init__(self, name: str, build: Callable[[], Any]) -> None:
        self._name = name
        self._pipe, theirs = START.Pipe()
        self.process = START.Process(target=_serve, args=(theirs, build), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, method: str, *args: Any) -> object:
        """Start a call."""
        _send(self._pipe, (method, args))
        return None

    def finish(self, ticket: object, timeout_s: float | None = None) -> Any:
        """Its answer."""
        try:
            if not self._pipe.poll(TIMEOUT_S if timeout_s is None else timeout_s):
                raise TimeoutError
            fine, answer = _received(self._pipe)
        except EOFError as error:
            raise RoleFailure(f"the process of {self._name} died", where=self._name) from error
        if not fine:
            raise RoleFailure(f"{self._name} failed: {answer}", where=self._name)
        return answer


def everywhere(learner: Any, function: Callable[[Any], Any]) -> list[Any]:
    """``function(trainer)`` on every rank at the same time; the answers by rank."""
    colleagues = learner._team._colleagues
    tickets = [colleague.begin("run", function) for colleague in colleagues]
    own = function(learner.trainer)
    return [own, *(colleague.finish(ticket) for colleague, ticket in zip(colleagues, tickets, strict=True))]


def _send(pipe: Connection, what: Any) -> None:
    """A copy, as between machines: a pipe of torch's would hand over the very memory of a tensor."""
    pipe.send_bytes(pickle.dumps(what))


def _received(pipe: Connection) -> Any:
    return pickle.loads(pipe.recv_bytes())


def _serve(pipe: Connection, build: Callable[[], Any]) -> None:
    from platform.ranks import RankWorker

    worker = RankWorker(build)
    while True:
        method, args = _received(pipe)
        try:
            call = partial(_run, worker) if method == "run" else getattr(worker, method)
            answer = (True, call(*args))
        except Exception as error:  # noqa: BLE001  rank 0 is told
            answer = (False, f"{type(error).__name__}: {error}")
        _send(pipe, answer)


def _run(worker: Any, function: Callable[[Any], Any]) -> Any:
    return function(worker._joined())


def on_ranks(ranks: int, scenario: Callable[[Any], Any], *overrides: str) -> Any:
    """What ``scenario(learner)`` returns on rank 0 of ``ranks``; its error is raised here as text."""
    mine, theirs = START.Pipe()
    process = START.Process(target=_rank_zero, args=(theirs, ranks, scenario, overrides))
    process.start()
    theirs.close()
    try:
        assert mine.poll(TIMEOUT_S), "no answer"
        fine, answer = mine.recv()
    finally:
        process.join(10)
        process.kill()
    if not fine:
        raise RuntimeError(answer)
    return answer


def _rank_zero(
    pipe: Connection, ranks: int, scenario: Callable[[Any], Any], overrides: tuple[str, ...]
) -> None:
    build = partial(make_trainer, overrides)
    colleagues = tuple(Piped(f"policy_learner_{rank}", build) for rank in range(1, ranks))
    try:
        answer = (True, scenario(make_learner(overrides, colleagues)))
    except Exception as error:  # noqa: BLE001  the test is told
        answer = (False, f"{type(error).__name__}: {error}")
    pipe.send(answer)
    pipe.close()
    for colleague in colleagues:
        colleague.process.kill()
    os._exit(0)
