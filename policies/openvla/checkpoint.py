"""Reads checkpoints in OpenVLA's published format without running any code of theirs: config.json, safetensors in one file
or in shards with an index, tokenizer.json, and the action statistics.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from configs.errors import CheckpointError
from policies.hub import local_folder
from policies.openvla.images import IMAGENET, SIGLIP
from policies.openvla.shape import TOWER_NAMES, ModelShape, Statistics, Tower
from policies.openvla.vit import ViTShape

if TYPE_CHECKING:
    from torch import Tensor

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True)
class _TowerKind:
    """What a tower's weights do not say."""

    heads: int
    pixels: Statistics


TOWER_KINDS = {
    "vit_large_patch14_reg4_dinov2": _TowerKind(16, IMAGENET),
    "vit_base_patch14_reg4_dinov2": _TowerKind(12, IMAGENET),
    "vit_so400m_patch14_siglip": _TowerKind(16, SIGLIP),
    "vit_base_patch16_siglip": _TowerKind(12, SIGLIP),
}
"""Beginning of timm's name to what its weights do not say."""


@dataclass(frozen=True)
class ActionStatistics:
    """Of one dataset's actions, or its proprioception: the range that -1 to 1 stands for."""

    low: tuple[float, ...]
    high: tuple[float, ...]


