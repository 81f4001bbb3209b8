"""M_reward: the probability that a frame shows success, given the instruction."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from configs.reward_model import RewardModelConfig
from world_models.acceleration import uses_bfloat16
from world_models.base import Backbone, Frames, ModelSpec, coordinate_maps, fold_frames
from world_models.denoiser import mean_of_words

GREY_LEVEL = 2.0 / 255.0


class FilmStage(nn.Module):
    """3x3 convolution, group norm, FiLM by the instruction, SiLU; keeps the resolution. Residual where shapes allow."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, padding=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.GroupNorm(1, outputs, affine=False)
        self.film = nn.Linear(width, 2 * outputs)
        nn.init.zeros_(self.film.bias)
        self.residual = inputs == outputs

    def forward(self, x: Float[Tensor, "B C h w"], words: Float[Tensor, "B E"]) -> Float[Tensor, "B C2 h w"]:
        """``words`` scale and shift the normalised features."""
        scale, shift = self.film(words)[:, :, None, None].chunk(2, dim=1)
        y = F.silu(torch.addcmul(shift, self.norm(self.convolution(x)), 1 + scale))
        return x + y if self.residual else y


class SuccessModel(nn.Module):
    """What every reward model is: a logit of success per frame, calibrated where the config says so."""

    def __init__(self, spec: ModelSpec, config: RewardModelConfig) -> None:
        super().__init__()
        self.spec = spec
        self.config = config
        self._cameras = tuple(spec.cameras)
        if config.calibrated:
            self.register_buffer("scale", torch.ones(()))
            self.register_buffer("offset", torch.zeros(()))
            self.register_buffer("cut", torch.tensor(config.threshold))

    @property
    def threshold(self) -> float:
        """Success probability above which an imagined episode terminates: the config's, unless it was to be measured."""
        return self.config.threshold if self.config.false_success is None else float(self.get_buffer("cut"))

    @property
    def fitted(self) -> tuple[float, float]:
        """Scale and offset in force; (1, 0) before the first calibration."""
        return float(self.get_buffer("scale")), float(self.get_buffer("offset"))

    def calibrate(self, *, scale: float, offset: float, threshold: float) -> None:
        """From now on the probability is ``sigmoid(scale * logit + offset)``, and success what passes ``threshold``."""
        for name, value in (("scale", scale), ("offset", offset), ("cut", threshold)):
            self.get_buffer(name).fill_(value)

    def pixels(self, frames: Frames) -> Tensor:
        """uint8 ``[B, H, W, 3]`` per camera as pixels in [-1, 1], ``[B, ...]`` in the order that the model takes."""
        raise NotImplementedError

    def features(self, pixels: Tensor, instruction: Int[Tensor, "B W"]) -> Tensor:
        """``[B, N]``; inside the caller's autocast."""
        raise NotImplementedError

    def maps(self, pixels: Tensor, instruction: Int[Tensor, "B W"]) -> list[Tensor]:
        """``[B, C, h, w]`` each, shallow to deep; inside the caller's autocast."""
        raise NotImplementedError

    def classify(self, features: Float[Tensor, "B N"]) -> Float[Tensor, " B"]:
        """Logit of success, float32."""
        raise NotImplementedError

    def _autocast(self, device: str) -> AbstractContextManager[object]:
        return torch.autocast(
            device, dtype=torch.bfloat16, enabled=uses_bfloat16(self.config.precision, device)
        )

    def forward(self, pixels: Tensor, instruction: Int[Tensor, "B W"]) -> Float[Tensor, " B"]:
        """Logit of success, as trained: without calibration."""
        with self._autocast(pixels.device.type):
            features = self.features(pixels, instruction)
        return self.classify(features.float())

    @torch.no_grad()
    def logits(self, frames: Frames, instruction: Int[Tensor, "B W"]) -> Float[Tensor, " B"]:
        """Logits of frames {camera: uint8 ``[B, H, W, 3]``}, without calibration."""
        return self(self.pixels(frames), instruction)  # type: ignore[no-any-return]

    @torch.no_grad()
    def feature_maps(self, frames: Frames, instruction: Int[Tensor, "B W"]) -> list[Tensor]:
        """What the layers make of frames {camera: uint8 ``[B, H, W, 3]``}: ``[B, C, h, w]``, shallow to deep."""
        pixels = self.pixels(frames)
        with self._autocast(pixels.device.type):
            return self.maps(pixels, instruction)

    @torch.no_grad()
    def probability(self, frames: Frames, instruction: Int[Tensor, "B W"]) -> Float[Tensor, " B"]:
        """Probability of success in frames {camera: uint8 ``[B, H, W, 3]``}."""
        logits = self.logits(frames, instruction)
        if self.config.calibrated:
            logits = self.get_buffer("scale") * logits + self.get_buffer("offset")
        return logits.sigmoid()

    def loss(
        self,
        frames: Frames,
        instruction: Int[Tensor, "B W"],
        labels: Float[Tensor, " B"],
        *,
        generator: torch.Generator,
    ) -> tuple[Tensor, dict[str, float]]:
        """Binary cross-entropy of shifted, noisy frames; with ``focal_gamma`` g weighted by ``(1 - p_correct)^g``."""
        pixels = self.pixels(shifted(frames, self.config.shift, generator))
        noise = torch.randn(pixels.shape, generator=generator, device=pixels.device)
        logits = self(pixels + self.config.noise * GREY_LEVEL * noise, instruction)
        error = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        if self.config.focal_gamma:
            error = error * (1 - torch.exp(-error)) ** self.config.focal_gamma
        loss = error.mean()
        correct = ((logits > 0) == (labels > 0.5)).float().mean()
        return loss, {"loss": float(loss.detach()), "accuracy": float(correct)}


