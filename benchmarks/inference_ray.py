"""The Ray part of ``inference.py``: collectors in other processes, and weights that are published meanwhile."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from platform.context import POLICY, Context
from platform.envs.base import Observation
from platform.hosts.ray_host import RayHost
from platform.metrics import joined
from platform.replicas import Replicas
from platform.role import State
from platform.weights import WeightStore, module_arrays
from typing import Any

import numpy as np
from inference_load import ROWS, Bare, MeasuredService, Pair, Size, observations, pair

from configs.system import InferenceConfig, RayHostConfig

PROCESSES = 2


class Collectors:
    """A role that stands for several collectors: each asks again as soon as it is answered."""

    def __init__(self, name: str, inference: Any, store: Any, streams: int, observation: Observation) -> None:
        self.name = name
        self._inference = Replicas({"inference_0": inference}, 0, store, name)
        self._observation = observation
        self._open: deque[tuple[int, object, float]] = deque()
        self._answers: list[list[float]] = []
        self._streams = streams

    def step(self) -> bool:
        """Take the answers that are there, in the order of the questions."""
        if not self._open:
            for stream in range(self._streams):
                self._ask(stream)
        stream, ticket, asked = self._open[0]
        decisions = self._inference.poll(ticket)
        if decisions is None:
            return False
        self._open.popleft()
        self._answers.append([stream, asked, time.time(), decisions.version])
        self._ask(stream)
        return True

    def _ask(self, stream: int) -> None:
        self._open.append((stream, self._inference.submit(self._observation), time.time()))

    def wait_for_work(self, timeout_s: float) -> None:
        """Until the oldest question is answered."""
        if self._open:
            self._inference.wait(self._open[0][1], timeout_s)

    def state(self) -> State:
        """Per answer: collector, time asked, time answered, version."""
        return {"answers": self._answers}

    def load(self, state: State) -> None:
        """Nothing to continue from."""

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class ThroughRay:
    """What the service did in a process of its own."""

    pairs: list[Pair]
    row: dict[str, float]
    old_decisions: list[int]
    """Per publish and collector: decisions that it asked for afterwards and that the old weights still made."""
    last_collector_s: list[float]
    """Per publish: until the last collector had an answer of the new weights."""
    one_decision_s: float
    """Median from question to answer."""


def through_ray(context: Context, bare: Bare, config: InferenceConfig, size: Size) -> ThroughRay:
    """Collectors in other processes: twice as many as fill a batch."""
    host = RayHost(RayHostConfig())
    try:
        store = host.place_service("store", WeightStore)
        arrays = module_arrays(context.make_policy())
        store.publish(POLICY, 0, arrays)
        inference = host.place_role(
            "inference_0", partial(MeasuredService, context, config, store, exact=False), serves=True
        )
        streams = -(-2 * -(-config.max_batch // ROWS) // PROCESSES)
        for index in range(PROCESSES):
            name = f"rollout_{index}"
            build = partial(Collectors, name, inference, store, streams, observations(context, ROWS))
            host.place_role(name, build)
        host.start()
        pairs, rows = [], []
        for _ in range(size.pairs):
            row, before = ray_stretch(host, size)
            rows.append(row)
            pairs.append(pair(row, row["wall_s"], before, bare, config.max_batch, size))
        published = publish_meanwhile(host, store, arrays, size)
        host.pause(30.0)
        answers = host.states([])
        logs = [answers[f"rollout_{index}"]["answers"] for index in range(PROCESSES)]
        return ThroughRay(pairs, joined(rows), *after_publish(logs, published))
    finally:
        host.close()


def ray_stretch(host: RayHost, size: Size) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of one saturated stretch, and those taken right before it; everything stands still afterwards."""
    host.resume()
    time.sleep(0.3 * size.stretch_s)
    before = host.metrics()["inference_0"]
    time.sleep(size.stretch_s)
    row = host.metrics()["inference_0"]
    host.pause(30.0)
    return row, before


def publish_meanwhile(host: RayHost, store: Any, arrays: dict[str, Any], size: Size) -> list[float]:
    """Times at which versions 1, 2, … were there to be fetched."""
    host.resume()
    times = []
    for version in range(1, size.publishes + 1):
        time.sleep(0.25 * size.stretch_s)
        store.publish(POLICY, version, arrays)
        times.append(time.time())
    time.sleep(0.5 * size.stretch_s)
    return times


def after_publish(
    logs: list[list[list[float]]], published: list[float]
) -> tuple[list[int], list[float], float]:
    """Old decisions per publish and collector, seconds until the last collector, median seconds of a decision."""
    old, last = [], []
    for version, at in enumerate(published, start=1):
        firsts = []
        for log in logs:
            for stream in {answer[0] for answer in log}:
                mine = [answer for answer in log if answer[0] == stream]
                old.append(sum(asked > at and made < version for _, asked, _, made in mine))
                firsts += [min((done for _, _, done, made in mine if made >= version), default=np.inf) - at]
        last.append(max(firsts))
    took = [done - asked for log in logs for _, asked, done, _ in log]
    return old, last, float(np.median(took))
