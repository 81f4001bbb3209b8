"""OFT's continuous head: its files, its arithmetic, the distribution around it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

pytest.importorskip("transformers")

from configs.errors import CheckpointError, ConfigError
from configs.openvla import OpenVLAConfig
from policies.base import make_policy
from policies.openvla.building import checkpoint_of
from policies.openvla.continuous import ContinuousOpenVLA
from tests.openvla_helper import WIDTH, checkpoint_config, make, make_spec, observe, write_checkpoint

DIMS = 3
Weights = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _forget() -> None:
    checkpoint_of.cache_clear()


def head_weights() -> Weights:
    """Under the names of OFT's files, as DDP saves them."""
    generator = torch.Generator().manual_seed(3)
    shapes: dict[str, tuple[int, ...]] = {
        "layer_norm1.weight": (DIMS * WIDTH,), "layer_norm1.bias": (DIMS * WIDTH,), "fc1.weight": (WIDTH, DIMS * WIDTH),
        "fc1.bias": (WIDTH,), "layer_norm2.weight": (WIDTH,), "layer_norm2.bias": (WIDTH,),
        "fc2.weight": (DIMS, WIDTH), "fc2.bias": (DIMS,),
    }  # fmt: skip
    for block in range(2):
        start = f"mlp_resnet_blocks.{block}.ffn"
        shapes |= {f"{start}.0.weight": (WIDTH,), f"{start}.0.bias": (WIDTH,)}
        shapes |= {f"{start}.1.weight": (WIDTH, WIDTH), f"{start}.1.bias": (WIDTH,)}
    return {
        f"module.model.{name}": (torch.randn(shape, generator=generator) * 0.1).bfloat16()
        for name, shape in shapes.items()
    }


def projector_weights() -> Weights:
    generator = torch.Generator().manual_seed(4)
    shapes = {"fc1.weight": (WIDTH, 3), "fc1.bias": (WIDTH,), "fc2.weight": (WIDTH, WIDTH), "fc2.bias": (WIDTH,)}  # fmt: skip
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_base(folder: Path, head: Weights | None = None) -> Path:
    described = checkpoint_config()
    described["norm_stats"]["bridge"]["proprio"] = {"q01": [0.0, 0.2, 0.0], "q99": [0.5, 0.8, 2.0]}
    write_checkpoint(folder, config=described)
    save_file(head_weights() if head is None else head, folder / "action_head.safetensors")
    save_file(projector_weights(), folder / "proprio_projector.safetensors")
    return folder


def config(base: Path | None, **changes: Any) -> OpenVLAConfig:
    given = {"base": None if base is None else str(base), "unnorm_key": "bridge", "head": "l1", "chunk": 2, "replan": 2}  # fmt: skip
    return OpenVLAConfig(**{**given, **changes})


def norm(x: Tensor, own: Weights, name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], own[f"{name}.weight"], own[f"{name}.bias"])


def linear(x: Tensor, own: Weights, name: str) -> Tensor:
    return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]


def regressed(states: Tensor) -> Tensor:
    """The published rule, written once more from the names alone."""
    own = {name.removeprefix("module.model."): x.float() for name, x in head_weights().items()}
    x = states.reshape(len(states), 2, DIMS * WIDTH)
    x = linear(norm(x, own, "layer_norm1"), own, "fc1").relu()
    for block in range(2):
        start = f"mlp_resnet_blocks.{block}.ffn"
        x = x + linear(norm(x, own, f"{start}.0"), own, f"{start}.1").relu()
    return linear(norm(x, own, "layer_norm2"), own, "fc2")


def test_the_mean_is_the_heads_answer(tmp_path: Path) -> None:
    policy = make(config(write_base(tmp_path / "base")))
    assert isinstance(policy, ContinuousOpenVLA)
    obs = observe(policy, 4)
    means = regressed(policy._states(obs).float())
    assert float(means.detach().std()) > 0.01
    logits = policy(obs).logits
    wanted = -0.5 * ((policy.centres - means.unsqueeze(-1)) / 0.05) ** 2
    assert torch.allclose(logits, wanted, atol=1e-2)
    inside = means.clamp(-1, 1)
    nearest = (inside.unsqueeze(-1) - policy.centres).abs().argmin(dim=-1)
    assert torch.equal(policy.act(obs, greedy=True).tokens.clamp(max=254), nearest.clamp(max=254))


