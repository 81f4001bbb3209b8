"""Config of pi0 policies: transformers' PI0 (PaliGemma and a flow-matching expert of actions)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from configs.decision import check_replan
from configs.errors import ConfigError
from configs.fields import PositiveFloat, PositiveInt, component
from configs.stored_policy import stored_model_type, temperature_of


@component
class PI0Config:
    """A flow-matching policy, as transformers builds pi0. Needs ``pip install 'reverie-rl[vla]'``."""

    kind: Literal["pi0"] = "pi0"
    path: str | None = None
    """Folder that ``platform.pretrain`` or a run wrote. A folder in transformers' own format is taken as ``base``."""
    base: str | None = None
    """Checkpoint in transformers' format of PI0 (``model_type: pi0``, safetensors, ``tokenizer.json``, ``processor_config.json``
    with the statistics of states and actions), a local folder or a name on the hub. None builds a fresh model of the sizes
    below, which reads instructions byte by byte."""
    chunk: PositiveInt = 4
    """Actions per decision, K: the first ones of the chunk that a checkpoint flows to."""
    replan: PositiveInt = 4
    """How many of them are executed before the next decision."""
    bins: Annotated[int, Field(ge=2, le=1024)] = 256
    """Action tokens per dimension: an action is the middle of one of so many equal parts of the environment's range."""
    sigma: PositiveFloat = 0.1
    """Deviation of an action around the end of the flow, as a share of half the environment's range: how much it explores."""
    temperature: PositiveFloat | None = None
    """What acts and is trained is softmax(logits / temperature). A cloned policy that succeeds when greedy and fails when
    sampled wants less than 1. None is that of the weights at ``path``, and 1 for others."""
    steps: PositiveInt = 4
    """Euler steps of the flow, from noise to action (pi0's own default is 10); training goes back through all of them."""
    freeze_vlm: bool = False
    """Train the expert of actions alone."""
    image_size: PositiveInt = 32
    """Pixels a side that the vision tower of a fresh model reads."""
    patch: PositiveInt = 8
    """Pixels a side of a patch of a fresh model."""
    vision_layers: PositiveInt = 2
    """Layers of its tower."""
    width: PositiveInt = 64
    """Width of its tower and language model."""
    expert_width: PositiveInt = 64
    """Width of its expert of actions."""
    layers: PositiveInt = 2
    """Layers of its language model and its expert, which attend to one another layer by layer."""
    heads: PositiveInt = 2
    """Their attention heads, and those of the tower."""
    value_width: PositiveInt = 64
    """Width of the value head."""

    def __post_init__(self) -> None:
        if self.path is not None and stored_model_type(Path(self.path)) == "pi0":
            self.base, self.path = self.path, None
        self.temperature = temperature_of(self.temperature, self.path)
        check_replan(self.chunk, self.replan)
        for key in ("width", "expert_width"):
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
