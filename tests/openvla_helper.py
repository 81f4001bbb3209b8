"""Tiny checkpoints in exactly OpenVLA's published format: names, config fields, statistics, tokenizer, shards with an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from configs.openvla import OpenVLAConfig
from policies.base import ObservationTensors, Policy, PolicySpec, make_policy, observation_tensors
from policies.openvla.policy import OpenVLA

INSTRUCTIONS = ("reach the red block", "put the blue block on the pad")
BINS, VOCABULARY, ROWS = 256, 576, 640
WIDTH, PATCH, SIZE = 32, 8, 32


def make_spec(cameras: tuple[str, ...] = ("top",), chunk: int = 2, action_dim: int = 3) -> PolicySpec:
    """32-pixel frames, two instructions of unequal length."""
    return PolicySpec(
        cameras=dict.fromkeys(cameras, (SIZE, SIZE)), proprio_dim=3, chunk=chunk, replan=chunk,
        action_dim=action_dim, bins=BINS, action_low=(-1.0,) * action_dim, action_high=(1.0,) * action_dim,
        instructions=INSTRUCTIONS,
    )  # fmt: skip


def make(config: OpenVLAConfig, spec: PolicySpec | None = None, seed: int = 0) -> OpenVLA:
    """A policy whose heads are not zero, so that outputs differ between observations."""
    torch.manual_seed(seed)
    policy = make_policy(config, spec or make_spec())
    assert isinstance(policy, OpenVLA)
    torch.nn.init.normal_(policy.value_head.out.weight, std=0.3)
    return policy


def small(**changes: Any) -> OpenVLAConfig:
    """A fresh model of some 60,000 parameters."""
    sizes = {
        "width": 32,
        "layers": 2,
        "heads": 2,
        "vision_width": 32,
        "vision_layers": 3,
        "chunk": 2,
        "replan": 2,
    }
    return OpenVLAConfig(**{**sizes, **changes})


def observe(policy: Policy, count: int, seed: int = 0) -> ObservationTensors:
    """Noise, with both instructions in turn."""
    rng = np.random.default_rng(seed)
    images = {
        name: rng.integers(0, 256, (count, *size, 3), dtype=np.uint8)
        for name, size in policy.spec.cameras.items()
    }
    proprio = rng.random((count, policy.spec.proprio_dim), dtype=np.float32)
    instructions = [policy.spec.instructions[i % len(policy.spec.instructions)] for i in range(count)]
    return observation_tensors(images, proprio, instructions, policy.vocabulary)


def tower_weights(prefix: str, depth: int, *, dinov2: bool, draw: Any) -> dict[str, torch.Tensor]:
    """Under timm's names, with what OpenVLA's checkpoints hold besides: last block, norm, SigLIP's pooling."""
    patches, hidden = (SIZE // PATCH) ** 2, 2 * WIDTH
    shapes = {
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,),
        "pos_embed": (1, patches, WIDTH), "norm.weight": (WIDTH,), "norm.bias": (WIDTH,),
    }  # fmt: skip
    shapes |= {"cls_token": (1, 1, WIDTH), "reg_token": (1, 4, WIDTH)} if dinov2 else {
        "attn_pool.latent": (1, 1, WIDTH), "attn_pool.q.weight": (WIDTH, WIDTH), "attn_pool.q.bias": (WIDTH,),
        "attn_pool.kv.weight": (2 * WIDTH, WIDTH), "attn_pool.kv.bias": (2 * WIDTH,),
    }  # fmt: skip
    for number in range(depth):
        block = f"blocks.{number}."
        shapes |= {
            f"{block}{name}.{kind}": (WIDTH,) for name in ("norm1", "norm2") for kind in ("weight", "bias")
        }
        linear = {
            "attn.qkv": (3 * WIDTH, WIDTH),
            "attn.proj": (WIDTH, WIDTH),
            "mlp.fc1": (hidden, WIDTH),
            "mlp.fc2": (WIDTH, hidden),
        }
        for name, (rows, columns) in linear.items():
            shapes |= {f"{block}{name}.weight": (rows, columns), f"{block}{name}.bias": (rows,)}
        if dinov2:
            shapes |= {f"{block}ls1.scale_factor": (WIDTH,), f"{block}ls2.scale_factor": (WIDTH,)}
    return {f"{prefix}.{name}": draw(name, shape) for name, shape in shapes.items()}


