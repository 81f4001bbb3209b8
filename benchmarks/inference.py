"""The inference service against the bare batched forward and against one call per request, in one run.

    python benchmarks/inference.py [--quick]

Saturated collectors ask again as soon as they are answered. They do so from threads of the service's process, and from
other processes through Ray, as in a run. Stretches of the service alternate with stretches of the bare forward (the same
policy, the same batch, nothing else), so that other programs on the machine slow both; shares are medians of such pairs.
Through Ray new weights are published meanwhile: how many decisions does a collector still make under the old ones? Batch
sizes and waits are counted with saturated collectors and with such as step an environment between two questions. Takes about
three minutes on two cores, ``--quick`` less than one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from platform.command import ENVIRONMENT
from platform.context import POLICY, Context, make_context
from platform.envs.base import Observation
from platform.hosts.ray_host import RayHost
from platform.inference import InferenceService
from platform.metrics import Mean, joined
from platform.replicas import Replicas
from platform.report import hardware
from platform.role import State
from platform.weights import WeightStore, module_arrays
from typing import Any

import numpy as np
import torch
from inference_report import plot, table

from configs.loader import load_config
from configs.schema import TrainConfig
from configs.system import InferenceConfig, RayHostConfig

RESULTS = Path(__file__).parent / "results"
ROWS = 32
"""Observations that a collector asks for at once: the environments of a rollout worker."""
PROCESSES = 2
SEED = 0


@dataclass(frozen=True)
class Size:
    """How much work."""

    stretch_s: float
    pairs: int
    publishes: int
    light_s: float


FULL, QUICK = Size(5.0, 7, 20, 10.0), Size(1.2, 3, 4, 2.0)


@dataclass(frozen=True)
class Pair:
    """The service and the bare forward, one after the other."""

    served_per_s: float
    bare_per_s: float
    served_per_processor_s: float
    bare_per_processor_s: float


def observations(context: Context, count: int) -> Observation:
    """Frames of noise: the forward costs the same whatever they show."""
    rng = np.random.default_rng(SEED)
    spec = context.env_spec
    images = {name: rng.integers(0, 256, (count, *size, 3), np.uint8) for name, size in spec.cameras.items()}
    proprio = rng.normal(size=(count, spec.proprio_dim)).astype(np.float32)
    return Observation(images, proprio, [spec.instructions[0]] * count)


class Bare:
    """The policy's forward over one batch, again and again."""

    def __init__(self, context: Context) -> None:
        self._context, self._policy = context, context.make_policy().eval()
        self._generator = torch.Generator().manual_seed(SEED)

    def rates(self, batch: int, seconds: float) -> tuple[float, float]:
        """Observations per second, and per second of processor time."""
        tensors = self._context.tensors(observations(self._context, batch))
        began, processor, done = time.monotonic(), time.thread_time(), 0
        with torch.inference_mode():
            while time.monotonic() - began < seconds:
                self._policy.act(tensors, greedy=False, generator=self._generator)
                done += batch
        return done / (time.monotonic() - began), done / (time.thread_time() - processor)


class MeasuredService(InferenceService):
    """Tells the processor time of its process too."""

    def metrics(self) -> dict[str, float]:
        """The service's, with ``processor_s`` since the process began and ``rows`` since the last call."""
        row = super().metrics()
        sizes = row.get("inference/batch_size", Mean(0.0, 0))
        assert isinstance(sizes, Mean)
        return {**row, "processor_s": time.process_time(), "rows": sizes * sizes.count}


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


