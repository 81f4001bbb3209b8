"""Config of the real states that imagination starts from."""

from __future__ import annotations

from configs.errors import ConfigError
from configs.fields import NaturalFloat, PositiveFloat, PositiveInt, component


@component
class StartsConfig:
    """Shares of the imagined worlds by the kind of state in ``B_real`` that they start from. Only their ratios count; where
    no state of a kind is stored yet, the other kinds have its share.
    """

    first: NaturalFloat = 0.5
    """Where an episode of any age begins: those states do not depend on who acted, and no policy has to find its way back
    from a demonstrator's detours there."""
    uniform: NaturalFloat = 0.0
    """Any decision of any episode."""
    recent: NaturalFloat = 0.5
    """Any decision of the newest ``episodes``: where the present policy goes."""
    late: NaturalFloat = 0.0
    """The last ``late_decisions`` before success, in the newest ``episodes``: short horizons reach the reward from there."""
    failures: NaturalFloat = 0.0
    """Any decision of the newest ``episodes``, one of a failed episode ``failure_weight`` times as likely: hard tasks and
    starts come more often."""
    episodes: PositiveInt = 512
    """Episodes that count as the newest."""
    late_decisions: PositiveInt = 5
    """Decisions before success that count as late."""
    failure_weight: PositiveFloat = 4.0
    """Weight of a decision of a failed episode beside one of a successful episode."""

    def __post_init__(self) -> None:
        if not sum(self.shares().values()) > 0:
            raise ConfigError(
                "every share of the starts is 0", where="imagination.starts", remedy="set one above 0, for example imagination.starts.recent=1"
            )  # fmt: skip

    def shares(self) -> dict[str, float]:
        """Of each kind."""
        return {
            "first": self.first, "uniform": self.uniform, "recent": self.recent, "late": self.late,
            "failures": self.failures,
        }  # fmt: skip
