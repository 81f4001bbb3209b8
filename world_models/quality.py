"""How far the models can be believed, measured on held-out real episodes.

The measure is outcome agreement: from one real start, under the recorded actions, does success happen in both worlds?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray

from world_models.base import InstructionEncoder, frames_to_torch
from world_models.env_steps import TransitionWindows, past_of
from world_models.obs_model import ObservationModel
from world_models.pictures import feature_distance, psnr, ssim
from world_models.reliability import Reliability, reliability
from world_models.reward_model import SuccessModel
from world_models.training import LabelledFrames

ROWS = 128
"""Windows imagined together."""


class JudgedWindows(TransitionWindows, Protocol):
    """Held-out windows that know how the real episode went on."""

    success_within: NDArray[np.bool_]
    """``[B, S+1]``: the record succeeds within h decisions, for h = 0..S."""


@dataclass(frozen=True)
class HorizonQuality:
    """Outcomes within ``horizon`` decisions; all shares are of all windows."""

    horizon: int
    windows: int
    agreement: float
    """Success in both worlds or in neither."""
    false_success: float
    """Success in imagination only: what a policy learns to exploit."""
    missed_success: float
    """Success in reality only."""
    real_success: float
    imagined_success: float


@dataclass(frozen=True)
class QualityReport:
    """Both models together, open loop."""

    by_horizon: list[HorizonQuality]
    psnr_by_step: list[float]
    """dB of imagined against real frames after 1, 2, … decisions, over the windows that last that long."""
    psnr_copy_by_step: list[float]
    """dB of the first frame against the same real frames: what an imagination without motion would have."""
    ssim_by_step: list[float]
    """Structural similarity of imagined and real frames, 1 where they are equal."""
    perceptual_by_step: list[float]
    """Distance of imagined and real frames in the features of M_reward, 0 where they are equal."""

    def to_json(self) -> dict[str, Any]:
        """As JSON types; ``from_json`` is the inverse."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> QualityReport:
        """Read what ``to_json`` wrote."""
        rows = [HorizonQuality(**row) for row in data["by_horizon"]]
        return QualityReport(**{**data, "by_horizon": rows})


@dataclass(frozen=True)
class RewardQuality:
    """M_reward alone, on real held-out frames."""

    auc: float
    """Probability that a success frame scores above another one; ties count half."""
    precision: float
    recall: float
    false_success: float
    """Share of the frames without success that the model calls success."""
    successes: int
    others: int
    calibration: Reliability

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class OpenLoop:
    """Held-out windows imagined under the recorded actions; row 0 in time is the real start."""

    frames: dict[str, UInt8[NDArray[np.uint8], "N S1 H W 3"]]
    probabilities: Float[NDArray[np.float32], "N S1"]
    """Success probability of each imagined frame; past a record's end it is 0 and frames repeat."""


@torch.no_grad()
def imagine_open_loop(
    obs_model: ObservationModel,
    reward_model: SuccessModel,
    windows: TransitionWindows,
    *,
    encode: InstructionEncoder,
    seed: int,
) -> OpenLoop:
    """Imagine every window from its real start, as long as the record has actions."""
    count = windows.mask.shape[0]
    parts = [
        _imagine_rows(obs_model, reward_model, windows, np.arange(i, min(i + ROWS, count)), encode, seed + i)
        for i in range(0, count, ROWS)
    ]
    return OpenLoop(
        {name: np.concatenate([p.frames[name] for p in parts]) for name in windows.frames},
        np.concatenate([p.probabilities for p in parts]),
    )


def _imagine_rows(
    obs_model: ObservationModel,
    reward_model: SuccessModel,
    windows: TransitionWindows,
    rows: NDArray[np.int64],
    encode: InstructionEncoder,
    seed: int,
) -> OpenLoop:
    device = next(obs_model.parameters()).device
    steps = windows.mask.shape[1]
    length = next(iter(windows.frames.values())).shape[1] - steps
    generator = torch.Generator(device).manual_seed(seed)
    words = torch.from_numpy(encode([windows.instructions[i] for i in rows])).to(device)
    tokens = torch.from_numpy(windows.tokens[rows]).to(device)
    valid = torch.from_numpy(windows.valid[rows]).to(device)
    mask = torch.from_numpy(windows.mask[rows]).to(device)
    history, proprio = obs_model.start(past_of(windows, rows), device)
    present = frames_to_torch(
        {name: frame[rows, length - 1] for name, frame in windows.frames.items()}, device
    )
    frames = {name: [frame.cpu().numpy().copy()] for name, frame in present.items()}
    probabilities = [reward_model.probability(present, words).float().cpu().numpy()]
    for step in range(steps):
        on = mask[:, step].nonzero()[:, 0]
        probability = torch.zeros(len(rows), device=device)
        if len(on):
            chance = probability[on]
            # Success inside a decision counts, as it does where a policy is imagined.
            for state in obs_model.unroll(
                history[on],
                proprio[on],
                tokens[on, step],
                words[on],
                generator=generator,
                valid=valid[on, step],
            ):
                seen = obs_model.frames(state[0][:, -1])
                chance = torch.maximum(chance, reward_model.probability(seen, words[on]).float())
            (history[on], proprio[on]), probability[on] = state, chance
            for name, frame in seen.items():
                present[name][on] = frame
        for name in frames:
            frames[name].append(present[name].cpu().numpy().copy())
        probabilities.append(probability.cpu().numpy())
    return OpenLoop(
        {name: np.stack(series, axis=1) for name, series in frames.items()}, np.stack(probabilities, axis=1)
    )


