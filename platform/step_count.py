"""Real env steps of one worker, counted where its death cannot lose them. Pure: the caller tells others."""

from __future__ import annotations


class StepCount:
    """Steps are reserved before they begin and counted when they have been taken.

    What is reserved is told to others first, for some steps ahead at once since telling costs a call. A worker that takes
    over begins at what was reserved: its count is never below the truth, and above it by at most what was reserved.
    """

    def __init__(self, ahead: int) -> None:
        """``ahead``: steps that are reserved beyond those that begin."""
        self._ahead = ahead
        self.taken = 0
        self.reserved = 0

    def reserve(self, under_way: int) -> bool:
        """At most ``under_way`` steps that were not counted yet are about to run; whether ``reserved`` rose and must be told
        before they do.
        """
        if self.taken + under_way <= self.reserved:
            return False
        self.reserved = self.taken + under_way + self._ahead
        return True

    def state(self) -> dict[str, int]:
        """Both counts."""
        return {"taken": self.taken, "reserved": self.reserved}

    def load(self, state: dict[str, int]) -> None:
        """Continue from ``state``."""
        self.taken, self.reserved = state["taken"], state["reserved"]

    def inherited(self) -> dict[str, int]:
        """The state of whoever takes over."""
        return {"taken": self.reserved, "reserved": self.reserved}
