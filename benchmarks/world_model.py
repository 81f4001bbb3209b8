"""Training steps and imagined frames per second of the observation model, on one thread, against a plain diffusers loop.

Both sides take the same uint8 windows and end with updated weights, or with uint8 frames. Each runs in a process of its
own, since the C library reads its allocator's settings when a process starts; rates are per second of processor time.
``--quick``: less of the same. Prints tables and one JSON object as its last line; writes results/world_model.json and
results/world_model.png.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from platform.command import ENVIRONMENT
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from configs.obs_model import ObsModelConfig
from world_models.base import ModelSpec, normalized_actions
from world_models.obs_model import ObservationModel
from world_models.training import ObsModelTrainer

RESULTS = Path(__file__).parent / "results"
SPEC = ModelSpec(
    cameras={"top": (32, 32)}, proprio_dim=3, chunk=4, replan=4, action_dim=3, bins=16, num_words=8,
    instruction_length=6,
)  # fmt: skip
"""As the tabletop's reach."""
CONFIG = ObsModelConfig(precision="bfloat16", rollout_start=10**9)
"""The default model, trained on single transitions: the plain loop has no chains."""
STEPS = 3
BATCHES = (16, 48, 128, 256)
ALLOCATOR = {name: value for name, value in ENVIRONMENT.items() if name.startswith("MALLOC")}


def windows(rows: int) -> Any:
    """Random windows: speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    length = CONFIG.history + 1
    return SimpleNamespace(
        frames={name: rng.integers(0, 256, (rows, length, *size, 3), np.uint8) for name, size in SPEC.cameras.items()},
        proprio=rng.random((rows, length, SPEC.proprio_dim), np.float32),
        tokens=rng.integers(0, SPEC.bins, (rows, 1, SPEC.chunk, SPEC.action_dim)).astype(np.int16),
        mask=np.ones((rows, 1), np.bool_),
        instructions=["1"] * rows,
    )  # fmt: skip


def encode(instructions: list[str]) -> Any:
    """One word each."""
    ids = np.zeros((len(instructions), SPEC.instruction_length), np.int64)
    ids[:, 0] = 1
    return ids


def rate(work: Callable[[], Any], seconds: float) -> float:
    """Calls per second of processor time, median of three stretches, after two calls to warm up."""
    work()
    work()
    rates = []
    for _ in range(3):
        began, calls = time.process_time(), 0
        while (spent := time.process_time() - began) < seconds / 3:
            work()
            calls += 1
        rates.append(calls / spent)
    return float(np.median(rates))


def tensors(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions and words of a batch."""
    actions = normalized_actions(torch.from_numpy(batch.tokens[:, 0]), SPEC.parts)
    return actions, torch.from_numpy(encode(batch.instructions))


def plain(seconds: float) -> dict[str, float]:
    """The diffusers loop."""
    from benchmarks.diffusers_loop import DiffusersLoop

    loop, batch = DiffusersLoop(SPEC, CONFIG), windows(CONFIG.batch)
    actions, words = tensors(batch)
    return {
        "train": rate(lambda: loop.train(batch, actions, words), seconds),
        "sample": CONFIG.batch * rate(lambda: loop.sample(batch, actions, words, STEPS), seconds),
    }


def ours(seconds: float, *, channels_last: bool = True, **changes: Any) -> dict[str, float]:
    """Our trainer and our sampler."""
    config = replace(CONFIG, **changes)
    torch.manual_seed(0)
    model = ObservationModel(SPEC, config)
    if not channels_last:
        in_torchs_layout(model)
    trainer = ObsModelTrainer(model, config, encode=encode, seed=0)
    batch = windows(config.batch)
    return {
        "train": rate(lambda: trainer.update(batch), seconds),
        "sample": config.batch * rate(sampler(trainer.averaged, batch, config.sampling_steps), seconds),
    }


def in_torchs_layout(model: ObservationModel) -> None:
    """Let the U-Net compute with channels first, as it does unless told otherwise."""
    unet = model.denoiser.unet
    unet.to(memory_format=torch.contiguous_format)
    unet.register_forward_pre_hook(lambda _, given: (given[0].contiguous(), *given[1:]))


def sampler(model: ObservationModel, batch: Any, steps: int) -> Callable[[], Any]:
    """A call that predicts one frame in each row."""
    actions, words = tensors(batch)
    past = {
        name: torch.from_numpy(frame[:, : model.config.history].copy())
        for name, frame in batch.frames.items()
    }
    proprio = torch.from_numpy(batch.proprio[:, model.config.history - 1])
    generator = torch.Generator().manual_seed(0)
    return lambda: model.predict(past, proprio, actions, words, generator=generator, steps=steps)


