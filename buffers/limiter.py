"""How far draws and insertions may be apart, as one pure table: no threads, no clock.

With ``i`` decisions stored and ``s`` windows drawn since the buffer was made, ``i * ratio - s`` stays within
``tolerance`` of ``min_size * ratio``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from configs.errors import ConfigError, ReplayError
from configs.replay import LimiterConfig


@dataclass
class Limiter:
    """Counts. Nobody waits before ``min_size`` decisions are stored but who draws."""

    config: LimiterConfig
    inserted: int = 0
    sampled: int = 0

    def may_insert(self, decisions: int) -> bool:
        """Whether ``decisions`` more keep the draws within reach."""
        ahead = (
            self.inserted + decisions - self.config.min_size
        ) * self.config.samples_per_insert - self.sampled
        return self.inserted < self.config.min_size or ahead <= self.config.tolerance

    def may_sample(self, windows: int) -> bool:
        """Whether as many decisions are stored as ``windows`` more draws need."""
        ahead = (
            self.sampled + windows - (self.inserted - self.config.min_size) * self.config.samples_per_insert
        )
        return self.inserted >= self.config.min_size and ahead <= self.config.tolerance

    def require_possible(self, windows: int, *, where: str) -> None:
        """ReplayError for a draw that would wait for ever, however much is stored."""
        if windows > 2 * self.config.tolerance:
            raise ReplayError(
                f"a draw of {windows} windows is more than limiter.tolerance={self.config.tolerance:g} ever allows at once",
                where=where,
                remedy=f"raise limiter.tolerance to {windows / 2:g} or more, or draw fewer",
            )

    def describe(self) -> str:
        """The counts and what they allow, for an error."""
        config = self.config
        middle = (self.inserted - config.min_size) * config.samples_per_insert
        low, high = middle - config.tolerance, middle + config.tolerance
        return (
            f"inserted {self.inserted} decisions, sampled {self.sampled} windows, allowed"
            f" {max(0.0, low):g} to {max(0.0, high):g} after {config.min_size} decisions"
        )

    def state(self) -> dict[str, Any]:
        """The counts; the configured limits are never taken from a checkpoint."""
        return {"inserted": self.inserted, "sampled": self.sampled}

    def load(self, state: dict[str, Any]) -> None:
        """Continue with the counts of ``state`` under this limiter's own limits."""
        self.inserted, self.sampled = state["inserted"], state["sampled"]


def check_limiter(config: LimiterConfig, *, longest: int, capacity: int, where: str) -> None:
    """ConfigError for limits under which somebody could only wait.

    ``longest``: decisions of one record. ``capacity``: decisions that the buffer holds at most.
    """
    if config.min_size > capacity:
        raise ConfigError(
            f"limiter.min_size={config.min_size} is more than the {capacity} decisions that fit: no window would ever be drawn",
            where=where,
            remedy="lower it, or raise max_bytes",
        )
    least = longest * config.samples_per_insert
    if config.tolerance < least:
        raise ConfigError(
            f"limiter.tolerance={config.tolerance:g} is less than the {least:g} windows that one record of {longest} decisions"
            " brings: insertions and draws would wait for each other",
            where=where,
            remedy=f"give at least {least:g}, or lower limiter.samples_per_insert",
        )
