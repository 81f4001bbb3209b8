"""What a run has lost, told when it happens: records of a buffer whose server died, and work since the last checkpoint."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)

WORK = {"policy/turns": "policy turns", "real_steps": "real steps"}
"""Facts that only grow, and what they are called."""


class LostWork:
    """Compares what is with what was: of buffers at the last look, of the run at its last checkpoint."""

    def __init__(self, resumed: dict[str, Any] | None) -> None:
        """``resumed``: states of the checkpoint that the run continues from."""
        self._saved = self._now = {} if resumed is None else _work(resumed["store"]["board"])
        before = {} if resumed is None else resumed
        self._lost = {name: int(before.get(f"b_{name}", {}).get("lost", 0)) for name in ("real", "img")}
        self._deaths: dict[str, int] = {}

    def see(self, board: dict[str, Any]) -> None:
        """The run has come so far."""
        self._now = _work(board)

    def saved(self, board: dict[str, Any]) -> None:
        """A checkpoint holds ``board``."""
        self._saved = self._now = _work(board)

    def look(self, buffers: dict[str, dict[str, Any]]) -> None:
        """Warn of what buffers (their ``stats`` by name) lost since the last look."""
        for name, stats in buffers.items():
            deaths, lost = stats["server_deaths"], stats["lost_items"]
            for death in deaths[self._deaths.get(name, 0) :]:
                log.warning(
                    "buffer %s: %s; another one was started, from its last checkpoint if it had any",
                    name,
                    death,
                )
            if lost > self._lost[name]:
                log.warning(
                    "buffer %s: lost %d records, %d are there", name, lost - self._lost[name], stats["items"]
                )
            self._lost[name], self._deaths[name] = lost, len(deaths)

    def since_checkpoint(self) -> str:
        """What a run that ends now has not saved, to be put behind the checkpoint's name."""
        gone = [
            f"{count - self._saved.get(key, 0)} {WORK[key]}"
            for key, count in self._now.items()
            if count > self._saved.get(key, 0)
        ]
        return f"; lost since then: {', '.join(gone)}" if gone else ""


def _work(board: dict[str, Any]) -> dict[str, int]:
    steps = sum(value for key, value in board.items() if key.startswith("real_steps/"))
    return {"policy/turns": int(board.get("policy/turns", 0)), "real_steps": int(steps)}
