"""The guard: notices when imagined success runs away from real success, and says what to do. Pure, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from configs.world_model import GuardConfig


@dataclass(frozen=True)
class Ruling:
    """What the guard allows now."""

    shorten: int
    """Decisions taken off the scheduled horizon."""
    paused: bool
    """Imagination stops; learning goes on with real data where the mode has any."""
    said: str = ""
    """One line when something changed, else empty."""


class Guard:
    """Smooths the gap over segment batches; beyond the limit for ``patience`` batches it shortens the horizon by one,
    and pauses when nothing is left to shorten. It gives the horizon back, one at a time, when the gap closes.
    """

    SMOOTHING = 0.8
    """Share of the old value in the running mean: about five batches."""
    RELEASE = 0.5
    """Share of the limit under which the gap counts as closed."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self.gap = 0.0
        self._seen = 0
        self._beyond = 0
        self._within = 0
        self._shorten = 0
        self._paused = False

    def observe(self, gap: float, horizon: int) -> Ruling:
        """One batch's imagined minus real success, made at ``horizon``."""
        keep = self.SMOOTHING if self._seen else 0.0
        self.gap = keep * self.gap + (1 - keep) * gap
        self._seen += 1
        if not self._config.enabled:
            return Ruling(0, False)
        over, closed = self.gap > self._config.max_gap, self.gap < self.RELEASE * self._config.max_gap
        self._beyond = self._beyond + 1 if over else 0
        self._within = self._within + 1 if closed else 0
        if self._beyond >= self._config.patience:
            return self._act(horizon)
        if self._within >= self._config.patience and (self._shorten or self._paused):
            return self._give_back()
        return Ruling(self._shorten, self._paused)

    def _act(self, horizon: int) -> Ruling:
        self._beyond = 0
        if horizon > 1:
            self._shorten += 1
            said = f"imagined success is {self.gap:.2f} above real: horizon shortened to {horizon - 1}"
        else:
            self._paused = True
            said = f"imagined success is {self.gap:.2f} above real at horizon 1: imagination paused"
        return Ruling(self._shorten, self._paused, said)

    def _give_back(self) -> Ruling:
        self._within = 0
        if self._paused:
            self._paused = False
        else:
            self._shorten -= 1
        return Ruling(
            self._shorten, self._paused, f"gap closed to {self.gap:.2f}: one decision of horizon given back"
        )

    def models_improved(self) -> Ruling:
        """A paused guard sees no gap; new weights of the models are its chance to look again."""
        if not self._paused:
            return Ruling(self._shorten, False)
        self._paused, self._beyond, self._seen = False, 0, 0
        return Ruling(self._shorten, False, "the models were trained on: imagination is tried again")

    def ruling(self) -> Ruling:
        """What stands now."""
        return Ruling(self._shorten, self._paused)

    def state(self) -> dict[str, Any]:
        """Counters."""
        return {name.lstrip("_"): value for name, value in vars(self).items() if name != "_config"}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        for name in [name for name in vars(self) if name != "_config"]:
            setattr(self, name, state[name.lstrip("_")])
