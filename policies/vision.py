"""Parts of the small policy that look: a convolutional stem steered by the instruction, and keypoints.

Shape letters: B observations, C channels, H and W pixels, N keypoints, L instruction words, E width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from policies.instructions import PADDING


def coordinate_grid(height: int, width: int, device: torch.device) -> Float[Tensor, "2 H W"]:
    """Columns and rows of the pixel centres in (-1, 1)."""
    y = (torch.arange(height, device=device) + 0.5) * (2 / height) - 1
    x = (torch.arange(width, device=device) + 0.5) * (2 / width) - 1
    return torch.stack([x.expand(height, width), y[:, None].expand(height, width)])


SHARPNESS = 3.0
"""Deviation of the keypoints' scores before training, for features of unit size."""


class InstructionEncoder(nn.Module):
    """Word tokens with their places, and their normalised sum as the sentence."""

    def __init__(self, words: int, length: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PADDING)
        self.place = nn.Parameter(torch.randn(length, width) * 0.1)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Int64[Tensor, "B L"]) -> tuple[Float[Tensor, "B L E"], Float[Tensor, "B E"]]:
        """Tokens (zeros where padded) and the sentence vector."""
        known = (ids != PADDING).unsqueeze(-1)
        tokens = self.mix(self.embedding(ids) + self.place) * known
        return tokens, self.norm(tokens.sum(dim=1))


class FilmStage(nn.Module):
    """Halves the frame; the instruction scales and shifts the features (FiLM, Perez 2018); then a residual.

    Each channel is normalised over its map: an empty table vanishes, what lies on it stands out.
    """

    def __init__(self, channels_in: int, channels_out: int, sentence: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1)
        self.film = nn.Linear(sentence, 2 * channels_out)
        self.conv = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        nn.init.zeros_(self.film.bias)
        for conv in (self.down, self.conv):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")

    def forward(self, x: Float[Tensor, "B C H W"], sentence: Float[Tensor, "B E"]) -> Tensor:
        """``[B, C', H/2, W/2]``."""
        x = F.relu(_film_normalised(self.down(x), self.film(sentence)))
        return x + F.relu(self.conv(x))


def _film_normalised(x: Float[Tensor, "B C H W"], film: Float[Tensor, "B 2C"]) -> Float[Tensor, "B C H W"]:
    """Instance normalisation, then FiLM; written over rows of channels since torch's group norm with one channel a
    group takes ten times as long on channels-last bfloat16 maps.
    """
    scale, shift = film.unsqueeze(1).chunk(2, dim=-1)
    rows: Tensor = x.permute(0, 2, 3, 1).flatten(1, 2)
    rows = rows - rows.mean(dim=1, keepdim=True)
    variance = (rows * rows).mean(dim=1, keepdim=True).float()
    gain = (1 + scale) * (variance + 1e-5).rsqrt()
    rows = rows * gain.to(rows.dtype) + shift.to(rows.dtype)
    return rows.reshape(len(x), *x.shape[2:], -1).permute(0, 3, 1, 2)


class Stem(nn.Module):
    """A uint8 frame becomes a feature map; each stage halves it."""

    def __init__(self, channels: Sequence[int], sentence: int) -> None:
        super().__init__()
        widths = [5, *channels]
        self.stages = nn.ModuleList(FilmStage(a, b, sentence) for a, b in pairwise(widths))

    def forward(self, frame: UInt8[Tensor, "B H W 3"], sentence: Float[Tensor, "B E"]) -> Tensor:
        """``[B, C, H', W']``. The frame's layout in memory is already channels-last."""
        pixels = frame.permute(0, 3, 1, 2).to(sentence.dtype) / 127.5 - 1
        grid = coordinate_grid(frame.shape[1], frame.shape[2], frame.device).to(sentence.dtype)
        x = torch.cat([pixels, grid.expand(len(frame), -1, -1, -1)], dim=1)
        x = x.contiguous(memory_format=torch.channels_last)
        for stage in self.stages:
            x = stage(x, sentence)
        return x


class Keypoints(nn.Module):
    """Spatial softmax (Levine 2016): each keypoint is the expected place, and the expected feature, of one map.

    The maps are dot products of the features with vectors that the instruction makes: "where is the red thing".
    """

    def __init__(self, channels: int, count: int, sentence: int) -> None:
        super().__init__()
        self.shape = (count, channels)
        self.query = nn.Linear(sentence, count * channels)
        # Flat attention would put every keypoint in the middle and learn slowly; sharp from the start does not.
        nn.init.normal_(self.query.weight, std=SHARPNESS / (sentence * channels) ** 0.5)
        nn.init.normal_(self.query.bias, std=SHARPNESS / channels**0.5)

    def forward(
        self, x: Float[Tensor, "B C H W"], sentence: Float[Tensor, "B E"]
    ) -> tuple[Float[Tensor, "B N 2"], Float[Tensor, "B N C"]]:
        """Places in (-1, 1), float32, and features."""
        height, width = x.shape[-2:]
        features = x.flatten(2)
        scores = self.query(sentence).reshape(-1, *self.shape) @ features
        attention = scores.float().softmax(dim=-1)
        grid = coordinate_grid(height, width, x.device).flatten(1)
        with torch.autocast(x.device.type, enabled=False):
            places = attention @ grid.T
        return places, attention.to(x.dtype) @ features.transpose(1, 2)
