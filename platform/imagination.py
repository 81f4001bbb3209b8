"""The imagination role: a whole batch of imagined worlds per step, from real starts, into ``B_img``.

Policy and both models live in this process as copies that are swapped by version between segments; no call per
imagined decision leaves it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from buffers.records import Record
from buffers.replay import Collecting, Modelling
from buffers.samples import Admission
from configs.world_model import ImaginationConfig
from world_models.schedules import ScheduleInputs, gated_horizon, make_schedule

from .context import OBS_MODEL, POLICY, REWARD_MODEL, Context
from .envs.base import Observation
from .guard import Guard
from .metrics import Averages
from .model_watch import believed
from .role import State
from .weights import Board, Weights, load_arrays

if TYPE_CHECKING:
    from buffers.batches import StartBatch
    from world_models.imagined_env import ImaginedStep

log = logging.getLogger(__name__)


@dataclass
class _Trace:
    """What happened in B imagined worlds, step by step."""

    images: list[dict[str, NDArray[np.uint8]]]
    proprio: list[NDArray[np.float32]]
    tokens: list[NDArray[np.int16]]
    log_probs: list[NDArray[np.float32]]
    values: list[NDArray[np.float32]]
    rewards: list[NDArray[np.float32]]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    uncertain: NDArray[np.bool_]
    """Ended where two draws of the next frame disagreed."""


def first_measurement_is_due(board: dict[str, Any]) -> bool:
    """Whether the models are about to be measured on real episodes that were there before the run."""
    return bool(board.get("quality/first_is_due")) and "quality/by_horizon" not in board


@dataclass(frozen=True)
class _Allowed:
    """The horizon that may be used now, and why."""

    horizon: int
    scheduled: int
    believed: dict[str, float]
    """What was measured of the models at that horizon."""


class Imagination:
    """Each ``step`` imagines one batch of segments, unless ``B_img`` is full or the gate or guard is shut."""

    def __init__(
        self,
        context: Context,
        config: ImaginationConfig,
        real: Modelling,
        imagined: Collecting,
        weights: Weights,
        board: Board,
        *,
        admission: Admission,
    ) -> None:
        import torch

        from world_models.imagined_env import ImaginedWorlds

        self.name = "imagination"
        self._context, self._config = context, config
        self._real, self._imagined, self._weights, self._board = real, imagined, weights, board
        self._admission = admission
        self._policy = context.make_policy().eval()
        obs_model, reward_model = context.make_obs_model().eval(), context.make_reward_model().eval()
        self._reward_model = reward_model
        self._modules = {POLICY: self._policy, OBS_MODEL: obs_model, REWARD_MODEL: reward_model}
        self._versions = {POLICY: -1, OBS_MODEL: -1, REWARD_MODEL: -1}
        self._schedule = make_schedule(config.schedule)
        self._worlds = ImaginedWorlds(
            obs_model, reward_model, encode=context.vocabulary.encode,
            threshold=reward_model.threshold, reward=config.reward,
            seed=context.seed + 202, max_disagreement=self._schedule.max_disagreement,
        )  # fmt: skip
        self._generator = torch.Generator().manual_seed(context.seed + 203)
        self._guard = Guard(config.guard)
        self._averages = Averages()
        self._segments = 0
        self.imagined_steps = 0
        self._open: bool | None = None
        self._fruitless = False
        """Whether the last batch gave nothing: no world came through its first decision."""
        self._started = False

    def step(self) -> bool:
        """Imagine one batch of segments."""
        board = self._board.read()
        self._refresh()
        allowed = self._allowed(board)
        is_open = allowed.horizon > 0 and not self._fruitless
        # Models that are about to be measured are not judged yet: real data would train the policy alone meanwhile.
        if is_open or not first_measurement_is_due(board):
            self._say_open(is_open)
        if allowed.horizon == 0 or not self._has_starts():
            return False
        if self._imagined.room(self._admission) == 0:
            return False
        began = time.monotonic()
        starts = self._real.starts(
            self._config.worlds, self._context.world_model_config.obs_model.history,
            recent=self._recent(), first=round(self._config.first_fraction * self._config.worlds),
            horizon=allowed.horizon,
        )  # fmt: skip
        trace = self._imagine(starts, allowed.horizon)
        records = self._records(starts, trace, allowed.horizon)
        self._fruitless = not records
        self._imagined.extend(records)
        self._report(starts, trace, allowed, time.monotonic() - began)
        return bool(records)

    def _has_starts(self) -> bool:
        """Whether ``B_real`` has a state to start from; a run without ``data`` waits for its first episode.

        What was there once stays: the oldest records leave only for newer ones.
        """
        self._started = self._started or self._real.stats()["train_decisions"] > 0
        return self._started

    def _recent(self) -> int | None:
        return self._config.recent if self._config.starts == "recent" else None

    def _refresh(self) -> None:
        """Swap in newer weights, whole, between segments."""
        for name, module in self._modules.items():
            published = self._weights.fetch(name, self._versions[name])
            if published is not None:
                load_arrays(module, published.arrays)
                if name != POLICY and self._versions[name] >= 0:
                    self._say(self._guard.models_improved().said)
                self._versions[name] = published.version
        # A calibrated reward model brings its own.
        self._worlds.threshold = self._reward_model.threshold

    def _allowed(self, board: dict[str, Any]) -> _Allowed:
        from world_models.quality import HorizonQuality

        rows = board.get("quality/by_horizon")
        measured = None if rows is None else [HorizonQuality(**row) for row in rows]
        scheduled = self._schedule.horizon(
            ScheduleInputs(
                updates=board.get("policy/turns", 0),
                obs_val_loss=board.get("obs_model/val_loss"),
                first_obs_val_loss=board.get("obs_model/first_val_loss"),
                measured=measured,
                psnr_by_step=board.get("quality/psnr_by_step"),
            )
        )
        # A segment is a record like any other: never longer than an episode.
        scheduled = min(scheduled, self._context.record_spec.max_decisions)
        ruling = self._guard.ruling()
        gated = 0 if ruling.paused else gated_horizon(scheduled, measured, self._config.gate)
        # The guard's last step is a pause of its own, never a horizon that shrank to nothing.
        horizon = max(1, gated - ruling.shorten) if gated else 0
        return _Allowed(horizon, scheduled, believed(board, horizon))

    def _say_open(self, is_open: bool) -> None:
        if is_open != self._open:
            self._board.put({"imagination/open": is_open})
            if self._open is not None or not is_open:
                self._say(
                    "imagination opened"
                    if is_open
                    else "imagination closed: no horizon passes gate and guard, or no world its first decision"
                )
            self._open = is_open

    def _say(self, line: str) -> None:
        if line:
            log.warning("%s", line)
            self._board.put({"guard/last": line})

    def _imagine(self, starts: StartBatch, horizon: int) -> _Trace:
        import torch

        first = self._worlds.reset(starts.frames, starts.proprio, starts.instructions)
        count = len(starts.instructions)
        trace = _Trace(
            [first.images], [first.proprio], [], [], [], [],
            np.zeros(count, np.int64), *(np.zeros(count, np.bool_) for _ in range(3)),
        )  # fmt: skip
        observation = Observation(first.images, first.proprio, first.instructions)
        for _ in range(horizon):
            tensors = self._context.tensors(observation)
            with torch.inference_mode():
                tokens, log_probs, values = self._policy.act(tensors, greedy=False, generator=self._generator)
            trace.tokens.append(tokens.cpu().numpy().astype(np.int16))
            trace.log_probs.append(log_probs.float().cpu().numpy())
            trace.values.append(values.float().cpu().numpy())
            result = self._worlds.step(trace.tokens[-1])
            self._note(trace, result)
            observation = Observation(
                result.observation.images, result.observation.proprio, result.observation.instructions
            )
            if not self._worlds.running.any():
                break
        return trace

    @staticmethod
    def _note(trace: _Trace, result: ImaginedStep) -> None:
        trace.images.append(result.observation.images)
        trace.proprio.append(result.observation.proprio)
        trace.rewards.append(result.rewards)
        trace.lengths += result.stepped & ~result.failed & ~result.uncertain
        trace.terminated |= result.terminated
        trace.failed |= result.failed
        trace.uncertain |= result.uncertain

    def _records(self, starts: StartBatch, trace: _Trace, horizon: int) -> list[Record]:
        """Segments; worlds whose models failed keep what they had before that, or nothing."""
        images = {name: np.stack([frame[name] for frame in trace.images], axis=1) for name in trace.images[0]}
        proprio = np.stack(trace.proprio, axis=1).astype(np.float32)
        tokens, log_probs = np.stack(trace.tokens, axis=1), np.stack(trace.log_probs, axis=1)
        values, rewards = np.stack(trace.values, axis=1), np.stack(trace.rewards, axis=1)
        executed = np.arange(self._context.record_spec.chunk) < self._context.record_spec.replan
        records = []
        for row in np.flatnonzero(trace.lengths > 0):
            T = int(trace.lengths[row])
            records.append(
                Record(
                    images={name: frames[row, : T + 1] for name, frames in images.items()},
                    proprio=proprio[row, : T + 1],
                    instruction=starts.instructions[row],
                    tokens=tokens[row, :T],
                    log_probs=log_probs[row, :T],
                    valid=np.tile(executed, (T, 1)),
                    rewards=rewards[row, :T].astype(np.float32),
                    values=values[row, :T],
                    version=np.full(T, self._versions[POLICY], np.int32),
                    terminated=bool(trace.terminated[row]),
                    truncated=not trace.terminated[row],
                    success=bool(trace.terminated[row]),
                    task=starts.tasks[row],
                    seed=int(starts.seeds[row]),
                    episode_id=self._segments,
                    source="imagined",
                    is_first=bool(starts.t[row] == 0),
                    is_last=bool(trace.terminated[row]),
                    horizon=horizon,
                    obs_model_version=max(0, self._versions[OBS_MODEL]),
                    reward_model_version=max(0, self._versions[REWARD_MODEL]),
                )
            )
            self._segments += 1
        return records

    def _report(self, starts: StartBatch, trace: _Trace, allowed: _Allowed, seconds: float) -> None:
        decisions = int(trace.lengths.sum())
        steps = decisions * self._context.record_spec.replan
        self.imagined_steps += steps
        facts: dict[str, Any] = {"imagined_steps": self.imagined_steps}
        self._averages.add(
            {
                "imagine/horizon": float(allowed.horizon),
                "imagine/scheduled_horizon": float(allowed.scheduled),
                "imagine/steps_per_s": steps / seconds,
                "imagine/return": float(np.sum(trace.rewards) / len(trace.lengths)),
                "imagine/success": float(trace.terminated.mean()),
                "imagine/failed": float(trace.failed.mean()),
                "imagine/uncertain": float(trace.uncertain.mean()),
                "imagine/length": float(trace.lengths.mean()),
                "time/imagine/batch_s": seconds,
            }
        )
        self._averages.add(allowed.believed)
        gap = self._gap(starts, trace, allowed.horizon)
        if gap is not None:
            ruling = self._guard.observe(gap, allowed.horizon)
            self._averages.add({"imagine/gap_to_real": self._guard.gap})
            facts["imagine/gap_to_real"] = self._guard.gap
            self._say(ruling.said)
        self._board.keep(self.name, self.state(), facts)

    def _gap(self, starts: StartBatch, trace: _Trace, horizon: int) -> float | None:
        """Imagined minus real success within the horizon, from the same starts. Only starts of the policy's own
        episodes that had a horizon's time left compare; None when there are too few to say anything.
        """
        left = self._context.record_spec.max_decisions - starts.t
        # What was cut short in imagination alone did not have its horizon's time either.
        comparable = ~starts.demonstration & (left >= horizon) & ~trace.uncertain
        if comparable.sum() < max(8, len(comparable) // 8):
            return None
        real = starts.success_within[comparable, horizon]
        return float(trace.terminated[comparable].mean() - real.mean())

    def state(self) -> State:
        """Generators, schedule, guard, counters; weights come from the store."""
        return {
            "worlds": self._worlds.state(),
            "generator": self._generator.get_state(),
            "schedule": self._schedule.state(),
            "guard": self._guard.state(),
            "segments": self._segments,
            "imagined_steps": self.imagined_steps,
            "open": self._open,
            "fruitless": self._fruitless,
        }

    def load(self, state: State) -> None:
        """Continue from ``state``; weights are fetched again."""
        self._worlds.load(state["worlds"])
        self._generator.set_state(state["generator"])
        self._schedule.load(state["schedule"])
        self._guard.load(state["guard"])
        self._segments, self.imagined_steps = state["segments"], state["imagined_steps"]
        self._open, self._fruitless = state["open"], state["fruitless"]
        self._versions = dict.fromkeys(self._versions, -1)

    def metrics(self) -> dict[str, float]:
        """Horizon, rates, success, the gap."""
        return self._averages.take()

    def close(self) -> None:
        """Nothing is held."""
