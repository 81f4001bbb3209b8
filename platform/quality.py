"""The quality report of a pair of models and a policy: written by pretraining and at the end of a run."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from buffers.replay import Modelling, ReplayBuffer

from .context import OBS_MODEL, REWARD_MODEL, Context
from .weights import Arrays, load_arrays

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from buffers.records import RecordSpec
    from world_models.film import Film
    from world_models.quality import QualityReport, RewardQuality

WINDOWS = 384
MOST_DECISIONS, MOST_BYTES = 9216, 256_000_000
"""Imagined decisions of all windows together, and bytes of their real frames."""
LEAST_WINDOWS = 16
FRAMES = 1024
FILM_WINDOWS = 64
STRIPS = 4
"""Episodes in the film strip."""


@dataclass
class ModelQuality:
    """How far the models can be believed, on held-out real episodes."""

    from_anywhere: QualityReport
    """Windows that start anywhere in an episode, as imagination does."""
    from_start: QualityReport
    """Windows that start where the episode does."""
    reward: RewardQuality
    files: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For ``quality.json``."""
        return {
            "from_anywhere": asdict(self.from_anywhere),
            "from_start": asdict(self.from_start),
            "reward_model": asdict(self.reward),
            "files": self.files,
        }


def report_quality(
    context: Context,
    real: ReplayBuffer,
    models: dict[str, Arrays],
    folder: Path,
    *,
    horizon: int,
) -> ModelQuality:
    """Measure, and write ``quality.json``, ``quality.md``, ``film.png`` and ``film.mp4`` into ``folder``."""
    from world_models.quality import outcome_agreement, reward_quality

    obs_model, reward_model = context.make_obs_model().eval(), context.make_reward_model().eval()
    load_arrays(obs_model, models[OBS_MODEL])
    load_arrays(reward_model, models[REWARD_MODEL])
    encode = context.vocabulary.encode
    threshold, history = reward_model.threshold, context.history
    draw = {"split": "held_out", "generator": np.random.default_rng(0)}
    count = windows_within(context.record_spec, WINDOWS, history, horizon)
    reports = []
    for first in (False, True):
        began = time.monotonic()
        windows = real.windows(count, history, horizon, episode_start=first, **draw)  # type: ignore[arg-type]
        reports.append(
            outcome_agreement(obs_model, reward_model, windows, encode=encode, threshold=threshold)
        )
        log.info(
            "quality: %d windows of up to %d decisions, from %s, in %.0f s",
            count, horizon, "the start of episodes" if first else "anywhere", time.monotonic() - began,
        )  # fmt: skip
    frames = real.outcomes(FRAMES, balance=False, **draw)  # type: ignore[arg-type]
    reward = reward_quality(reward_model, frames, encode=encode, threshold=threshold)
    quality = ModelQuality(reports[0], reports[1], reward)
    folder.mkdir(parents=True, exist_ok=True)
    log.info("quality: %d frames judged, now the film", FRAMES)
    quality.files = film(context, real, obs_model, reward_model, folder, horizon=horizon)
    (folder / "quality.json").write_text(json.dumps(quality.to_json(), indent=1))
    (folder / "quality.md").write_text(quality_table(quality))
    return quality


def windows_within(spec: RecordSpec, wanted: int, history: int, horizon: int) -> int:
    """At most ``wanted`` windows of ``horizon`` decisions, as many as stay within ``MOST_DECISIONS`` and ``MOST_BYTES``;
    but ``LEAST_WINDOWS``, below which shares say nothing.
    """
    frame = sum(3 * height * width for height, width in spec.cameras.values())
    fitting = min(MOST_DECISIONS // horizon, MOST_BYTES // (frame * (history + horizon)))
    return min(wanted, max(LEAST_WINDOWS, fitting))


def film(
    context: Context, real: Modelling, obs_model: Any, reward_model: Any, folder: Path, *, horizon: int,
) -> list[str]:  # fmt: skip
    """Held-out episodes, real above imagined under the same actions: a strip and a video."""
    from world_models.film import film_strip, film_video

    films = held_out_films(context, real, obs_model, reward_model, horizon=horizon)
    film_strip(films, folder / "film.png", threshold=reward_model.threshold)
    film_video(films, folder / "film.mp4")
    return ["film.png", "film.mp4"]


def held_out_films(
    context: Context, real: Modelling, obs_model: Any, reward_model: Any, *, horizon: int
) -> list[Film]:
    """The longest of a draw of held-out episodes, in both worlds; the same ones while ``B_real`` stays the same."""
    from world_models.film import Film
    from world_models.quality import imagine_open_loop

    history = context.history
    count = windows_within(context.record_spec, FILM_WINDOWS, history, horizon)
    windows = real.windows(
        count, history, horizon, split="held_out", episode_start=True, generator=np.random.default_rng(1)
    )
    longest = np.argsort(-windows.mask.sum(axis=1), kind="stable")
    _, unique = np.unique(windows.ids[longest], return_index=True)
    rows = longest[np.sort(unique)][:STRIPS]
    imagined = imagine_open_loop(obs_model, reward_model, windows, encode=context.vocabulary.encode, seed=0)
    camera = next(iter(windows.frames))
    reals = [windows.frames[camera][row, history - 1 :][: 1 + int(windows.mask[row].sum())] for row in rows]
    dreams = [imagined.frames[camera][row][: len(frames)] for row, frames in zip(rows, reals, strict=True)]
    chances = [imagined.probabilities[row][: len(frames)] for row, frames in zip(rows, reals, strict=True)]
    titles = [windows.instructions[row] for row in rows]
    return [Film(*parts) for parts in zip(reals, dreams, chances, titles, strict=True)]


def quality_table(quality: ModelQuality) -> str:
    """Markdown: agreement by horizon, frames by step, the reward model alone."""
    lines = [
        "| decisions | agreement | false success | missed | real success | imagined success | PSNR dB | first frame repeated dB "
        "| SSIM | perceptual |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    anywhere = quality.from_anywhere
    for row, ours, copy, likeness, distance in zip(
        anywhere.by_horizon, anywhere.psnr_by_step, anywhere.psnr_copy_by_step, anywhere.ssim_by_step,
        anywhere.perceptual_by_step, strict=False,
    ):  # fmt: skip
        lines.append(
            f"| {row.horizon} | {row.agreement:.3f} | {row.false_success:.3f} | {row.missed_success:.3f} | "
            f"{row.real_success:.3f} | {row.imagined_success:.3f} | {ours:.1f} | {copy:.1f} | "
            f"{likeness:.3f} | {distance:.3f} |"
        )
    reward = quality.reward
    lines += [
        "",
        f"{anywhere.by_horizon[0].windows} held-out windows that start anywhere in an episode, under the recorded actions; "
        "perceptual: distance of real and imagined frames in the features of the reward model. "
        f"Reward model on {reward.successes} success and {reward.others} other held-out frames: AUC {reward.auc:.3f}, "
        f"precision {reward.precision:.3f}, recall {reward.recall:.3f}, false success {reward.false_success:.3f}, "
        f"calibration error {reward.calibration.error:.3f}, Brier score {reward.calibration.brier:.4f}.",
        "",
        "| success probability said | happened | frames |",
        "|---|---|---|",
    ]
    bins = zip(reward.calibration.said, reward.calibration.happened, reward.calibration.frames, strict=True)
    lines += [f"| {said:.2f} | {happened:.2f} | {frames} |" for said, happened, frames in bins]
    return "\n".join([*lines, ""])
