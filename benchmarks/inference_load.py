"""What ``inference.py`` measures with: the bare forward, the service, and collectors in threads of its process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from platform.context import POLICY, Context
from platform.envs.base import Observation
from platform.inference import InferenceService
from platform.metrics import Mean, joined
from platform.weights import WeightStore, module_arrays

import numpy as np
import torch

from configs.system import InferenceConfig

ROWS = 32
"""Observations that a collector asks for at once: the environments of a rollout worker."""
SEED = 0


@dataclass(frozen=True)
class Size:
    """How much work."""

    stretch_s: float
    pairs: int
    publishes: int
    light_s: float


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
