"""Calibration of M_reward: from logits to probabilities that mean what they say, and a threshold with a stated error."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from world_models.base import InstructionEncoder, frames_to_torch
from world_models.reliability import reliability
from world_models.reward_model import SuccessModel
from world_models.training import LabelledFrames

ROWS = 256
"""Frames judged together."""
LARGEST_SCALE = 20.0
"""Where logits separate the classes without a miss, the likelihood would grow the scale for ever."""
ABOVE_ALL = 1.0 - 2.0**-24
"""The largest float32 below 1: a threshold that only a certainty passes."""


@dataclass(frozen=True)
class Calibration:
    """What was fitted to held-out frames, and what it gave there."""

    scale: float
    """The probability is ``sigmoid(scale * logit + offset)``; 1/scale is the temperature."""
    offset: float
    threshold: float
    frames: int
    successes: int
    error_before: float
    """Expected calibration error (arXiv:1706.04599) of the uncalibrated probabilities on the real frames."""
    error_after: float
    false_success: float
    """Share of the real frames without success that pass the threshold."""

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)


def fit_scale(
    logits: Float[NDArray[np.float32], " n"],
    success: Bool[NDArray[np.bool_], " n"],
    kind: Literal["none", "temperature", "platt"],
) -> tuple[float, float]:
    """Scale and offset that maximise the likelihood; (1, 0) for ``none`` and where there is only one class."""
    if kind == "none" or success.all() or not success.any():
        return 1.0, 0.0
    z, y = torch.from_numpy(logits).double(), torch.from_numpy(success).double()
    # Logarithm of the scale, so that it stays positive: calibration never turns a ranking round.
    free = torch.zeros(2 if kind == "platt" else 1, dtype=torch.double, requires_grad=True)
    solver = torch.optim.LBFGS([free], max_iter=200, line_search_fn="strong_wolfe")

    def fitted() -> tuple[torch.Tensor, torch.Tensor]:
        offset = free[1] if kind == "platt" else torch.zeros((), dtype=torch.double)
        return free[0].exp().clamp(max=LARGEST_SCALE), offset

    def closure() -> torch.Tensor:
        solver.zero_grad()
        scale, offset = fitted()
        loss = F.binary_cross_entropy_with_logits(scale * z + offset, y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    scale, offset = fitted()
    return float(scale.detach()), float(offset.detach())


def lowest_threshold(failures: Float[NDArray[np.float32], " n"], rate: float) -> float:
    """The lowest threshold that at most ``rate`` of these probabilities, all without success, reach."""
    allowed = int(np.floor(rate * len(failures) + 1e-9))
    if allowed >= len(failures):
        return float(np.finfo(np.float32).tiny)
    worst = np.sort(failures)[::-1][allowed]
    return min(float(np.nextafter(worst, np.float32(2.0))), ABOVE_ALL)


def judge_logits(
    model: SuccessModel, frames: LabelledFrames, encode: InstructionEncoder
) -> Float[NDArray[np.float32], " n"]:
    """Uncalibrated logits of ``frames``."""
    device = next(model.parameters()).device
    parts = []
    for i in range(0, len(frames.label), ROWS):
        words = torch.from_numpy(encode(frames.instructions[i : i + ROWS])).to(device)
        some = {name: frame[i : i + ROWS] for name, frame in frames.frames.items()}
        parts.append(model.logits(frames_to_torch(some, device), words).float().cpu().numpy())
    return np.concatenate(parts)


def calibrate(
    model: SuccessModel,
    real: LabelledFrames,
    imagined: LabelledFrames | None,
    *,
    encode: InstructionEncoder,
) -> Calibration:
    """Fit the model's calibration to held-out frames, put it into the model, and say what it gave.

    ``real`` frames come as often as they do; scale and offset are theirs alone. A threshold for ``false_success`` must
    hold on ``imagined`` frames as well, whose label is the real outcome. Frames of one class alone tell nothing of the
    scale: then the one before stays.
    """
    config = model.config
    logits, success = judge_logits(model, real, encode), real.label > 0.5
    one_class = success.all() or not success.any()
    scale, offset = model.fitted if one_class else fit_scale(logits, success, config.calibration)
    probabilities = _sigmoid(scale * logits + offset)
    threshold = config.threshold
    if config.false_success is not None:
        threshold = lowest_threshold(probabilities[~success], config.false_success)
        if imagined is not None and (imagined.label < 0.5).any():
            judged = _sigmoid(scale * judge_logits(model, imagined, encode) + offset)
            others = lowest_threshold(judged[imagined.label < 0.5], config.false_success)
            threshold = max(threshold, others)
    model.calibrate(scale=scale, offset=offset, threshold=threshold)
    return Calibration(
        scale=scale,
        offset=offset,
        threshold=threshold,
        frames=len(logits),
        successes=int(success.sum()),
        error_before=reliability(_sigmoid(logits), success).error,
        error_after=reliability(probabilities, success).error,
        false_success=float((probabilities[~success] >= threshold).mean()) if not success.all() else 0.0,
    )


def _sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return torch.from_numpy(logits.astype(np.float32)).sigmoid().numpy()
