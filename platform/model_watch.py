"""What a run measures of its models on held-out real episodes while it goes on, and the film strip of each look."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from buffers.replay import Modelling

from .context import FILM, OBS_MODEL, REWARD_MODEL, Context
from .quality import held_out_films
from .role import State
from .storage import disk_errors
from .weights import Weights, load_arrays

WINDOWS = 192
FRAMES = 512
"""Held-out frames that M_reward is judged on."""
MEMORY = 3
"""Measurements that count together: one alone moves by its windows more than by the models."""
BY_STEP = ("psnr_by_step", "psnr_copy_by_step", "ssim_by_step", "perceptual_by_step")


class ModelWatch:
    """Measures the newest published models; what it says are facts for the board."""

    def __init__(self, context: Context, real: Modelling, weights: Weights, *, horizon: int) -> None:
        self._context, self._real, self._weights, self._horizon = context, real, weights, horizon
        self._obs_model = context.make_obs_model().eval()
        self._reward_model = context.make_reward_model().eval()
        self._reports: deque[dict[str, Any]] = deque(maxlen=MEMORY)

    def measure(self, policy_version: int) -> dict[str, Any]:
        """Outcome agreement by horizon, frames by step, M_reward alone; leaves a film strip in the store.

        ``B_real`` must hold a held-out episode.
        """
        from world_models.quality import outcome_agreement, reward_quality

        for name, model in ((OBS_MODEL, self._obs_model), (REWARD_MODEL, self._reward_model)):
            published = self._weights.fetch(name, -1)
            assert published is not None
            load_arrays(model, published.arrays)
        encode = self._context.vocabulary.encode
        threshold = self._reward_model.threshold
        windows = self._real.windows(WINDOWS, self._context.history, self._horizon, split="held_out")
        report = outcome_agreement(
            self._obs_model, self._reward_model, windows, encode=encode, threshold=threshold
        )
        self._reports.append(report.to_json())
        frames = self._real.outcomes(FRAMES, split="held_out", balance=False)
        judged = reward_quality(self._reward_model, frames, encode=encode, threshold=threshold)
        self._leave_film(policy_version)
        return self._by_horizon() | {
            **{f"reward_model/{name}": getattr(judged, name) for name in ("auc", "precision", "recall", "false_success")},
            "reward_model/calibration_error": judged.calibration.error,
        }  # fmt: skip

    def _by_horizon(self) -> dict[str, Any]:
        reports = list(self._reports)
        return {
            "quality/by_horizon": mean_rows([report["by_horizon"] for report in reports]),
            **{f"quality/{name}": mean_steps([report[name] for report in reports]) for name in BY_STEP},
        }

    def _leave_film(self, policy_version: int) -> None:
        from world_models.film import film_sheet

        films = held_out_films(
            self._context, self._real, self._obs_model, self._reward_model, horizon=self._horizon
        )
        sheet = film_sheet(films, threshold=self._reward_model.threshold)
        # The store may be ahead of this role's state in a checkpoint: the store counts.
        before = self._weights.fetch(FILM, -1)
        number = 1 if before is None else before.version + 1
        arrays = {"sheet": sheet, "policy_version": np.asarray(policy_version)}
        self._weights.publish(FILM, number, arrays)

    def state(self) -> State:
        """The measurements that still count."""
        return {"reports": list(self._reports)}

    def load(self, state: State) -> None:
        """Continue from ``state``."""
        self._reports = deque(state["reports"], maxlen=MEMORY)


def mean_rows(reports: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows by horizon, averaged over reports of equally many windows each; ``windows`` adds up."""
    rows = []
    for same_horizon in zip(*reports, strict=True):
        row = {key: float(np.mean([each[key] for each in same_horizon])) for key in same_horizon[0]}
        row["horizon"] = same_horizon[0]["horizon"]
        row["windows"] = sum(each["windows"] for each in same_horizon)
        rows.append(row)
    return rows


def mean_steps(reports: Sequence[list[float]]) -> list[float]:
    """Means by step, as far as every report goes."""
    return [float(np.mean(same_step)) for same_step in zip(*reports, strict=False)]


class FilmShelf:
    """Takes new film strips from the store into ``folder``, named by the policy's version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = -1

    def collect(self, weights: Weights) -> None:
        """Write what is new. ResourceError when the disk refuses."""
        published = weights.fetch(FILM, self._seen)
        if published is None:
            return
        from world_models.film import write_sheet

        self._seen = published.version
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_sheet(
                published.arrays["sheet"], self._folder / f"{int(published.arrays['policy_version']):06d}.png"
            )


def believed(board: dict[str, Any], horizon: int) -> dict[str, float]:
    """What was last measured at ``horizon``, as metrics; empty before the first measurement or beyond the last horizon."""
    found: dict[str, float] = {}
    for row in board.get("quality/by_horizon") or ():
        if row["horizon"] == horizon:
            found |= {
                f"imagine/{name}": row[name] for name in ("agreement", "false_success", "missed_success")
            }
    psnr = board.get("quality/psnr_by_step") or ()
    if 1 <= horizon <= len(psnr):
        found["imagine/psnr"] = psnr[horizon - 1]
    return found
