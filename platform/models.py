"""Model folders: ``config.json`` (what the weights fit), ``model.safetensors``, ``card.json``, ``manifest.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from configs.errors import CheckpointError

from .context import POLICY, Context, require_same
from .model_card import CARD, PAGE, card_page
from .storage import new_folder, read_json, verify_part
from .weights import Arrays

# These shape neither the weights nor what they mean: a run may change them for a stored model.
_FREE = {
    "policy": frozenset({"path", "checkpointing", "frozen_dtype", "temperature"}),
    "obs_model": frozenset(
        [
            "precision",
            "checkpointing",
            "compiled",
            "sampler",
            "consistency_levels",
            "optimizer",
            "noise_mean",
            "noise_std",
            "sigma_min",
            "sigma_max",
            "offset_noise",
            "sampling_steps",
            "sampling_sigma_max",
            "unit_start",
            "conditioning_noise",
            "rollout_steps",
            "rollout_start",
            "batch",
            "learning_rate",
            "online_learning_rate",
            "max_grad_norm",
            "ema_decay",
            "every",
            "burst",
        ]
    ),
    "reward_model": frozenset(
        [
            "precision",
            "noise",
            "focal_gamma",
            "imagined_fraction",
            "imagined_steps",
            "imagined_windows",
            "imagined_pool",
            "balance",
            "shift",
            "freeze_backbone",
            "hard_negatives",
            "threshold",
            "batch",
            "learning_rate",
            "online_learning_rate",
            "max_grad_norm",
            "ema_decay",
            "every",
            "burst",
        ]
    ),
}


def write_model(folder: Path, description: dict[str, Any], arrays: Arrays, card: dict[str, Any]) -> None:
    """Write weights with what they fit and a card (data, updates, quality) into an open folder."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(description, indent=1))
    (folder / CARD).write_text(json.dumps(card, indent=1))
    assert all(array.flags.c_contiguous for array in arrays.values()), "safetensors would shuffle it"
    save_file(arrays, folder / "model.safetensors")


def save_model(folder: Path, description: dict[str, Any], arrays: Arrays, card: dict[str, Any]) -> None:
    """As ``write_model``, as a complete folder of its own, with the card as a page too."""
    with new_folder(folder) as partial:
        write_model(partial, description, arrays, card)
        (partial / PAGE).write_text(card_page(description, card))


def check_model(folder: Path, name: str, context: Context) -> None:
    """Raise CheckpointError unless ``folder`` says that it holds model ``name`` for this run; reads no weights."""
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"no {name} there", where=str(folder), remedy="give the folder that platform.pretrain wrote"
        )
    stored = read_json(folder / "config.json")
    if not isinstance(stored, dict) or not {"model", "config", "spec"} <= set(stored):
        raise CheckpointError(
            "config.json is not of a model", where=str(folder), remedy="give a folder of platform.pretrain"
        )
    if stored["model"] != name:
        raise CheckpointError(
            f"holds the {stored['model']}, not the {name}",
            where=str(folder),
            remedy=f"give the folder of the {name}",
        )
    ours = context.describe(name)
    # What a model's writer did not know yet, it did as the default does.
    stored["config"] = {**context.default_config(name), **stored["config"]}
    stored["spec"] = {**context.default_spec(name), **stored["spec"]}
    require_same(ours, stored, folder, ignore=_FREE[name])


def read_model(folder: Path, name: str, context: Context) -> Arrays:
    """Weights of model ``name`` from ``folder``.

    Raises CheckpointError when the folder is missing, torn, holds another kind of model, or weights for other shapes.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    check_model(folder, name, context)
    verify_part(folder)
    try:
        return dict(load_file(folder / "model.safetensors"))
    except (SafetensorError, FileNotFoundError) as error:
        raise CheckpointError(
            "model.safetensors is missing or torn", where=str(folder), remedy="use another copy"
        ) from error


def read_policy(folder: Path, context: Context) -> tuple[Context, Arrays]:
    """A policy's weights with the context of its own vocabulary, which may know more instructions than the environment has.

    Raises CheckpointError as ``read_model``.
    """
    stored = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    spec = stored.get("spec", {}) if isinstance(stored, dict) else {}
    known = spec.get("instructions") if isinstance(spec, dict) else None
    speaking = context.speaking(tuple(known)) if known else context
    return speaking, read_model(folder, POLICY, speaking)