class RewardModel(SuccessModel):
    """Convolutions of its own. Raises ConfigError where the cameras do not fit the fold."""

    def __init__(self, spec: ModelSpec, config: RewardModelConfig) -> None:
        super().__init__(spec, config)
        size = spec.folded_size(config.fold, multiple=1, where="world_model.reward_model")
        inputs = len(spec.cameras) * 3 * config.fold**2 + 2
        self.register_buffer("coordinates", coordinate_maps(*size), persistent=False)
        self.words = nn.Embedding(spec.num_words, config.width, padding_idx=0)
        widths = [inputs, *config.channels]
        self.stages = nn.ModuleList(FilmStage(a, b, config.width) for a, b in itertools.pairwise(widths))
        # Success is one place in the frame: the strongest response decides; the mean tells what else there is.
        self.head = nn.Sequential(nn.Linear(2 * config.channels[-1], config.width), nn.SiLU())
        self.logit = nn.Linear(config.width, 1)

    def pixels(self, frames: Frames) -> Float[Tensor, "B C h w"]:
        """Folded."""
        return fold_frames(frames, self._cameras, self.config.fold)

    def features(self, pixels: Float[Tensor, "B C h w"], instruction: Int[Tensor, "B W"]) -> Tensor:
        """Strongest and mean response of each channel."""
        # Flattened in memory's order: pooling over (2, 3) would send gradients back in another layout, at twice the cost.
        cells = self.maps(pixels, instruction)[-1].movedim(1, -1).flatten(1, 2)
        return torch.cat([cells.amax(1), cells.mean(1)], dim=1)

    def maps(self, pixels: Float[Tensor, "B C h w"], instruction: Int[Tensor, "B W"]) -> list[Tensor]:
        """Of each stage."""
        words = mean_of_words(self.words, instruction)
        coordinates = self.get_buffer("coordinates").expand(pixels.shape[0], -1, -1, -1)
        x = torch.cat([pixels, coordinates], dim=1).contiguous(memory_format=torch.channels_last)
        maps = []
        for stage in self.stages:
            x = stage(x, words)
            maps.append(x)
        return maps

    def classify(self, features: Float[Tensor, "B N"]) -> Float[Tensor, " B"]:
        """Two layers."""
        return self.logit(self.head(features))[:, 0]  # type: ignore[no-any-return]


class PolicyRewardModel(SuccessModel):
    """A head on the first layers of the policy, which it owns from then on: both learn their own way."""

    def __init__(self, spec: ModelSpec, config: RewardModelConfig, backbone: Backbone) -> None:
        super().__init__(spec, config)
        assert isinstance(backbone, nn.Module)
        self.backbone = backbone.requires_grad_(not config.freeze_backbone)
        self.head = nn.Sequential(
            nn.LayerNorm(backbone.num_features), nn.Linear(backbone.num_features, config.width), nn.SiLU()
        )
        self.logit = nn.Linear(config.width, 1)

    def pixels(self, frames: Frames) -> Float[Tensor, "B N H W 3"]:
        """One camera after the other, in the order of the spec."""
        return torch.stack([frames[name] for name in self._cameras], dim=1).float() / 127.5 - 1

    def features(self, pixels: Float[Tensor, "B N H W 3"], instruction: Int[Tensor, "B W"]) -> Tensor:
        """Those of the policy."""
        views = ((pixels + 1) * 127.5).unbind(1)
        frames = dict(zip(self._cameras, views, strict=True))
        return self.backbone(frames, instruction)

    def maps(self, pixels: Float[Tensor, "B N H W 3"], instruction: Int[Tensor, "B W"]) -> list[Tensor]:
        """The features, as one map of one cell: the policy keeps its layers to itself."""
        return [self.features(pixels, instruction)[:, :, None, None]]

    def classify(self, features: Float[Tensor, "B N"]) -> Float[Tensor, " B"]:
        """Two layers on standardised features."""
        return self.logit(self.head(features))[:, 0]  # type: ignore[no-any-return]


def shifted(frames: Frames, most: int, generator: torch.Generator) -> Frames:
    """Frames ``[B, H, W, 3]`` moved by up to ``most`` pixels per axis, edges repeated (DrQ, arXiv:2004.13649)."""
    if most == 0:
        return frames
    rows = next(iter(frames.values())).shape[0]
    moves = torch.randint(-most, most + 1, (rows, 2), generator=generator, device=generator.device)
    result = {}
    for name, frame in frames.items():
        height, width = frame.shape[1:3]
        y = (torch.arange(height, device=frame.device) + moves[:, :1]).clamp(0, height - 1)
        x = (torch.arange(width, device=frame.device) + moves[:, 1:]).clamp(0, width - 1)
        batch = torch.arange(rows, device=frame.device)[:, None, None]
        result[name] = frame[batch, y[:, :, None], x[:, None, :]]
    return result