def test_recorded_log_probs_are_recomputed_and_the_head_trains(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    policy = make(config(write_base(tmp_path / "base"), lora_rank=2, freeze_vision=True))
    obs = observe(policy, 5)
    tokens, log_probs, _ = policy.act(obs, greedy=False, generator=torch.Generator().manual_seed(1))
    again, _ = policy.log_probs(obs.take(slice(1, 4)), tokens[1:4])
    assert torch.allclose(again, log_probs[1:4], atol=1e-4)
    again.sum().backward()
    trained = {id(each) for each in policy.actor_parameters()}
    names = {name for name, each in policy.named_parameters() if id(each) in trained}
    assert {name for name in names if name.startswith("action_head")} == {
        f"action_head.{name.removeprefix('module.')}" for name in head_weights()
    }
    assert not any("lm_head" in name for name in names)
    assert all(each.grad is not None for each in policy.action_head.parameters())  # type: ignore[union-attr]
    assert "network.language_model.lm_head.weight" in policy.frozen_names


def test_proprioception_is_read_as_it_was_trained(tmp_path: Path) -> None:
    policy = make(config(write_base(tmp_path / "base"), proprio=True))
    assert policy.proprio is not None
    raw = torch.tensor([[0.25, 0.35, 3.0]])
    own = projector_weights()
    scaled = torch.tensor([[0.0, -0.5, 1.0]])
    expected = linear(F.gelu(linear(scaled, own, "fc1")), own, "fc2")
    assert torch.allclose(policy.proprio(raw), expected, atol=1e-5)


def test_a_fresh_model_has_the_head_too() -> None:
    policy = make(OpenVLAConfig(width=32, layers=1, heads=2, vision_width=32, vision_layers=2, bins=16, head="l1"), make_spec_of_16())  # fmt: skip
    obs = observe(policy, 2)
    tokens = policy.act(obs, greedy=False, generator=torch.Generator().manual_seed(0)).tokens
    assert tokens.shape == (2, 4, 3)
    assert int(tokens.max()) < 16


def make_spec_of_16() -> Any:
    from dataclasses import replace

    return replace(make_spec(chunk=4), bins=16)


def without(name: str) -> Weights:
    return {key: x for key, x in head_weights().items() if not key.endswith(name)}


REFUSED = {
    "tokens": "action_head.safetensors is there: the checkpoint acts by a continuous head, policy.head=tokens",
    "pickled": "action_head--150000_checkpoint.pt is pickled",
    "no head": "action_head.safetensors is missing",
    "missing tensor": r"action_head.safetensors has nothing as model.fc2.bias, the model wants \[3\]",
    "extra tensor": r"action_head.safetensors has \[2\] as noise_predictor.weight, the model wants nothing",
    "other dimensions": r"has \[7\] as model.fc2.bias, the model wants \[3\]",
    "diffusion": "the checkpoint has OFT's diffusion head, Reverie reads action tokens and the L1 head",
    "film": "vision_backbone--150000_checkpoint.pt is there: the checkpoint has OFT's FiLM",
    "no proprio statistics": "are of 0 proprio dimensions, the environment has 3",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path: Path, what: str) -> None:
    heads: dict[str, Weights] = {
        "missing tensor": without("fc2.bias"),
        "extra tensor": {**head_weights(), "noise_predictor.weight": torch.zeros(2)},
        "other dimensions": {**without("fc2.bias"), "module.model.fc2.bias": torch.zeros(7)},
    }
    folder = write_base(tmp_path / "base", heads.get(what))
    beside = {"pickled": "action_head", "diffusion": "noisy_action_projector", "film": "vision_backbone"}
    if what in ("pickled", "no head"):
        (folder / "action_head.safetensors").unlink()
    if what in beside:
        (folder / f"{beside[what]}--150000_checkpoint.pt").write_bytes(b"never opened")
    if what == "no proprio statistics":
        (folder / "config.json").write_text(json.dumps(checkpoint_config()))
    changes = {"tokens": {"head": "tokens"}, "no proprio statistics": {"proprio": True}}.get(what, {})
    with pytest.raises(CheckpointError, match=REFUSED[what]) as refusal:
        make_policy(config(folder, **changes), make_spec())
    assert "\n" not in str(refusal.value)


def test_one_token_after_another_has_no_such_head() -> None:
    with pytest.raises(ConfigError, match=r"policy\.head=l1 answers for all places at once"):
        OpenVLAConfig(head="l1", decoding="autoregressive")