def outcome_agreement(
    obs_model: ObservationModel,
    reward_model: SuccessModel,
    windows: JudgedWindows,
    *,
    encode: InstructionEncoder,
    threshold: float,
    seed: int = 0,
) -> QualityReport:
    """Agreement by horizon 1..S and frames by step over held-out windows of S decisions.

    A record that ended before h counts with what happened until its end: imagination goes on only while the recorded
    actions last.
    """
    film = imagine_open_loop(obs_model, reward_model, windows, encode=encode, seed=seed)
    imagined = np.logical_or.accumulate(film.probabilities[:, 1:] >= threshold, axis=1)
    rows = compare_outcomes(imagined, windows.success_within[:, 1:])
    steps = windows.mask.shape[1]
    real = {name: frame[:, -steps:] for name, frame in windows.frames.items()}
    made = {name: frame[:, 1:] for name, frame in film.frames.items()}
    still = {name: np.broadcast_to(frame[:, :1], frame[:, 1:].shape) for name, frame in film.frames.items()}
    return QualityReport(
        rows,
        _by_step(psnr, made, real, windows.mask),
        _by_step(psnr, still, real, windows.mask),
        _by_step(ssim, made, real, windows.mask),
        _perceptual_by_step(reward_model, made, real, windows, encode),
    )


def compare_outcomes(
    imagined: Bool[NDArray[np.bool_], "N S"], real: Bool[NDArray[np.bool_], "N S"]
) -> list[HorizonQuality]:
    """Rows for horizons 1..S from "success within h" in both worlds."""
    return [
        HorizonQuality(
            horizon=h + 1,
            windows=len(imagined),
            agreement=float((imagined[:, h] == real[:, h]).mean()),
            false_success=float((imagined[:, h] & ~real[:, h]).mean()),
            missed_success=float((~imagined[:, h] & real[:, h]).mean()),
            real_success=float(real[:, h].mean()),
            imagined_success=float(imagined[:, h].mean()),
        )
        for h in range(imagined.shape[1])
    ]


def _steps(mask: NDArray[np.bool_]) -> list[int]:
    """Steps that any window has."""
    return [step for step in range(mask.shape[1]) if mask[:, step].any()]


def _by_step(
    measure: Callable[[NDArray[np.uint8], NDArray[np.uint8]], float],
    a: dict[str, NDArray[np.uint8]],
    b: dict[str, NDArray[np.uint8]],
    mask: NDArray[np.bool_],
) -> list[float]:
    """Mean over cameras of ``measure``, over the windows that have the step."""
    return [
        float(np.mean([measure(a[name][mask[:, s], s], b[name][mask[:, s], s]) for name in sorted(a)]))
        for s in _steps(mask)
    ]


def _perceptual_by_step(
    reward_model: SuccessModel,
    a: dict[str, NDArray[np.uint8]],
    b: dict[str, NDArray[np.uint8]],
    windows: TransitionWindows,
    encode: InstructionEncoder,
) -> list[float]:
    """Mean feature distance over the windows that have the step."""
    device = next(reward_model.parameters()).device
    words = torch.from_numpy(encode(windows.instructions)).to(device)
    means = []
    for step in _steps(windows.mask):
        parts, present = [], np.flatnonzero(windows.mask[:, step])
        for rows in (present[i : i + ROWS] for i in range(0, len(present), ROWS)):
            one, two = (
                reward_model.feature_maps(
                    frames_to_torch({name: frame[rows, step] for name, frame in frames.items()}, device),
                    words[torch.from_numpy(rows).to(device)],
                )
                for frames in (a, b)
            )
            parts.append(feature_distance(one, two))
        means.append(float(torch.cat(parts).mean()))
    return means


@torch.no_grad()
def reward_quality(
    reward_model: SuccessModel, batch: LabelledFrames, *, encode: InstructionEncoder, threshold: float
) -> RewardQuality:
    """M_reward on held-out frames; ratios without a case are 0."""
    device = next(reward_model.parameters()).device
    scores = []
    for i in range(0, len(batch.label), ROWS):
        words = torch.from_numpy(encode(batch.instructions[i : i + ROWS])).to(device)
        frames = {name: frame[i : i + ROWS] for name, frame in batch.frames.items()}
        scores.append(reward_model.probability(frames_to_torch(frames, device), words).float().cpu().numpy())
    return judge_scores(np.concatenate(scores), batch.label > 0.5, threshold)


def judge_scores(scores: NDArray[np.float32], success: NDArray[np.bool_], threshold: float) -> RewardQuality:
    """AUC by ranks (Mann-Whitney), precision, recall and false-success rate at ``threshold``."""
    called = scores >= threshold
    hits = int((called & success).sum())
    positives, negatives = int(success.sum()), int((~success).sum())
    return RewardQuality(
        auc=_auc(scores, success),
        precision=hits / max(1, int(called.sum())),
        recall=hits / max(1, positives),
        false_success=int((called & ~success).sum()) / max(1, negatives),
        successes=positives,
        others=negatives,
        calibration=reliability(scores, success),
    )


def _auc(scores: NDArray[np.float32], success: NDArray[np.bool_]) -> float:
    """0.5 where one of the classes is empty."""
    positives, negatives = int(success.sum()), int((~success).sum())
    if positives == 0 or negatives == 0:
        return 0.5
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = float(mean_rank[inverse][success].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
