"""Insert and sample rates of replay buffers: ours in memory, dm-reverb and torchrl, in one run on one machine.

Episodes of 60 decisions at 64 and 224 pixels are stored and read back as windows of 5 decisions (a batch of 64) and as whole
segments; then ours at capacities from 1e3 to 1e6 rows, all full, with frames of 64 pixels (a million take 14 GB). torchrl is used with
LazyMemmapStorage and SliceSampler, dm-reverb with a server in this process, TrajectoryWriter and its client; whoever is not
installed is left out. Run with ``OMP_NUM_THREADS=1``. Writes ``results/replay.{json,png}``, prints a table and one JSON object as
its last line. ``--quick``: a minute, fewer steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from buffers.memory import MemoryBuffer
from buffers.records import Record, RecordSpec
from buffers.shelf import bytes_per_row
from configs.system import BufferConfig

RESULTS = Path(__file__).parent / "results"
LENGTH, WINDOW, BATCH, SEGMENTS = 60, 5, 64, 8
"""Decisions of an episode; decisions of a window; windows of a batch; episodes read as one batch of segments."""
SIZES = (64, 224)
CAPACITY_PIXELS = 64
CAPACITIES = (1_000, 10_000, 100_000, 1_000_000)


@dataclass
class Result:
    """Rates of one store at one frame size; steps are decisions with their frames."""

    store: str
    pixels: int
    inserted_steps_per_s: float
    windows_per_s: float
    segment_steps_per_s: float
    stored_bytes_per_step: float | None
    """None where the store does not tell."""
    raw_bytes_per_step: float


def spec_of(pixels: int) -> RecordSpec:
    """One camera, chunks of 8 actions with 7 dimensions, 8 proprio numbers."""
    return RecordSpec(
        cameras={"front": (pixels, pixels)}, proprio_dim=8, chunk=8, replan=8, action_dim=7, bins=256, max_decisions=LENGTH
    )  # fmt: skip


def episode(spec: RecordSpec, number: int, generator: np.random.Generator) -> Record:
    """Frames of smooth noise: neither free to compress nor impossible to."""
    (pixels, _) = spec.cameras["front"]
    coarse = generator.integers(0, 256, (LENGTH + 1, pixels // 8, pixels // 8, 3), np.uint8)
    frames = coarse.repeat(8, 1).repeat(8, 2)
    K, D = spec.chunk, spec.action_dim
    return Record(
        images={"front": frames},
        proprio=generator.normal(size=(LENGTH + 1, spec.proprio_dim)).astype(np.float32),
        instruction="reach",
        tokens=generator.integers(0, spec.bins, (LENGTH, K, D)).astype(np.int16),
        log_probs=generator.normal(size=(LENGTH, K, D)).astype(np.float32),
        valid=np.ones((LENGTH, K), np.bool_),
        rewards=np.zeros(LENGTH, np.float32),
        values=np.zeros(LENGTH, np.float32),
        version=np.zeros(LENGTH, np.int32),
        terminated=False, truncated=True, success=False, task="reach", seed=number, episode_id=number,
    )  # fmt: skip


class Store(Protocol):
    """What is measured."""

    def insert(self, record: Record) -> None:
        """One episode."""
        ...

    def windows(self) -> None:
        """A batch of windows."""
        ...

    def segments(self) -> int:
        """A batch of whole episodes; how many steps it had."""
        ...

    def stored_bytes(self, steps: int) -> float | None:
        """Per step."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Ours:
    """The memory backend."""

    def __init__(self, spec: RecordSpec, rows: int) -> None:
        self._row = bytes_per_row(spec)
        config = BufferConfig(max_bytes=rows * self._row, held_out=0.0, reuse_limit=1_000_000)
        self.buffer = MemoryBuffer(spec, config, seed=0, name="real")

    def insert(self, record: Record) -> None:
        """As a rollout worker does."""
        self.buffer.append(record)

    def windows(self) -> None:
        """As the observation model's learner does."""
        self.buffer.windows(BATCH, 1, WINDOW - 1)

    def segments(self) -> int:
        """As the policy learner does."""
        lease = self.buffer.lease(SEGMENTS * LENGTH)
        assert lease is not None
        self.buffer.commit(lease.lease_id)
        return int(lease.batch.lengths.sum())

    def stored_bytes(self, steps: int) -> float:
        """All that the buffer counts."""
        return float(self.buffer.stats()["bytes"]) / steps

    def close(self) -> None:
        """Free the memory."""
        self.buffer.close()


def _steps(record: Record) -> dict[str, Any]:
    return {
        "front": record.images["front"][:-1], "proprio": record.proprio[:-1], "tokens": record.tokens, "log_probs": record.log_probs,
        "valid": record.valid, "rewards": record.rewards, "values": record.values, "version": record.version,
    }  # fmt: skip


