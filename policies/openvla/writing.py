"""Writes a fresh model as a checkpoint in OpenVLA's format: for trials that should go the way a published one goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from configs.errors import ConfigError
from configs.openvla import OpenVLAConfig
from policies.base import PolicySpec
from policies.openvla.checkpoint import SINGLE, TOWER_KINDS
from policies.openvla.network import Network
from policies.openvla.prompts import BLANK, prompt_text
from policies.openvla.shape import BYTES, ModelShape, Tower, fresh_shape

PAD = 64
"""Rows behind the vocabulary, and what it is a multiple of, as where OpenVLA padded Llama's 32,000."""


def write_fresh(folder: Path, config: OpenVLAConfig, spec: PolicySpec, *, key: str, seed: int) -> int:
    """Write ``config.json``, ``tokenizer.json`` and the weights into ``folder``, which exists; returns how many there are.

    ``key`` names the action statistics, which are the range of ``spec``. Raises ConfigError for towers that no checkpoint
    can describe.
    """
    from safetensors.torch import save_file

    tokenizer = fresh_tokenizer([prompt_text(text) for text in spec.instructions], config.bins)
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=False)
    plain = fresh_shape(config)
    shape = replace(plain, vocabulary=vocabulary, rows=vocabulary + PAD)
    described = describe(shape, config, spec, key)
    weights = _weights(shape, seed)
    (folder / "config.json").write_text(json.dumps(described, indent=1))
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(weights, folder / SINGLE, metadata={"format": "pt"})
    return sum(weight.numel() for weight in weights.values())


def describe(shape: ModelShape, config: OpenVLAConfig, spec: PolicySpec, key: str) -> dict[str, Any]:
    """``config.json``."""
    action = {"q01": list(spec.action_low), "q99": list(spec.action_high), "mask": [True] * spec.action_dim}
    return {
        "model_type": "openvla",
        "architectures": ["OpenVLAForActionPrediction"],
        "use_fused_vision_backbone": len(shape.towers) > 1,
        "timm_model_ids": [_timm_name(tower, config) for tower in shape.towers],
        "image_sizes": [tower.shape.image_size for tower in shape.towers],
        "image_resize_strategy": "resize-naive",
        "n_action_bins": shape.bins,
        "pad_to_multiple_of": PAD,
        "text_config": {"model_type": "llama", **shape.language, "vocab_size": shape.rows},
        "norm_stats": {key: {"action": action}},
    }


def _timm_name(tower: Tower, config: OpenVLAConfig) -> str:
    """The weights tell a tower's size, its name tells the rest: statistics of the pixels and the number of heads."""
    alike = {kind.heads: name for name, kind in TOWER_KINDS.items() if kind.pixels == tower.pixels}
    if config.heads not in alike:
        raise ConfigError(
            f"policy.heads={config.heads}, but in this format the name of a tower says how many heads it has",
            where="policy.heads", remedy=f"choose one of {', '.join(map(str, sorted(alike)))}",
        )  # fmt: skip
    return alike[config.heads]


def _weights(shape: ModelShape, seed: int) -> dict[str, Tensor]:
    """Of every tensor. The towers' last blocks take no part, but a checkpoint has them."""
    towers = tuple(
        replace(tower, shape=replace(tower.shape, depth=tower.shape.depth + 1)) for tower in shape.towers
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        weights = dict(Network(replace(shape, towers=towers), slim=False).state_dict())
    for tower in towers:
        prefix = f"vision_backbone.{tower.name}.norm"
        weights[f"{prefix}.weight"] = torch.ones(tower.shape.width)
        weights[f"{prefix}.bias"] = torch.zeros(tower.shape.width)
    return {name: weight.contiguous() for name, weight in weights.items()}


def fresh_tokenizer(texts: Sequence[str], bins: int) -> Any:
    """Byte pairs of Llama's kind, learned from ``texts``: their words are one token each, and any other text falls back to
    bytes. The last ``bins`` of the vocabulary are left to the actions.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK)
    learner.train_from_iterator(
        texts, trainers.BpeTrainer(show_progress=False, initial_alphabet=[BLANK], vocab_size=30_000)
    )
    learned = json.loads(learner.to_str())["model"]
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(BYTES))]
    words += sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    unused = -(len(words) + bins) % PAD
    words += [f"<unused_{number}>" for number in range(unused)]
    words += [f"<action_{number}>" for number in reversed(range(bins))]
    model = models.BPE(
        {word: number for number, word in enumerate(words)}, [tuple(pair) for pair in learned["merges"]],
        unk_token="<unk>", byte_fallback=True,
    )  # fmt: skip
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK)
    return tokenizer
