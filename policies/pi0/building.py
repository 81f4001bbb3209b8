"""From config and checkpoint to transformers' PI0: its config, its weights, its statistics and its prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import CheckpointError, ConfigError
from configs.pi0 import PI0Config
from policies.hub import local_folder

if TYPE_CHECKING:
    from policies.base import PolicySpec

BEGIN, END = 1, 2
SPECIAL_TOKENS, BYTES = 3, 256
UNUSED = "model.dit.embed_tokens.weight"
"""The expert reads actions, never words: its table of words takes no part."""


@dataclass(frozen=True)
class Statistics:
    """Mean and deviation of what a checkpoint was trained on, per dimension."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def require_transformers() -> Any:
    """Transformers with PI0 in it. Raises ConfigError where it is missing or older."""
    remedy = "pip install 'reverie-rl[vla]' 'transformers>=5.4'"
    try:
        import transformers
    except ModuleNotFoundError:
        raise ConfigError(
            "the package transformers is not installed", where="policy=pi0", remedy=remedy
        ) from None
    if not hasattr(transformers, "PI0ForConditionalGeneration"):
        raise ConfigError(f"transformers {transformers.__version__} has no PI0", where="policy=pi0", remedy=remedy)  # fmt: skip
    return transformers


def model_config(config: PI0Config, spec: PolicySpec) -> Any:
    """Transformers' config: the checkpoint's, or that of a fresh model of this spec."""
    transformers = require_transformers()
    if config.base is not None:
        return _checkpoint_config(config, spec)
    language = {
        "model_type": "gemma", "hidden_size": config.width, "intermediate_size": 2 * config.width,
        "num_hidden_layers": config.layers, "num_attention_heads": config.heads, "num_key_value_heads": 1,
        "head_dim": config.width // config.heads, "vocab_size": SPECIAL_TOKENS + BYTES,
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": config.width, "intermediate_size": 2 * config.width,
        "num_hidden_layers": config.vision_layers, "num_attention_heads": config.heads,
        "image_size": config.image_size, "patch_size": config.patch, "vision_use_head": False,
    }  # fmt: skip
    expert = {
        **language, "hidden_size": config.expert_width, "intermediate_size": 2 * config.expert_width,
    }  # fmt: skip
    vlm = {
        "model_type": "paligemma", "text_config": language, "vision_config": vision,
        "projection_dim": config.width, "image_token_id": SPECIAL_TOKENS + BYTES,
    }  # fmt: skip
    return transformers.PI0Config(
        vlm_config=vlm, dit_config=expert, chunk_size=config.chunk, max_action_dim=spec.action_dim,
        max_state_dim=max(1, spec.proprio_dim), num_inference_steps=config.steps,
    )  # fmt: skip


@lru_cache(maxsize=4)
def _folder(base: str) -> Path:
    return local_folder(base)


def _read(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{name} is missing", where=str(folder), remedy="copy the whole checkpoint"
        ) from None
    except ValueError:
        raise CheckpointError(f"{name} is torn", where=str(folder), remedy="copy it again") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{name} is no mapping", where=str(folder), remedy="copy it again")
    return found


def _checkpoint_config(config: PI0Config, spec: PolicySpec) -> Any:
    assert config.base is not None
    folder = _folder(config.base)
    stored = _read(folder, "config.json")
    if stored.get("model_type") != "pi0":
        raise CheckpointError(
            f"config.json is of a {stored.get('model_type')}, policy=pi0 reads transformers' pi0", where=str(folder),
            remedy="convert the checkpoint with transformers, or choose another policy",
        )  # fmt: skip
    found = require_transformers().PI0Config.from_pretrained(folder)
    sides = {
        "actions a chunk": (found.chunk_size, config.chunk, "policy.chunk"),
        "action dimensions": (found.max_action_dim, spec.action_dim, "the environment"),
        "state dimensions": (found.max_state_dim, spec.proprio_dim, "the environment"),
    }
    for what, (has, wanted, whose) in sides.items():
        if has < wanted:
            raise CheckpointError(
                f"the checkpoint has {has} {what}, {whose} has {wanted}",
                where=str(folder), remedy="choose another checkpoint or fewer of them",
            )  # fmt: skip
    return found


def load_network(config: PI0Config, spec: PolicySpec) -> Any:
    """The checkpoint's weights in float32, or fresh ones. Raises CheckpointError for a tensor too many, too few or too large."""
    transformers = require_transformers()
    described = model_config(config, spec)
    described._attn_implementation = "sdpa"
    if config.base is None:
        return transformers.PI0ForConditionalGeneration(described)
    import torch

    folder = _folder(config.base)
    try:
        network, found = transformers.PI0ForConditionalGeneration.from_pretrained(
            folder, config=described, dtype=torch.float32, use_safetensors=True, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    except OSError as error:
        raise CheckpointError(
            f"its weights cannot be read ({str(error).splitlines()[0]})", where=str(folder), remedy="copy the whole checkpoint"
        ) from None  # fmt: skip
    wrong = {
        "are missing": sorted(set(found["missing_keys"]) - {UNUSED}),
        "have no place in the model": sorted(found["unexpected_keys"]),
        "have another shape than the model's": sorted(str(each) for each in found["mismatched_keys"]),
    }
    for what, names in wrong.items():
        if names:
            raise CheckpointError(
                f"{len(names)} tensors {what}, the first is {names[0]}",
                where=str(folder), remedy="use the config of these weights, and all of them",
            )  # fmt: skip
    return network


def statistics(config: PI0Config, name: str, count: int) -> Statistics | None:
    """Of ``state`` or ``actions`` (``count`` dimensions of the environment) in ``processor_config.json``; None for a fresh
    model. Raises CheckpointError where they are missing or fewer.
    """
    if config.base is None:
        return None
    folder = _folder(config.base)
    stored = _read(folder, "processor_config.json")
    mean, deviation = (stored.get(f"{name}_{kind}") for kind in ("mean", "std"))
    if mean is None or deviation is None:
        raise CheckpointError(
            f"processor_config.json has no {name}_mean and {name}_std", where=str(folder),
            remedy="save transformers' PI0Processor with the statistics of the data that the checkpoint was trained on",
        )  # fmt: skip
    if len(mean) < count or len(deviation) < count:
        raise CheckpointError(
            f"its {name} statistics are of {len(mean)} dimensions, the environment has {count}",
            where=str(folder), remedy="choose another checkpoint or environment",
        )  # fmt: skip
    return Statistics(tuple(mean[:count]), tuple(deviation[:count]))


def prompt_encoder(config: PI0Config) -> Callable[[str], list[int]]:
    """Instruction to token ids: begin token, text, line end; a fresh model's are bytes."""
    if config.base is None:
        return lambda text: [BEGIN, *(SPECIAL_TOKENS + byte for byte in f"{text}\n".encode())]
    from tokenizers import Tokenizer

    folder = _folder(config.base)
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(
            "tokenizer.json is missing", where=str(folder), remedy="copy the whole checkpoint"
        )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    begin = tokenizer.token_to_id("<bos>")
    if begin is None:
        raise CheckpointError(
            "tokenizer.json has no <bos>", where=str(folder), remedy="use PaliGemma's tokenizer"
        )
    return lambda text: [begin, *tokenizer.encode(f"{text}\n", add_special_tokens=False).ids]