def checkpoint_weights(seed: int = 0, *, depth: int = 3, layers: int = 2) -> dict[str, torch.Tensor]:
    """Of a fused model, in bfloat16 as published."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        scale = 0.1 if len(shape) < 2 else 0.8 / shape[-1] ** 0.5
        return (offset + scale * torch.randn(shape, generator=generator)).bfloat16()

    weights = tower_weights("vision_backbone.featurizer", depth, dinov2=True, draw=draw)
    weights |= tower_weights("vision_backbone.fused_featurizer", depth, dinov2=False, draw=draw)
    vision, hidden = 2 * WIDTH, 64
    shapes: dict[str, tuple[int, ...]] = {
        "projector.fc1.weight": (4 * vision, vision), "projector.fc1.bias": (4 * vision,),
        "projector.fc2.weight": (WIDTH, 4 * vision), "projector.fc2.bias": (WIDTH,),
        "projector.fc3.weight": (WIDTH, WIDTH), "projector.fc3.bias": (WIDTH,),
        "language_model.model.embed_tokens.weight": (ROWS, WIDTH), "language_model.model.norm.weight": (WIDTH,),
        "language_model.lm_head.weight": (ROWS, WIDTH),
    }  # fmt: skip
    for number in range(layers):
        layer = f"language_model.model.layers.{number}."
        for name in ("q", "k", "v", "o"):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (WIDTH, WIDTH)
        shapes |= {f"{layer}mlp.{name}_proj.weight": (hidden, WIDTH) for name in ("gate", "up")}
        shapes[f"{layer}mlp.down_proj.weight"] = (WIDTH, hidden)
        shapes |= {f"{layer}{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
    return weights | {name: draw(name, shape) for name, shape in shapes.items()}


def checkpoint_config() -> dict[str, Any]:
    """config.json."""
    return {
        "model_type": "openvla", "architectures": ["OpenVLAForActionPrediction"],
        "arch_specifier": "no-align+fused-gelu-mlp", "use_fused_vision_backbone": True,
        "vision_backbone_id": "dinosiglip-vit-so-224px", "llm_backbone_id": "llama2-7b-pure",
        "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
        "timm_override_act_layers": [None, None], "image_sizes": [SIZE, SIZE],
        "image_resize_strategy": "resize-naive", "pad_token_id": 32000, "pad_to_multiple_of": ROWS - VOCABULARY,
        "n_action_bins": BINS, "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "llama", "vocab_size": ROWS, "torch_dtype": "bfloat16", "pad_token_id": 32000,
            "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        },
        "norm_stats": {
            "bridge": {"action": {"q01": [-0.5, -1.0, 0.0], "q99": [0.5, 3.0, 1.0], "mask": [True, True, False]}},
            "seven": {"action": {"q01": [-1.0] * 7, "q99": [1.0] * 7}},
        },
    }  # fmt: skip


def write_tokenizer(folder: Path, size: int = VOCABULARY) -> None:
    """tokenizer.json: single characters, the blank token among them, filled up to ``size``; begin token in front."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    letters = [chr(code) for code in range(32, 127)] + ["\n", "▁"]
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *letters])}
    vocabulary |= {f"<{i}>": i for i in range(len(vocabulary), size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))


def write_checkpoint(
    folder: Path, weights: dict[str, torch.Tensor] | None = None, config: dict[str, Any] | None = None
) -> Path:
    """Two shards and their index."""
    weights = checkpoint_weights() if weights is None else weights
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or checkpoint_config()))
    names = sorted(weights)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, part in halves.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    write_tokenizer(folder)
    return folder
