"""What both world models share: the shapes they are built for, pixels as tensors, action tokens as numbers.

Shape letters: B rows, L history frames, T frames in a row, S decisions, K actions per chunk, R executed ones, D action
dimensions, P proprio numbers, W words, C channels, H and W pixels; h and w are H and W divided by the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from configs.errors import ConfigError, DataError

Frames = dict[str, Tensor]
"""camera: uint8 ``[..., H, W, 3]``."""
InstructionEncoder = Callable[[list[str]], NDArray[np.int64]]
"""Instructions to word ids ``[B, W]``; 0 pads."""


class Backbone(Protocol):
    """A module that turns frames and instruction into features: the first layers of a policy."""

    num_features: int

    def __call__(self, frames: Frames, instruction: Int[Tensor, "B W"]) -> Float[Tensor, "B N"]:
        """Features of {camera: grey levels ``[B, H, W, 3]``, whole or not}."""
        ...


@dataclass(frozen=True)
class ModelSpec:
    """What the models are built for; a model fits an environment and a policy only where these are equal."""

    cameras: dict[str, tuple[int, int]]
    """Camera name to (height, width), all of one size."""
    proprio_dim: int
    chunk: int
    """Actions per decision, K."""
    replan: int
    """Actions of a chunk that are executed, R: only they can influence what comes next."""
    action_dim: int
    bins: int
    """Action tokens per dimension."""
    num_words: int
    """Size of the instruction vocabulary, padding included."""
    instruction_length: int
    """Words of a padded instruction."""
    model_steps: int = 1
    """Steps of M_obs in a decision: 1, or R where each executed action is one."""
    doubled_last: bool = False
    """The last two tokens stand for the same part of the range, as in OpenVLA's format."""

    @property
    def parts(self) -> int:
        """Equal parts of an action's range that tokens stand for."""
        return self.bins - int(self.doubled_last)

    @property
    def actions_per_step(self) -> int:
        """Executed actions that one step of M_obs sees."""
        return self.replan // self.model_steps

    def to_json(self) -> dict[str, object]:
        """As JSON types; ``from_json`` is the inverse."""
        return {**asdict(self), "cameras": {name: list(size) for name, size in self.cameras.items()}}

    @staticmethod
    def from_json(data: dict[str, object]) -> ModelSpec:
        """Read what ``to_json`` wrote."""
        fields = dict(data)
        cameras = fields.pop("cameras")
        assert isinstance(cameras, dict)
        return ModelSpec(cameras={k: (int(v[0]), int(v[1])) for k, v in cameras.items()}, **fields)  # type: ignore[arg-type]

    def require(self, other: ModelSpec, *, where: str, remedy: str) -> None:
        """Raise DataError that names the first field in which ``other`` differs from this spec."""
        theirs = other.to_json()
        for key, value in self.to_json().items():
            if theirs[key] != value:
                raise DataError(f"{key} is {theirs[key]}, expected {value}", where=where, remedy=remedy)

    def folded_size(self, fold: int, *, multiple: int, where: str) -> tuple[int, int]:
        """(h, w) after folding ``fold x fold`` pixels into channels.

        Raises ConfigError where cameras differ in size or the folded size is no multiple of ``multiple``.
        """
        sizes = set(self.cameras.values())
        if len(sizes) != 1:
            raise ConfigError(
                f"cameras differ in size: {self.cameras}",
                where=where,
                remedy="render all cameras at one size",
            )
        height, width = next(iter(sizes))
        if height % (fold * multiple) or width % (fold * multiple):
            raise ConfigError(
                f"a {height}x{width} frame does not divide by {fold * multiple}",
                where=where,
                remedy="change fold, the number of channel levels, or the camera size",
            )
        return height // fold, width // fold


def fold_frames(frames: Frames, cameras: Sequence[str], fold: int) -> Float[Tensor, "*batch C h w"]:
    """uint8 ``[..., H, W, 3]`` per camera to pixels in [-1, 1], cameras and ``fold x fold`` patches in channels."""
    parts = []
    for name in cameras:
        frame = frames[name]
        flat = frame.reshape(-1, *frame.shape[-3:])
        folded = rearrange(flat, "b (h p) (w q) c -> b h w (p q c)", p=fold, q=fold)
        parts.append(folded.reshape(*frame.shape[:-3], *folded.shape[1:]))
    channels_last = torch.cat(parts, dim=-1).float().div_(127.5).sub_(1.0)
    return channels_last.movedim(-1, -3)


def unfold_frames(pixels: Float[Tensor, "B C h w"], cameras: Sequence[str], fold: int) -> Frames:
    """Inverse of ``fold_frames``: rounds (truncating would darken every imagined step by half a grey level)."""
    grey = pixels.float().add(1.0).mul_(127.5).round_().clamp_(0, 255).to(torch.uint8)
    shapes = {"p": fold, "q": fold}
    return {
        name: rearrange(part, "b (p q c) h w -> b (h p) (w q) c", **shapes).contiguous()
        for name, part in zip(cameras, grey.chunk(len(cameras), dim=1), strict=True)
    }


def quantize(pixels: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Round pixels in [-1, 1] to the 256 grey levels that a stored frame can hold."""
    return pixels.add(1.0).mul_(127.5).round_().clamp_(0, 255).div_(127.5).sub_(1.0)


def normalized_actions(tokens: Int[Tensor, "*batch K D"], parts: int) -> Float[Tensor, "*batch K D"]:
    """Centres of the parts of the range, in units of its half, in (-1, 1): ``2 (token + 1/2) / parts - 1``; tokens beyond the
    last part stand for that.
    """
    return (tokens.clamp(max=parts - 1).float() + 0.5) * (2.0 / parts) - 1.0


def coordinate_maps(height: int, width: int) -> Float[Tensor, "1 2 h w"]:
    """Row and column of each cell, from -1 to 1."""
    rows = torch.linspace(-1, 1, height).view(1, 1, height, 1).expand(1, 1, height, width)
    columns = torch.linspace(-1, 1, width).view(1, 1, 1, width).expand(1, 1, height, width)
    return torch.cat([rows, columns], dim=1)


def frames_to_torch(frames: dict[str, NDArray[np.uint8]], device: torch.device) -> dict[str, Tensor]:
    """Numpy frames as tensors on ``device``."""
    return {name: array_to_torch(array, device) for name, array in frames.items()}


def array_to_torch(array: NDArray[Any], device: torch.device) -> Tensor:
    """A tensor on ``device`` that may be written to: arrays out of shared memory are read-only, and are copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
