"""The network of OpenVLA's format, under the names of its checkpoints: ``vision_backbone``, ``projector``, ``language_model``.

The towers are our own ViT, the language model is transformers' Llama. A sequence is the begin token, the patches of every
camera, the rest of the prompt, and what stands for actions.

Shape letters: B observations, S sequence, N patches, P prompt tokens, Q action tokens, E width of the language model.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from configs.errors import ConfigError
from policies.base import Trunk
from policies.openvla.shape import ModelShape
from policies.openvla.vit import VisionTransformer


def require_transformers() -> Any:
    """Transformers' module of Llama. Raises ConfigError where it is not installed."""
    try:
        from transformers.models.llama import modeling_llama
    except ModuleNotFoundError:
        raise ConfigError(
            "the package transformers is not installed",
            where="policy=openvla",
            remedy="pip install 'reverie-rl[vla]'",
        ) from None
    return modeling_llama


class VisionBackbone(nn.Module):
    """One tower, or two whose features are joined patch by patch."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.names = [tower.name for tower in shape.towers]
        self._patches = [tower.shape.patches for tower in shape.towers]
        for tower in shape.towers:
            self.add_module(tower.name, VisionTransformer(tower.shape))

    def forward(self, pixels: list[Tensor]) -> Float[Tensor, "B N V"]:
        """Of one tensor per tower."""
        towers = [self.get_submodule(name) for name in self.names]
        # Only here, not in the tower: FSDP wants no view of a part that it shares out.
        seen = [tower(x) for tower, x in zip(towers, pixels, strict=True)]
        return torch.cat([x[:, -count:] for x, count in zip(seen, self._patches, strict=True)], dim=-1)


class Projector(nn.Module):
    """Patch features to the language model's width: two layers behind one tower, three behind two."""

    def __init__(self, vision: int, width: int, *, fused: bool) -> None:
        super().__init__()
        inner = 4 * vision if fused else width
        self.fc1 = nn.Linear(vision, inner)
        self.fc2 = nn.Linear(inner, width)
        if fused:
            self.fc3 = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        """``[..., V]`` to ``[..., E]``."""
        projected: Tensor = self.fc2(F.gelu(self.fc1(features)))
        return self.fc3(F.gelu(projected)) if hasattr(self, "fc3") else projected


class LanguageModel(nn.Module):
    """Llama and the output layer, whole or cut to the action tokens."""

    def __init__(self, shape: ModelShape, *, slim: bool) -> None:
        super().__init__()
        llama = require_transformers()
        from transformers import LlamaConfig

        # No padding id: what pads is masked, and its row must not be told apart.
        self.config = LlamaConfig(**{**shape.language, "vocab_size": shape.rows, "pad_token_id": None})
        self.config._attn_implementation = "sdpa"
        self.model = llama.LlamaModel(self.config)
        self.lm_head = nn.Linear(self.config.hidden_size, shape.bins if slim else shape.rows, bias=False)
        self._actions = (
            slice(0, shape.bins) if slim else slice(shape.vocabulary - shape.bins, shape.vocabulary)
        )

    def rebuild_tables(self) -> None:
        """Rotary frequencies are no weights: a model that was built without memory has none yet."""
        self.model.rotary_emb = require_transformers().LlamaRotaryEmbedding(self.config)

    def logits(self, states: Float[Tensor, "B Q E"]) -> Float[Tensor, "B Q bins"]:
        """Of the action tokens alone, token 0 first (the last id of the vocabulary); float32."""
        with torch.autocast(states.device.type, enabled=False):
            every = F.linear(states.float(), self.lm_head.weight.float())
        return every[..., self._actions].flip(-1)


@dataclass
class Prefix:
    """What stands before the actions."""

    embeddings: Float[Tensor, "B S E"]
    kept: Bool[Tensor, "B S"]
    """False at padding."""