class OpenVLACheckpoint:
    """One checkpoint; nothing but headers is read before ``tensors``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = self._json("config.json")
        for key in ("text_config", "timm_model_ids", "image_sizes"):
            if key not in self.config:
                self._refuse(f"config.json has no {key}", "give a checkpoint that OpenVLA's conversion wrote")

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise CheckpointError(what, where=str(self.folder), remedy=remedy) from None

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            self._refuse(f"{name} is missing", "copy the whole checkpoint")
        except ValueError:
            self._refuse(f"{name} is torn", "copy it again")
        if not isinstance(found, dict):
            self._refuse(f"{name} is no mapping", "copy it again")
        return found

    @cached_property
    def files(self) -> dict[str, Path]:
        """Tensor name to its file."""
        from safetensors import SafetensorError, safe_open

        if (self.folder / INDEX).is_file():
            named = self._json(INDEX).get("weight_map", {})
            files = {name: self.folder / part for name, part in named.items()}
        else:
            files = {"": self.folder / SINGLE}
        missing = sorted({path.name for path in files.values() if not path.is_file()})
        if missing:
            self._refuse(
                f"{', '.join(missing)} is missing", "copy the whole checkpoint; pickled weights are not read"
            )
        held: dict[str, Path] = {}
        for path in sorted(set(files.values())):
            try:
                with safe_open(path, "pt") as opened:
                    held |= dict.fromkeys(opened.keys(), path)
            except SafetensorError:
                self._refuse(f"{path.name} is torn", "copy it again")
        listed = set(files) - {""}
        if listed and listed != set(held):
            name = sorted(listed ^ set(held))[0]
            self._refuse(f"the index and the files disagree about {name}", "copy the whole checkpoint")
        return held

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name to its shape."""
        from safetensors import safe_open

        shapes: dict[str, tuple[int, ...]] = {}
        for path in sorted(set(self.files.values())):
            with safe_open(path, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118  not a dictionary
                    shapes[name] = tuple(opened.get_slice(name).get_shape())
        return shapes

    @cached_property
    def shape(self) -> ModelShape:
        """What the model is built from. Raises CheckpointError for towers that Reverie does not know."""
        text = self.config["text_config"]
        if text.get("model_type", "llama") != "llama":
            self._refuse(
                f"the language model is a {text['model_type']}, Reverie reads llama",
                "use an OpenVLA checkpoint",
            )
        filled = int(self.config.get("pad_to_multiple_of", 64))
        rows = int(text.get("vocab_size", 32064))
        self._require_rows(rows)
        identities = zip(TOWER_NAMES, self.config["timm_model_ids"], self.config["image_sizes"], strict=False)
        towers = tuple(self._tower(name, timm, size) for name, timm, size in identities)
        known = {
            k: v for k, v in text.items() if k not in {"torch_dtype", "dtype", "model_type", "pad_token_id"}
        }
        language = {**known, "vocab_size": rows}
        return ModelShape(towers, language, rows - filled, rows, int(self.config.get("n_action_bins", 256)))

    def _require_rows(self, rows: int) -> None:
        for name in ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"):
            if name not in self.shapes:
                self._refuse(f"the tensor {name} is missing", "copy the whole checkpoint")
            if self.shapes[name][0] != rows:
                self._refuse(
                    f"{name} has {self.shapes[name][0]} rows, config.json's vocab_size is {rows}",
                    "use the config of these weights",
                )

    def _tower(self, name: str, timm: str, size: int) -> Tower:
        kind = next((kind for start, kind in TOWER_KINDS.items() if timm.startswith(start)), None)
        if kind is None:
            known = ", ".join(TOWER_KINDS)
            self._refuse(
                f"the vision tower {timm} is none that Reverie builds ({known})", "use such a checkpoint"
            )
        prefix = f"vision_backbone.{name}."
        own = {
            key.removeprefix(prefix): shape for key, shape in self.shapes.items() if key.startswith(prefix)
        }
        for key in ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight"):
            if key not in own:
                self._refuse(f"the tensor {prefix}{key} is missing", "copy the whole checkpoint")
        width, _, patch, _ = own["patch_embed.proj.weight"]
        depth = 1 + max(int(key.split(".")[1]) for key in own if key.startswith("blocks."))
        shape = ViTShape(
            width, depth, kind.heads, own["blocks.0.mlp.fc1.weight"][0], patch, int(size),
            class_token="cls_token" in own, registers=own.get("reg_token", (0, 0))[1],
            layer_scale="blocks.0.ls1.scale_factor" in own,
        )  # fmt: skip
        if own["pos_embed"][1] != shape.patches:
            self._refuse(
                f"{prefix}pos_embed is of {own['pos_embed'][1]} patches, image_sizes={size} makes {shape.patches}",
                "use the config of these weights",
            )
        return Tower(name, shape, kind.pixels)

    @cached_property
    def _statistics(self) -> dict[str, Any]:
        known = dict(self.config.get("norm_stats") or {})
        beside = self.folder / "dataset_statistics.json"
        return known | (self._json(beside.name) if beside.is_file() else {})

    def statistics(self, key: str | None) -> tuple[str, ActionStatistics]:
        """The name of a set of action statistics and its range. Raises CheckpointError naming those that there are."""
        known = self._statistics
        if key is None and len(known) == 1:
            key = next(iter(known))
        if key is None or key not in known:
            asked = (
                "policy.unnorm_key is not set"
                if key is None
                else f"policy.unnorm_key={key} is not one of its"
            )
            self._refuse(
                f"{asked}, statistics are there for {', '.join(sorted(known)) or 'nothing'}",
                "choose one of them",
            )
        return key, _range_of(known[key]["action"])

    def proprio_statistics(self, key: str | None, count: int) -> ActionStatistics:
        """Of proprioception, in the set of statistics that ``key`` names. Raises CheckpointError where there are none of
        ``count`` dimensions.
        """
        name, _ = self.statistics(key)
        found = self._statistics[name].get("proprio", {})
        dims = len(found.get("q01", []))
        if dims != count:
            self._refuse(
                f"the statistics {name} are of {dims} proprio dimensions, the environment has {count}",
                "choose another environment, or policy.proprio=false where the checkpoint was trained without",
            )
        return _range_of(found)

    def require_tensors(self, wanted: dict[str, tuple[int, ...]]) -> None:
        """Raise CheckpointError for a tensor that is missing, not known, or of another shape than ``wanted``."""
        found = {name: shape for name, shape in self.shapes.items() if not self._takes_no_part(name)}
        missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
        if missing:
            self._refuse(
                f"{len(missing)} tensors are missing, the first is {missing[0]}", "copy the whole checkpoint"
            )
        if extra:
            self._refuse(
                f"{len(extra)} tensors have no place in the model, the first is {extra[0]}",
                "use a merged checkpoint of OpenVLA's format, with action tokens and no other head",
            )
        for name, shape in wanted.items():
            if found[name] != shape:
                self._refuse(
                    f"{name} is {list(found[name])}, the model wants {list(shape)}",
                    "use the config of these weights",
                )

    def _takes_no_part(self, name: str) -> bool:
        """The towers' last block, norm and pooling lie in the checkpoint, but nothing that acts depends on them."""
        if name.endswith("rotary_emb.inv_freq"):
            return True
        for tower in self.shape.towers:
            prefix = f"vision_backbone.{tower.name}."
            unused = (f"{prefix}blocks.{tower.shape.depth - 1}.", f"{prefix}norm.", f"{prefix}attn_pool.")
            if name.startswith(unused):
                return True
        return False

    def tensors(self, names: set[str]) -> dict[str, Tensor]:
        """Those weights, as they are stored."""
        from safetensors import safe_open

        loaded: dict[str, Tensor] = {}
        for path in sorted({self.files[name] for name in names}):
            with safe_open(path, "pt") as opened:
                inside = [name for name in names if self.files[name] == path]
                loaded |= {name: opened.get_tensor(name) for name in inside}
        return loaded


def _range_of(stored: dict[str, Any]) -> ActionStatistics:
    """q01 to q99; -1 to 1 in dimensions that the mask leaves alone."""
    used = stored.get("mask", [True] * len(stored["q01"]))
    low, high = (
        tuple(float(x) if use else plain for x, use in zip(stored[name], used, strict=True))
        for name, plain in (("q01", -1.0), ("q99", 1.0))
    )
    return ActionStatistics(low, high)


def open_checkpoint(base: str) -> OpenVLACheckpoint:
    """A local folder, or a name on the hub whose JSON, safetensors and tokenizer files are fetched into the hub's cache."""
    return OpenVLACheckpoint(local_folder(base))
