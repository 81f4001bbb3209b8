"""Config of OpenVLA-format policies: vision towers, a projector, a Llama language model, action tokens at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from configs.decision import check_replan
from configs.errors import ConfigError
from configs.fields import NaturalInt, PositiveFloat, PositiveInt, component
from configs.stored_policy import stored_model_type, temperature_of


@component
class OpenVLAConfig:
    """A policy in the format of OpenVLA and OpenVLA-OFT. Needs ``pip install 'reverie-rl[vla]'``."""

    kind: Literal["openvla"] = "openvla"
    path: str | None = None
    """Folder that ``platform.pretrain`` or a run wrote. A folder in OpenVLA's own format is taken as ``base``."""
    base: str | None = None
    """Checkpoint in OpenVLA's format, a local folder or a name on the hub: weights, shapes, tokenizer and action
    statistics come from it. None builds a fresh model of the sizes below, which reads instructions byte by byte."""
    unnorm_key: str | None = None
    """Which of the checkpoint's action statistics to use; none where it has one set."""
    gripper: Literal["as_is", "libero"] = "as_is"
    """``libero``: the last dimension is the checkpoint's gripper in [0, 1], 1 is open; the environment wants -1 for open."""
    decoding: Literal["autoregressive", "parallel"] = "parallel"
    """``autoregressive``: each token sees those before it (OpenVLA); ``parallel``: all at once from empty places under
    attention in both directions (OpenVLA-OFT with action tokens)."""
    head: Literal["tokens", "l1"] = "tokens"
    """``l1``: OpenVLA-OFT's continuous head by L1 regression, read from ``action_head.safetensors`` beside ``base``. What
    acts is a Gaussian over action tokens around its answer. Wants ``decoding=parallel``."""
    sigma: PositiveFloat = 0.05
    """Deviation of that Gaussian, as a share of half the range of the statistics: how much it explores."""
    chunk: PositiveInt = 4
    """Actions per decision, K."""
    replan: PositiveInt = 4
    """How many of them are executed before the next decision."""
    bins: Annotated[int, Field(ge=2, le=256)] = 256
    """Action tokens per dimension; a checkpoint says how many it has."""
    temperature: PositiveFloat | None = None
    """What acts and is trained is softmax(logits / temperature). A cloned policy that succeeds when greedy and fails when
    sampled wants less than 1. None is that of the weights at ``path``, and 1 for others."""
    slim: bool = True
    """Keep only the action tokens' rows of the output layer: the same logits, without the memory of the others."""
    image_area: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the frame that is seen, around its centre: 0.9 for checkpoints that were trained with random crops."""
    towers: Literal["siglip", "dinov2", "dinosiglip"] = "siglip"
    """Vision towers of a fresh model; ``dinosiglip`` joins the features of both."""
    image_size: PositiveInt = 32
    """Pixels a side that the towers of a fresh model read."""
    patch: PositiveInt = 8
    """Pixels a side of a patch of a fresh model."""
    vision_width: PositiveInt = 96
    """Width of a tower of a fresh model."""
    vision_layers: PositiveInt = 4
    """Blocks of a tower of a fresh model; the last one takes no part, as in OpenVLA."""
    width: PositiveInt = 128
    """Width of the language model of a fresh model."""
    layers: PositiveInt = 4
    """Its layers."""
    heads: PositiveInt = 4
    """Its attention heads, and those of the towers."""
    proprio: bool = False
    """Read proprioception as one more token behind the patches. Published checkpoints hold no weights for it: they start fresh."""
    value_width: PositiveInt = 64
    """Width of the value head."""
    freeze_vision: bool = False
    """Do not train the towers."""
    freeze_language: bool = False
    """Do not train the language model, except for what ``lora_rank`` adds."""
    lora_rank: NaturalInt = 0
    """Rank of the low-rank updates of the language model's linear layers; 0 is none. Above 0 its own weights are frozen."""
    lora_alpha: PositiveInt = 16
    """Their scale times the rank."""
    checkpointing: bool = False
    """Compute the language model's activations again in the backward pass instead of keeping them."""
    frozen_dtype: Literal["float32", "bfloat16"] = "float32"
    """How frozen weights are held; with bfloat16 the whole forward runs in bfloat16, while what is trained stays float32."""

    def __post_init__(self) -> None:
        if self.path is not None and stored_model_type(Path(self.path)) == "openvla":
            self.base, self.path = self.path, None
        self.temperature = temperature_of(self.temperature, self.path)
        if self.head == "l1" and self.decoding != "parallel":
            raise ConfigError(
                f"policy.head=l1 answers for all places at once, policy.decoding={self.decoding}",
                where="policy", remedy="set policy.decoding=parallel",
            )  # fmt: skip
        check_replan(self.chunk, self.replan)
        for key in ("width", "vision_width"):
            if self.base is None and getattr(self, key) % (2 * self.heads):
                raise ConfigError(
                    f"policy.{key}={getattr(self, key)} does not divide by twice policy.heads={self.heads}",
                    where="policy", remedy="choose a width that is a multiple of twice the heads",
                )  # fmt: skip
        if self.base is None and self.image_size % self.patch:
            raise ConfigError(
                f"policy.image_size={self.image_size} does not divide by policy.patch={self.patch}",
                where="policy", remedy="choose an image size that is a multiple of the patch",
            )  # fmt: skip

    @property
    def language_is_frozen(self) -> bool:
        """Whether the language model's own weights stay as they are."""
        return self.freeze_language or self.lora_rank > 0