class Network(nn.Module):
    """Everything that a checkpoint has."""

    def __init__(self, shape: ModelShape, *, slim: bool) -> None:
        super().__init__()
        self.shape = shape
        self.vision_backbone = VisionBackbone(shape)
        width = int(shape.language["hidden_size"]) if "hidden_size" in shape.language else 4096
        self.projector = Projector(shape.vision_width, width, fused=len(shape.towers) > 1)
        self.language_model = LanguageModel(shape, slim=slim)
        self._cache_name = cache_name()

    @property
    def width(self) -> int:
        """E."""
        return int(self.language_model.config.hidden_size)

    def trunks(self) -> list[Trunk]:
        """The language model, and every tower."""
        towers = [self.vision_backbone.get_submodule(name) for name in self.vision_backbone.names]
        held = [(self.language_model.model, "layers"), *((tower, "blocks") for tower in towers)]
        return [Trunk(module, list(module.get_submodule(blocks).children())) for module, blocks in held]

    def embed(self, ids: Int64[Tensor, "B P"]) -> Float[Tensor, "B P E"]:
        """Token ids as the language model reads them."""
        embedded: Tensor = self.language_model.model.embed_tokens(ids)
        return embedded

    def embed_actions(self, tokens: Int64[Tensor, "B Q"]) -> Float[Tensor, "B Q E"]:
        """Action tokens: token 0 is the last id."""
        return self.embed(self.shape.vocabulary - 1 - tokens)

    def prefix(
        self,
        pixels: list[list[Tensor]],
        prompt: Int64[Tensor, "B P"],
        kept: Bool[Tensor, "B P"],
        extra: Float[Tensor, "B X E"] | None = None,
    ) -> Prefix:
        """Of each camera's towers' inputs and a prompt; ``extra`` stands behind the patches."""
        patches = [self.projector(self.vision_backbone(each)) for each in pixels]
        seen = torch.cat([*patches, *([] if extra is None else [extra])], dim=1)
        words = self.embed(prompt)
        there = kept.new_ones(seen.shape[:2])
        return Prefix(
            torch.cat([words[:, :1], seen.to(words.dtype), words[:, 1:]], dim=1),
            torch.cat([kept[:, :1], there, kept[:, 1:]], dim=1),
        )

    def states(
        self, prefix: Prefix, behind: Float[Tensor, "B Q E"], *, causal: bool
    ) -> Float[Tensor, "B S E"]:
        """The language model's last states of the whole sequence, after its norm."""
        embeddings, kept = _join(prefix, behind)
        answer = self.language_model.model(
            inputs_embeds=embeddings, attention_mask=_mask(kept, causal=causal), position_ids=_positions(kept),
            use_cache=False,
        )  # fmt: skip
        states: Tensor = answer.last_hidden_state
        return states

    def continued(
        self, cache: Any, kept: Bool[Tensor, "B S"], new: Float[Tensor, "B T E"]
    ) -> Float[Tensor, "B T E"]:
        """Causal states of the last T places of a sequence whose earlier keys ``cache`` holds; it holds the new ones then.

        ``kept`` is of the whole sequence.
        """
        count = new.shape[1]
        answer = self.language_model.model(
            inputs_embeds=new, attention_mask=_mask(kept, causal=True)[:, :, -count:],
            position_ids=_positions(kept)[:, -count:], use_cache=True, **{self._cache_name: cache},
        )  # fmt: skip
        states: Tensor = answer.last_hidden_state
        return states


def cache_name() -> str:
    """Transformers renamed the argument."""
    known = inspect.signature(require_transformers().LlamaModel.forward).parameters
    return "cache" if "cache" in known else "past_key_values"


def new_cache() -> Any:
    """An empty store of keys and values."""
    from transformers import DynamicCache

    return DynamicCache()


def _join(prefix: Prefix, behind: Tensor) -> tuple[Tensor, Tensor]:
    there = prefix.kept.new_ones(behind.shape[:2])
    return (
        torch.cat([prefix.embeddings, behind.to(prefix.embeddings.dtype)], dim=1),
        torch.cat([prefix.kept, there], dim=1),
    )


def _mask(kept: Bool[Tensor, "B S"], *, causal: bool) -> Bool[Tensor, "B 1 S S"]:
    """True where a place may look. The begin token is always kept, so no place looks at nothing."""
    length = kept.shape[1]
    allowed = kept[:, None, None, :].expand(-1, 1, length, -1)
    if not causal:
        return allowed
    return allowed & torch.ones(length, length, dtype=torch.bool, device=kept.device).tril()


def _positions(kept: Bool[Tensor, "B S"]) -> Int64[Tensor, "B S"]:
    """As if the padding were not there."""
    return (kept.long().cumsum(dim=1) - 1).clamp(min=0)