def by_batch(seconds: float) -> dict[str, float]:
    """Frames per second of the default model by batch size, and its share of what a matrix product reaches."""
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    model = ObservationModel(SPEC, CONFIG).eval()
    result = {}
    for rows in BATCHES:
        result[str(rows)] = rows * rate(sampler(model, windows(rows), 1), seconds / 2)
    with FlopCounterMode(display=False) as counter:
        sampler(model, windows(1), 1)()
    a = torch.randn(2048, 2048, dtype=torch.bfloat16)
    peak = 2 * 2048**3 * rate(lambda: a @ a, seconds / 4)
    result["flop_per_frame"] = float(counter.get_total_flops())
    result["matmul_flop_per_s"] = peak
    return result


CASES: dict[str, tuple[bool, Callable[[float], dict[str, float]]]] = {
    "plain diffusers loop": (False, plain),
    "plain diffusers loop, allocator": (True, plain),
    "ours, float32, default allocator": (False, lambda s: ours(s, precision="float32", sampling_steps=STEPS)),
    "ours, float32": (True, lambda s: ours(s, precision="float32", sampling_steps=STEPS)),
    "ours, bfloat16": (True, lambda s: ours(s, sampling_steps=STEPS)),
    "ours, bfloat16, one step": (True, lambda s: ours(s, sampling_steps=1)),
    "ours, bfloat16, one step, channels first": (True, lambda s: ours(s, channels_last=False)),
    "ours, bfloat16, one step, not folded": (True, lambda s: ours(s, fold=1)),
    "ours, bfloat16, one step, checkpointing": (True, lambda s: ours(s, checkpointing=True)),
    "ours, bfloat16, one step, compiled": (True, lambda s: ours(s, compiled=True)),
    "by batch": (True, by_batch),
}
"""Whether the process gets the allocator's settings, and what it measures."""
SLOW = "ours, bfloat16, one step, compiled"
"""Compiles for a minute or two first."""


def in_child(name: str, seconds: float) -> dict[str, float]:
    """One case in a process of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC")}
    env |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), env.get("PYTHONPATH", "")]),
    }
    if CASES[name][0]:
        env |= ALLOCATOR
    command = [sys.executable, __file__, "--case", name, "--seconds", str(seconds)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(cases: dict[str, dict[str, float]]) -> None:
    """Rates, and times the plain loop's."""
    base = cases["plain diffusers loop"]
    print(f"{'':<44}{'updates/s':>10}{'×':>6}{'frames/s':>10}{'×':>6}   (per second of processor time)")
    for name, found in cases.items():
        print(
            f"{name:<44}{found['train']:>10.2f}{found['train'] / base['train']:>6.2f}"
            f"{found['sample']:>10.0f}{found['sample'] / base['sample']:>6.2f}"
        )


def draw(batches: dict[str, float], path: Path) -> None:
    """Frames per second against batch size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.2))
    axes.plot(BATCHES, [batches[str(rows)] for rows in BATCHES], marker="o")
    axes.set_xscale("log", base=2)
    axes.set_xticks(BATCHES, [str(rows) for rows in BATCHES])
    axes.set_xlabel("imagined worlds stepped together")
    axes.set_ylabel("frames per processor second")
    axes.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        torch.set_num_threads(1)
        print(json.dumps(CASES[given.case][1](given.seconds)))
        return
    seconds = 1.0 if given.quick else 9.0
    left_out = {"by batch", *([SLOW] if given.quick else [])}
    cases = {}
    for name in CASES:
        if name not in left_out:
            cases[name] = in_child(name, seconds)
            print(f"{name}: {cases[name]}", file=sys.stderr, flush=True)
    table(cases)
    batches = in_child("by batch", seconds)
    print("\nworlds  frames/s")
    for rows in BATCHES:
        print(f"{rows:>6}{batches[str(rows)]:>10.0f}")
    fastest = max(batches[str(rows)] for rows in BATCHES)
    share = fastest * batches["flop_per_frame"] / batches["matmul_flop_per_s"]
    print(
        f"{batches['flop_per_frame'] / 1e6:.1f} MFLOP a frame: {share:.2f} of a bfloat16 matrix product's rate"
    )
    base, best = cases["plain diffusers loop"], cases["ours, bfloat16"]
    report = {
        "benchmark": "world_model",
        "vs_diffusers_loop_train": round(best["train"] / base["train"], 2),
        "vs_diffusers_loop_sample": round(best["sample"] / base["sample"], 2),
        "frames_per_s": round(fastest),
        "share_of_bf16_matmul": round(share, 3),
        "batch": CONFIG.batch,
        "cases": cases,
        "by_batch": batches,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "world_model.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(batches, RESULTS / "world_model.png")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