class Reverb:
    """A server in this process; windows at every step, and whole episodes."""

    def __init__(self, spec: RecordSpec, rows: int) -> None:
        import reverb

        def table(name: str, size: int) -> Any:
            limiter = reverb.rate_limiters.MinSize(1)
            return reverb.Table(name, reverb.selectors.Uniform(), reverb.selectors.Fifo(), size, limiter)

        self._server = reverb.Server([table("windows", rows), table("segments", max(1, rows // LENGTH))])
        self._client = reverb.Client(f"localhost:{self._server.port}")
        self._writer = self._client.trajectory_writer(num_keep_alive_refs=LENGTH)

    def insert(self, record: Record) -> None:
        """All windows and the episode, confirmed by the server."""
        steps = _steps(record)
        for row in range(LENGTH):
            self._writer.append({name: array[row] for name, array in steps.items()})
            if row >= WINDOW - 1:
                history = self._writer.history
                window = {name: history[name][-WINDOW:] for name in steps}
                self._writer.create_item("windows", 1.0, window)
        whole = {name: self._writer.history[name][:] for name in steps}
        self._writer.create_item("segments", 1.0, whole)
        self._writer.end_episode()

    def _batch(self, table: str, count: int) -> int:
        drawn = [sample.data for sample in self._client.sample(table, count, emit_timesteps=False)]
        arrays = [np.stack(column) for column in zip(*drawn, strict=True)]
        return arrays[0].shape[0] * arrays[0].shape[1]

    def windows(self) -> None:
        """Stacked, as a learner needs them."""
        self._batch("windows", BATCH)

    def segments(self) -> int:
        """Likewise."""
        return self._batch("segments", SEGMENTS)

    def stored_bytes(self, steps: int) -> None:
        """The server does not tell."""

    def close(self) -> None:
        """Stop the server."""
        self._writer.close()
        self._server.stop()


class TorchRL:
    """LazyMemmapStorage and SliceSampler."""

    def __init__(self, spec: RecordSpec, rows: int) -> None:
        from torchrl.data import LazyMemmapStorage, ReplayBuffer, SliceSampler

        self._folder = tempfile.TemporaryDirectory()
        storage = LazyMemmapStorage(rows, scratch_dir=self._folder.name)

        def sampler(length: int) -> Any:
            return SliceSampler(slice_len=length, traj_key="episode", cache_values=True, strict_length=True)

        self._windows = ReplayBuffer(storage=storage, sampler=sampler(WINDOW), batch_size=BATCH * WINDOW)
        self._segments = ReplayBuffer(storage=storage, sampler=sampler(LENGTH), batch_size=SEGMENTS * LENGTH)
        self._count = 0

    def insert(self, record: Record) -> None:
        """One episode as a tensordict."""
        import torch
        from tensordict import TensorDict

        steps = {
            name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in _steps(record).items()
        }
        steps["episode"] = torch.full((LENGTH,), self._count)
        self._count += 1
        self._windows.extend(TensorDict(steps, [LENGTH]))

    def windows(self) -> None:
        """A batch."""
        self._windows.sample()

    def segments(self) -> int:
        """A batch."""
        return int(self._segments.sample().shape[0])

    def stored_bytes(self, steps: int) -> float:
        """Blocks of its files."""
        files = [path for path in Path(self._folder.name).rglob("*") if path.is_file()]
        return sum(path.stat().st_blocks * 512 for path in files) / steps

    def close(self) -> None:
        """Delete its files."""
        del self._windows, self._segments
        self._folder.cleanup()


STORES: dict[str, tuple[str, Callable[[RecordSpec, int], Store]]] = {
    "ours": ("numpy", Ours),
    "dm-reverb": ("reverb", Reverb),
    "torchrl": ("torchrl", TorchRL),
}
"""Name to the package that it needs and what makes it."""


def per_second(work: Callable[[], int], seconds: float) -> float:
    """Median of five stretches of what ``work`` counts, after one call to warm up."""
    work()
    rates = []
    for _ in range(5):
        began, done = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds / 5:
            done += work()
        rates.append(done / elapsed)
    return float(np.median(rates))


def measure(name: str, pixels: int, episodes: int, seconds: float) -> Result:
    """All rates of one store at one frame size."""
    spec, generator = spec_of(pixels), np.random.default_rng(0)
    records = [episode(spec, number, generator) for number in range(min(episodes, 16))]
    store = STORES[name][1](spec, episodes * (LENGTH + 1))
    try:
        began = time.perf_counter()
        for number in range(episodes):
            store.insert(records[number % len(records)])
        inserted = episodes * LENGTH / (time.perf_counter() - began)
        raw = sum(array[0].nbytes for array in _steps(records[0]).values())
        return Result(
            name, pixels, inserted,
            per_second(lambda: (store.windows(), BATCH)[1], seconds),
            per_second(store.segments, seconds), store.stored_bytes(episodes * LENGTH), float(raw),
        )  # fmt: skip
    finally:
        store.close()


def by_capacity(capacities: tuple[int, ...], seconds: float) -> dict[str, float]:
    """Milliseconds of a batch of windows from a full buffer of each capacity in rows. The largest is measured in turn with
    the smallest, so that a machine that changes its pace changes both.
    """
    spec, generator = spec_of(CAPACITY_PIXELS), np.random.default_rng(0)
    records = [episode(spec, number, generator) for number in range(16)]
    stores = {}
    for capacity in capacities:
        stores[capacity] = Ours(spec, capacity)
        for number in range(-(-capacity // (LENGTH + 1))):
            stores[capacity].insert(records[number % 16])
    times: dict[int, list[float]] = {capacity: [] for capacity in capacities}
    for _ in range(5):
        for capacity, store in stores.items():
            rate = per_second(lambda store=store: (store.windows(), 1)[1], seconds / 5)  # type: ignore[misc]
            times[capacity].append(1e3 / rate)
    return {str(capacity): float(np.median(values)) for capacity, values in times.items()}


def plot(results: list[Result], times: dict[str, float], path: Path) -> None:
    """Windows and insertions by store, and the time by capacity."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(17, 4), constrained_layout=True)
    labels = [f"{result.store}\n{result.pixels} px" for result in results]
    for axis, key, title in (
        (axes[0], "inserted_steps_per_s", "steps inserted per second"),
        (axes[1], "windows_per_s", f"windows of {WINDOW} per second"),
        (axes[2], "segment_steps_per_s", "steps of whole segments per second"),
    ):
        axis.bar(range(len(results)), [getattr(result, key) for result in results])
        axis.set_xticks(range(len(results)), labels, fontsize=7)
        axis.set(title=title, yscale="log")
        axis.grid(alpha=0.3, axis="y")
    axes[3].plot([int(key) for key in times], list(times.values()), marker="o")
    axes[3].set(
        title=f"a batch of {BATCH} windows, ours", xscale="log", xlabel="capacity in rows", ylabel="ms"
    )
    axes[3].set_ylim(bottom=0)
    axes[3].grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def ratio(results: list[Result], other: str, rate: str) -> float | None:
    """The smallest of ours over ``other``'s ``rate`` over the frame sizes; None where it is not installed."""
    rates = {(result.store, result.pixels): getattr(result, rate) for result in results}
    pairs = [rates["ours", pixels] / rates[other, pixels] for pixels in SIZES if (other, pixels) in rates]
    return round(min(pairs), 2) if pairs else None


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a minute, fewer steps")
    quick = parser.parse_args().quick
    seconds = 0.5 if quick else 4.0
    episodes = {64: 40 if quick else 300, 224: 10 if quick else 60}
    results = []
    for pixels in SIZES:
        for name, (package, _) in STORES.items():
            if find_spec(package) is None:
                print(f"{name} is not installed: left out")
                continue
            result = measure(name, pixels, episodes[pixels], seconds)
            stored = "-" if result.stored_bytes_per_step is None else f"{result.stored_bytes_per_step:,.0f}"
            print(
                f"{name:10} {pixels:4} px: {result.inserted_steps_per_s:10,.0f} steps/s in, {result.windows_per_s:10,.0f} windows/s,"
                f" {result.segment_steps_per_s:10,.0f} segment steps/s, {stored} bytes a step of {result.raw_bytes_per_step:,.0f} raw"
            )
            results.append(result)
    times = by_capacity(CAPACITIES, seconds)
    print("  ".join(f"{int(key):,} rows: {value:.3f} ms a batch" for key, value in times.items()))
    summary = {
        "windows_vs_reverb": ratio(results, "dm-reverb", "windows_per_s"),
        "windows_vs_torchrl": ratio(results, "torchrl", "windows_per_s"),
        "segments_vs_reverb": ratio(results, "dm-reverb", "segment_steps_per_s"),
        "segments_vs_torchrl": ratio(results, "torchrl", "segment_steps_per_s"),
        "time_1e6_over_1e3": round(times["1000000"] / times["1000"], 3),
    }
    RESULTS.mkdir(exist_ok=True)
    suffix = "_quick" if quick else ""
    saved = {**summary, "results": [asdict(result) for result in results], "ms_by_capacity": times}
    (RESULTS / f"replay{suffix}.json").write_text(json.dumps(saved, indent=1) + "\n")
    plot(results, times, RESULTS / f"replay{suffix}.png")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
