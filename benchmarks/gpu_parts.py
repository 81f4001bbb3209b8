"""What ``gpu.py`` measures. Each part yields rows as they are done, so that one which is cut short leaves what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from platform.batching import buckets
from platform.cuda_graphs import Capture, GraphedAct, capture_on_gpu
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gpu_machine import Machine, Row
from gpu_vla import CHUNK, vla
from torch import nn

from configs.errors import ReverieError
from configs.obs_model import ObsModelConfig
from configs.openvla import OpenVLAConfig
from configs.policy import PolicyConfig, SmallVLAConfig
from policies.base import Policy, PolicySpec, make_policy, observation_tensors
from world_models.base import ModelSpec
from world_models.obs_model import ObservationModel
from world_models.training import ObsModelTrainer


def inference(part: str, machine: Machine) -> Iterator[Row]:
    """A batch of the inference service by bucket: launched kernel by kernel, and as one CUDA graph; do both say the same?"""
    capture: Capture = (lambda forward: forward) if machine.rehearsal else capture_on_gpu
    most = 4 if machine.rehearsal else 256
    for kind, policy in served(machine).items():
        graphed = GraphedAct(policy, most, capture)
        for bucket in buckets(most)[::2]:
            obs = observation_tensors(*example(policy, bucket), policy.vocabulary).to(machine.device)
            noise = torch.ones(
                bucket, policy.spec.chunk, policy.spec.action_dim, policy.spec.bins, device=machine.device
            )
            ways = {
                name: partial(act, obs, greedy=False, noise=noise)
                for name, act in {"eager": policy.act, "CUDA graph": graphed}.items()
            }
            plain, replayed = (work().log_probs.clone() for work in ways.values())
            apart = f"log-probabilities apart {float((plain - replayed).abs().max()):.1e}"
            for way, work in ways.items():
                row = machine.timed(part, f"{kind}, {way}", bucket, work)
                yield replace(row, note=apart if way != "eager" else "")


def served(machine: Machine) -> dict[str, Policy]:
    """The default small policy, and one of OpenVLA's format that is bound by launches no more."""
    size = {"width": 64, "vision_width": 64} if machine.rehearsal else {
        "width": 768, "layers": 12, "heads": 12, "vision_width": 768, "vision_layers": 12, "image_size": 224, "patch": 16,
    }  # fmt: skip
    configs: dict[str, PolicyConfig] = {
        "small_vla": SmallVLAConfig(),
        "openvla of 0.2 B": OpenVLAConfig(chunk=CHUNK, replan=CHUNK, **size),  # type: ignore[arg-type]
    }
    torch.manual_seed(0)
    made = {}
    for name, config in configs.items():
        spec = PolicySpec(
            {"top": (32, 32)}, 3, config.chunk, config.replan, 3, config.bins, (-1.0,) * 3, (1.0,) * 3, ("reach the red block",),
        )  # fmt: skip
        made[name] = make_policy(config, spec).to(machine.device).eval()
    return made


def example(policy: Policy, count: int) -> tuple[dict[str, Any], Any, list[str]]:
    """Random observations: speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    frames = {name: rng.integers(0, 256, (count, *size, 3), np.uint8) for name, size in policy.spec.cameras.items()}  # fmt: skip
    proprio = rng.random((count, policy.spec.proprio_dim), dtype=np.float32)
    return frames, proprio, [policy.spec.instructions[0]] * count


def observation_model(part: str, machine: Machine) -> Iterator[Row]:
    """A training step and a predicted frame of M_obs by arithmetic, launched kernel by kernel and compiled."""
    for precision in ("float32", "bfloat16", "fp8"):
        for compiled in (False, True):
            name = f"M_obs, {precision}, {'compiled' if compiled else 'eager'}"
            if compiled and machine.rehearsal:
                yield Row(part, name, note="not run: a rehearsal compiles nothing")
                continue
            try:
                yield from one_observation_model(part, name, machine, precision=precision, compiled=compiled)
            except ReverieError as error:
                yield Row(part, name, note=f"not run: {error}")


def one_observation_model(
    part: str, name: str, machine: Machine, *, precision: str, compiled: bool
) -> Iterator[Row]:
    """Attention where the sizes suit FP8, which linear layers alone can use."""
    side, rows, channels = (16, 2, [16, 16]) if machine.rehearsal else (128, 64, [64, 128, 256])
    spec = ModelSpec({"top": (side, side)}, 3, 4, 4, 3, 16, 8, 6)
    config = ObsModelConfig(
        channels=channels, attention=[len(channels) - 1], attention_head=16, batch=rows, sampling_steps=3,
        rollout_start=10**9, precision=precision, compiled=compiled,
    )  # type: ignore[arg-type] # fmt: skip
    torch.manual_seed(0)
    model = ObservationModel(spec, config).to(machine.device)
    trainer = ObsModelTrainer(model, config, encode=words(spec), seed=0)
    batch = windows(spec, config, rows)
    yield machine.timed(part, f"{name}: training step", rows, lambda: trainer.update(batch))
    yield machine.timed(part, f"{name}: frames, 3 steps", rows, sampler(trainer.averaged, batch, machine))


def words(spec: ModelSpec) -> Callable[[Any], Any]:
    """One word each."""

    def encode(instructions: list[str]) -> Any:
        ids = np.zeros((len(instructions), spec.instruction_length), np.int64)
        ids[:, 0] = 1
        return ids

    return encode


def windows(spec: ModelSpec, config: ObsModelConfig, rows: int) -> Any:
    """Random windows of one transition."""
    rng, length = np.random.default_rng(0), config.history + 1
    return SimpleNamespace(
        frames={name: rng.integers(0, 256, (rows, length, *size, 3), np.uint8) for name, size in spec.cameras.items()},
        proprio=rng.random((rows, length, spec.proprio_dim), np.float32),
        tokens=rng.integers(0, spec.bins, (rows, 1, spec.chunk, spec.action_dim)).astype(np.int16),
        mask=np.ones((rows, 1), np.bool_), instructions=["1"] * rows,
    )  # fmt: skip


def sampler(model: nn.Module, batch: Any, machine: Machine) -> Callable[[], object]:
    """A call that predicts one frame in each row."""
    frames = {name: torch.from_numpy(each[:, :1]).to(machine.device) for name, each in batch.frames.items()}
    proprio = torch.from_numpy(batch.proprio[:, 0]).to(machine.device)
    rows, _, chunk, dims = batch.tokens.shape
    actions = torch.zeros(rows, chunk, dims, device=machine.device)
    ids = torch.ones(rows, 6, dtype=torch.int64, device=machine.device)
    generator = torch.Generator(machine.device).manual_seed(0)
    predict: Any = model.predict
    return lambda: predict(frames, proprio, actions, ids, generator=generator)


@dataclass(frozen=True)
class Part:
    """One child process."""

    measure: Callable[[str, Machine], Iterator[Row]]
    seconds: float
    """After which it is cut short; all together make eight minutes."""


PARTS = {
    "vla_full": Part(partial(vla, slim=False), 110.0),
    "vla_slim": Part(partial(vla, slim=True), 110.0),
    "inference": Part(inference, 80.0),
    "obs_model": Part(observation_model, 170.0),
}
