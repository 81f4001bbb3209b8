"""Turns what is wrong with a configuration into one line that names the key, the fault and the remedy."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from configs import introspect
from configs.errors import ConfigError


@dataclass(frozen=True)
class Counterpart:
    """Our key for another system's."""

    system: str
    key: str
    note: str = ""


FOREIGN: dict[str, list[Counterpart]] = {
    "require_batches": [Counterpart("verl", "sync.batches_per_update")],
    "trigger_parameter_sync_step": [Counterpart("verl", "sync.updates_per_publish")],
    "staleness_threshold": [
        Counterpart("verl", "staleness.budget", "a fraction of one version's samples"),
        Counterpart("RLinf", "staleness.bound", "versions"),
    ],
    "partial_rollout": [Counterpart("verl", "sync.partial")],
    "rollout_store_size_per_rank": [Counterpart("RLinf", "sync.store_size", "decisions")],
    "clip_ratio_low": [Counterpart("RLinf and verl", "algorithm.clip_low")],
    "clip_ratio_high": [Counterpart("RLinf and verl", "algorithm.clip_high")],
    "clip_ratio_c": [Counterpart("RLinf and verl", "algorithm.dual_clip")],
    "cliprange_value": [Counterpart("verl", "algorithm.value_clip")],
    "recompute_logprobs": [
        Counterpart(
            "RLinf", "algorithm.anchor", "recompute for true, interpolate for false; algorithm=decoupled_ppo"
        )
    ],
    "use_decoupled_loss": [
        Counterpart("AReaL", "algorithm.anchor", "true is algorithm=decoupled_ppo, false algorithm=ppo")
    ],
    "behav_imp_weight_cap": [Counterpart("AReaL", "algorithm.behave_weight_threshold")],
    "rollout_is": [Counterpart("verl", "algorithm.behave_weight", "with algorithm=decoupled_ppo")],
    "rollout_is_threshold": [
        Counterpart("verl", "algorithm.behave_weight_threshold", "weights above it do not train")
    ],
    "update_epoch": [Counterpart("RLinf", "algorithm.epochs")],
    "ppo_epochs": [Counterpart("verl", "algorithm.epochs")],
    "entropy_bonus": [Counterpart("RLinf", "algorithm.entropy")],
    "entropy_coeff": [Counterpart("verl", "algorithm.entropy")],
    "global_batch_size": [Counterpart("RLinf", "algorithm.batch", "decisions per optimizer step")],
    "micro_batch_size": [Counterpart("RLinf", "algorithm.micro_batch", "decisions per forward")],
    "ppo_mini_batch_size": [Counterpart("verl", "algorithm.batch", "decisions per optimizer step")],
}
"""Keys of other systems, by their last word."""


def nearest(word: str, words: list[str]) -> str:
    """``did you mean …? `` when one of ``words`` is close to ``word``, else nothing."""
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"did you mean {close[0]}? " if close else ""


def unknown_key(kind: type, path: str) -> ConfigError:
    """The error for key ``path`` whose last word is no field of config class ``kind``."""
    head, dot, word = path.rpartition(".")
    words = list(introspect.fields_of(kind))
    guess = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    remedy = f"did you mean {head}{dot}{guess[0]}?" if guess else "known here: " + ", ".join(words)
    return ConfigError(f"{path} is no known key", remedy=remedy)


def foreign_key(kind: type, key: str) -> ConfigError | None:
    """The error for a key that another system uses for something that we call otherwise; None for other keys."""
    word = key.split(".")[-1]
    if word not in FOREIGN or any(path == key for path, _, _ in introspect.walk(kind)):
        return None
    hints = [
        f"{ours.key} for {ours.system}'s{f' ({ours.note})' if ours.note else ''}" for ours in FOREIGN[word]
    ]
    return ConfigError(f"{key} is another system's name", remedy="use " + ", ".join(hints))


def other_choice(kind: type, path: str) -> ConfigError | None:
    """The error for a key that exists, but in another choice of its group than the one in force."""
    for known, owner, _ in introspect.walk(kind):
        chosen = introspect.tag(owner)
        if known == path and chosen is not None:
            group = path.rpartition(".")[0].replace(".", "/")
            return ConfigError(
                f"{path} belongs to {group}={chosen[1]}",
                remedy=f"choose {group}={chosen[1]}, or drop the key",
            )
    return None


def from_validation(kind: type, error: ValidationError) -> ConfigError:
    """The first fault that pydantic found in a config of class ``kind``."""
    fault = error.errors()[0]
    path, owner, annotation = _locate(kind, fault["loc"])
    code = fault["type"]
    if code == "unexpected_keyword_argument":
        return foreign_key(kind, path) or other_choice(kind, path) or unknown_key(owner, path)
    if code == "missing":
        return ConfigError(f"{path} is missing", remedy=f"give {path}=<{introspect.describe(annotation)}>")
    if code == "union_tag_invalid":
        words = introspect.tags(annotation)
        key = f"{path}.{fault['ctx']['discriminator']}".replace("'", "")
        return _unfit(key, fault["ctx"]["tag"], words, "one of " + ", ".join(words))
    allowed = introspect.describe(annotation)
    if code == "string_type":
        allowed += f", written {path}='\"{fault['input']}\"'"
    if introspect.components(annotation):
        names = introspect.fields_of(introspect.components(annotation)[0])
        allowed = "a section, for example " + f"{path}.{next(iter(names))}=<value>"
    return _unfit(path, fault["input"], introspect.choices(annotation), allowed)


def _unfit(path: str, value: Any, words: list[str], allowed: str) -> ConfigError:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    if len(shown) > 60:
        shown = shown[:57] + "…"
    return ConfigError(
        f"{path}={shown} does not fit", remedy=f"{nearest(str(value), words)}allowed: {allowed}"
    )


def _locate(kind: type, loc: tuple[int | str, ...]) -> tuple[str, type, introspect.Annotation]:
    """Dotted path, owning config class and annotation of what pydantic calls ``loc`` (which also names union tags)."""
    path, owner = "", kind
    annotation: introspect.Annotation = kind
    for position, step in enumerate(loc):
        inside = introspect.components(annotation)
        if isinstance(step, int):
            path, annotation = f"{path}[{step}]", introspect.element(annotation)
            continue
        tagged = [item for item in inside if (introspect.tag(item) or ("", ""))[1] == step]
        if tagged and len(inside) > 1:
            annotation = tagged[0]
            continue
        if not inside:
            if position == len(loc) - 1:
                break
            continue
        owner = inside[0]
        path = f"{path}.{step}" if path else step
        found = introspect.fields_of(owner).get(step)
        annotation = found.annotation if found is not None else Any
    return path, owner, annotation