def in_threads(
    context: Context, bare: Bare, config: InferenceConfig, size: Size
) -> tuple[list[Pair], dict[str, float]]:
    """Collectors in threads of the service's process: twice as many as fill a batch."""
    store = first_store(context)
    collectors = 2 * -(-config.max_batch // ROWS)
    pairs, rows = [], []
    for _ in range(size.pairs):
        service = MeasuredService(context, config, store, exact=False)
        with asking(service, collectors, observations(context, ROWS), lambda: None):
            time.sleep(0.3 * size.stretch_s)
            before = service.metrics()
            began = time.monotonic()
            time.sleep(size.stretch_s)
            rows.append(service.metrics())
            wall = time.monotonic() - began
        pairs.append(pair(rows[-1], wall, before, bare, config.max_batch, size))
    return pairs, joined(rows)


def light(context: Context, config: InferenceConfig, size: Size) -> dict[str, float]:
    """Eight collectors of four environments that wait for a simulator between two questions."""
    rng = np.random.default_rng(SEED)
    service = MeasuredService(context, config, first_store(context), exact=False)
    with asking(
        service, 8, observations(context, 4), lambda: time.sleep(float(rng.lognormal(np.log(0.03), 0.7)))
    ):
        time.sleep(size.light_s)
        return service.metrics()


@contextmanager
def asking(
    service: InferenceService, collectors: int, observation: Observation, between: Callable[[], None]
) -> Iterator[None]:
    """The service's loop and its collectors, each in a thread of its own."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            service.wait_for_work(0.1)
            service.step()

    def collect() -> None:
        while not ended.is_set():
            ticket = service.submit(observation)
            while not ended.is_set() and service.wait_for(ticket, 0.1) is None:
                pass
            between()

    threads = [threading.Thread(target=work) for work in (serve, *[collect] * collectors)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        service.close()


def pair(
    row: dict[str, float], wall: float, before: dict[str, float], bare: Bare, batch: int, size: Size
) -> Pair:
    """What was served, and the bare forward right after."""
    bare_per_s, bare_per_processor_s = bare.rates(batch, size.stretch_s)
    processor = row["processor_s"] - before["processor_s"]
    return Pair(row["rows"] / wall, bare_per_s, row["rows"] / processor, bare_per_processor_s)


def first_store(context: Context) -> WeightStore:
    """With version 0."""
    store = WeightStore()
    store.publish(POLICY, 0, module_arrays(context.make_policy()))
    return store


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
            name = f"collectors_{index}"
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
        logs = [answers[f"collectors_{index}"]["answers"] for index in range(PROCESSES)]
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


def counts(row: dict[str, float], name: str) -> dict[str, int]:
    """One histogram of a row of metrics."""
    prefix = f"inference/{name}/"
    return {key.removeprefix(prefix): int(value) for key, value in row.items() if key.startswith(prefix)}


def shares(pairs: list[Pair]) -> tuple[float, float]:
    """Of the bare forward: by wall time and by processor time; medians of the pairs."""
    return (
        float(np.median([p.served_per_s / p.bare_per_s for p in pairs])),
        float(np.median([p.served_per_processor_s / p.bare_per_processor_s for p in pairs])),
    )


def measure(size: Size) -> dict[str, Any]:
    """Everything, in one run."""
    torch.set_num_threads(1)
    config = load_config(TrainConfig, ["real"])
    context = make_context(config, seed=SEED, device="cpu")
    bare = Bare(context)
    sizes = (1, 8, ROWS, 64, 128, config.inference.max_batch)
    bare_rates = {batch: bare.rates(batch, 0.4 * size.stretch_s)[0] for batch in sizes}
    threads, threads_row = in_threads(context, bare, config.inference, size)
    light_row = light(context, config.inference, size)
    ray = through_ray(context, bare, config.inference, size)
    by_wall, by_processor = shares(ray.pairs)
    threads_by_wall, threads_by_processor = shares(threads)
    served = float(np.median([p.served_per_s for p in ray.pairs]))
    return {
        "benchmark": "inference",
        "share_of_bare_batch": round(by_wall, 3),
        "share_by_processor_time": round(by_processor, 3),
        "share_in_threads": round(threads_by_wall, 3),
        "share_in_threads_by_processor_time": round(threads_by_processor, 3),
        "target": 0.8,
        "max_batch": config.inference.max_batch,
        "rows_per_request": ROWS,
        "decisions_per_s": round(served),
        "over_one_call_per_observation": round(served / bare_rates[1], 2),
        "bare_per_s": {str(batch): round(rate) for batch, rate in bare_rates.items()},
        "pairs": {"ray": [asdict(p) for p in ray.pairs], "threads": [asdict(p) for p in threads]},
        "publish": {
            "versions": size.publishes,
            "old_decisions_max": max(ray.old_decisions),
            "old_decisions_mean": round(float(np.mean(ray.old_decisions)), 3),
            "last_collector_median_s": round(float(np.median(ray.last_collector_s)), 3),
            "one_decision_median_s": round(ray.one_decision_s, 3),
        },
        "batches": {name: counts(row, "batches") for name, row in histograms(threads_row, light_row, ray)},
        "waits": {name: counts(row, "waits") for name, row in histograms(threads_row, light_row, ray)},
        "load_average": os.getloadavg()[0],
        "hardware": hardware(),
    }


def histograms(
    threads: dict[str, float], light_row: dict[str, float], ray: ThroughRay
) -> tuple[tuple[str, dict[str, float]], ...]:
    """Rows of metrics by the load that they counted."""
    return (
        ("saturated, Ray", ray.row),
        ("saturated, threads", threads),
        ("collectors that simulate", light_row),
    )


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same measurement in less than a minute")
    quick = parser.parse_args().quick
    report = {**measure(QUICK if quick else FULL), "quick": quick}
    print(table(report))
    RESULTS.mkdir(exist_ok=True)
    name = "inference_quick" if quick else "inference"
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(report, RESULTS / f"{name}.png")
    print(json.dumps({key: value for key, value in report.items() if key != "pairs"}))


if __name__ == "__main__":
    # The allocator's settings count from a process's start.
    missing = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **missing})
    main()
