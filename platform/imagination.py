"""The imagination role: a whole batch of imagined worlds per step, from real starts, into ``B_img``.

Policy and both models live in this process as copies that are swapped by version between segments; no call per
imagined decision leaves it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from buffers.records import Images
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
from .segments import Makers, Trace, gap_to_real
from .weights import Board, Weights, load_arrays

if TYPE_CHECKING:
    from buffers.batches import StartBatch

log = logging.getLogger(__name__)


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
        admission: Callable[[int], Admission],
    ) -> None:
        import torch

        from world_models.imagined_actions import make_actions
        from world_models.imagined_env import ImaginedWorlds
        from world_models.imagined_vector_env import ImaginedVectorEnv

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
        worlds = ImaginedWorlds(
            obs_model, reward_model, encode=context.vocabulary.encode,
            threshold=reward_model.threshold, reward=config.reward,
            seed=context.seed + 202, max_disagreement=self._schedule.max_disagreement,
        )  # fmt: skip
        # Each batch of segments is one reset, with the starts and the horizon of its own.
        self._env = ImaginedVectorEnv(
            worlds, config.worlds, horizon=1, actions=make_actions("tokens", context.model_spec),
            autoreset_mode="Disabled",
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
        if self._imagined.room(self._admission(int(board.get("policy/turns", 0)))) == 0:
            return False
        began = time.monotonic()
        starts = self._real.starts(
            self._config.worlds, self._context.history,
            mix=self._config.starts, horizon=allowed.horizon,
        )  # fmt: skip
        trace = self._imagine(starts, allowed.horizon)
        records = trace.records(
            starts, self._makers(allowed.horizon), self._context.record_spec, first_id=self._segments
        )
        self._segments += len(records)
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

    def _makers(self, horizon: int) -> Makers:
        versions = self._versions
        return Makers(versions[POLICY], max(0, versions[OBS_MODEL]), max(0, versions[REWARD_MODEL]), horizon)

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
        self._env.worlds.threshold = self._reward_model.threshold

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

    def _imagine(self, starts: StartBatch, horizon: int) -> Trace:
        import torch

        seen, _ = self._env.reset(options={"starts": starts, "horizon": horizon})
        trace = Trace([self._images(seen)], [seen["proprio"]])
        spec = self._context.record_spec
        while self._env.running.any():
            observation = Observation(trace.images[-1], trace.proprio[-1], starts.instructions)
            tensors = self._context.tensors(observation)
            with torch.inference_mode():
                decided = self._policy.act(tensors, greedy=False, generator=self._generator)
            trace.decide(*decided)
            executed = trace.tokens[-1][:, : spec.replan].reshape(len(starts.instructions), -1)
            seen, rewards, _, _, info = self._env.step(executed)
            trace.note(self._images(seen), seen["proprio"], rewards, info)
        return trace

    def _images(self, seen: dict[str, Any]) -> Images:
        return {name: seen[name] for name in self._context.record_spec.cameras}

    def _report(self, starts: StartBatch, trace: Trace, allowed: _Allowed, seconds: float) -> None:
        steps = trace.env_steps
        self.imagined_steps += steps
        facts: dict[str, Any] = {"imagined_steps": self.imagined_steps}
        self._averages.add(
            {
                "imagine/horizon": float(allowed.horizon),
                "imagine/scheduled_horizon": float(allowed.scheduled),
                "imagine/steps_per_s": steps / seconds,
                **{f"imagine/starts/{kind}": count / len(starts.t) for kind, count in starts.kinds.items()},
                **trace.metrics(),
                "time/imagine/batch_s": seconds,
            }
        )
        self._averages.add(allowed.believed)
        gap = gap_to_real(starts, trace, allowed.horizon, longest=self._context.record_spec.max_decisions)
        if gap is not None:
            ruling = self._guard.observe(gap, allowed.horizon)
            self._averages.add({"imagine/gap_to_real": self._guard.gap})
            facts["imagine/gap_to_real"] = self._guard.gap
            self._say(ruling.said)
        self._board.keep(self.name, self.state(), facts)

    def state(self) -> State:
        """Generators, schedule, guard, counters; weights come from the store."""
        return {
            "worlds": self._env.state(),
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
        self._env.load(state["worlds"])
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
