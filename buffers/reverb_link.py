"""The connection to a Reverb server: every call ends in time, and says what it waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from buffers.columns import Arrays
from buffers.reverb_package import load_reverb
from buffers.reverb_process import ServerLost
from buffers.reverb_tables import AT, ROW
from configs.errors import DataError, ReplayTimeout

T = TypeVar("T")

CHECKPOINT_S = 200.0
"""Longest wait for a checkpoint, which grows with what the server holds."""
DYING_LOOKS = 5
LOOK_S = 0.2
"""How often a call that waits looks whether the server still lives: Reverb itself would try for ever."""


@dataclass(frozen=True)
class NewItem:
    """An item to be created: rows ``begin`` to ``end`` of what was appended, about row ``at``."""

    table: str
    priority: float
    begin: int
    end: int
    at: int
    columns: list[str]


Sampled = tuple[Any, list[Any]]
"""Reverb's info about an item, and its arrays."""


class ReverbLink:
    """One client and one writer. Calls come one at a time."""

    def __init__(
        self, address: str, *, timeout_s: float, chunk: int, longest: int, death: Callable[[], str | None]
    ) -> None:
        """``longest`` record in rows. ``death`` says how the server ended, None while it lives or nobody knows."""
        self._reverb = load_reverb()
        self._address, self._timeout_s, self._death = address, timeout_s, death
        self._chunk, self._longest = min(chunk, longest), longest
        self._client = self._reverb.Client(address)
        self._writer: Any = None

    def info(self) -> dict[str, Any]:
        """Reverb's table infos by name."""
        seconds = max(1, int(self._timeout_s))
        infos: dict[str, Any] = self._call("its tables", lambda: self._client.server_info(timeout=seconds))
        return infos

    def sample(self, table: str, count: int) -> list[Sampled]:
        """``count`` items: Reverb's info and the arrays, in the order of their columns' names."""

        def draw() -> list[Sampled]:
            drawn = self._client.sample(table, count, emit_timesteps=False)
            return [(sample.info, list(sample.data)) for sample in drawn]

        return self._call(f"{count} items of table {table}", draw)

    def mutate(self, table: str, priorities: dict[int, float], deletes: list[int] | None = None) -> None:
        """New priorities, which must be finite and not negative (Reverb takes any), and items that leave."""
        if any(not 0 <= value < float("inf") for value in priorities.values()):
            raise DataError("a priority is negative or not finite", where=f"table {table}", remedy="drop it")
        change = lambda: self._client.mutate_priorities(table, priorities, deletes or [])  # noqa: E731
        self._call(f"a change of {len(priorities) + len(deletes or [])} items of table {table}", change)

    def checkpoint(self) -> str:
        """Where the server wrote it."""
        limit_s = max(self._timeout_s, CHECKPOINT_S)
        return str(self._call("a checkpoint", self._client.checkpoint, limit_s))

    def write(self, arrays: Arrays, items: list[NewItem]) -> None:
        """Append rows, then create items of them; answers when the server has them."""
        self._call("an insertion", lambda: self._write(arrays, items))

    def _write(self, arrays: Arrays, items: list[NewItem]) -> None:
        writer = self._writer
        # Taken out while it is used: one that failed half-way is never used again.
        self._writer = None
        if writer is None:
            writer = self._client.trajectory_writer(num_keep_alive_refs=self._longest)
            for name in arrays:
                writer.configure((name,), num_keep_alive_refs=self._longest, max_chunk_length=self._chunk)
        total = len(arrays[ROW])
        for row in range(total):
            writer.append({name: array[row] for name, array in arrays.items()})
        history = writer.history
        for item in items:
            # A bound at the end of what was appended crashes dm-reverb 0.14; none there means the same.
            rows = slice(item.begin, item.end if item.end < total else None)
            about = slice(item.at, item.at + 1 if item.at + 1 < total else None)
            trajectory = {name: history[name][rows] for name in item.columns if name != AT}
            trajectory[AT] = history[ROW][about]
            writer.create_item(item.table, item.priority, trajectory)
        writer.end_episode(clear_buffers=True, timeout_ms=int(self._timeout_s * 1000))
        self._writer = writer

    def _call(self, what: str, function: Callable[[], T], limit_s: float | None = None) -> T:
        """In a thread of its own, which is left behind when it hangs."""
        limit_s = limit_s or self._timeout_s
        answer: list[T] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                answer.append(function())
            except Exception as error:  # noqa: BLE001  raised again by whoever waits
                failure.append(error)

        thread = threading.Thread(target=work, daemon=True)
        began = time.monotonic()
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_S)
            self._require_life()
            if thread.is_alive() and time.monotonic() - began > limit_s:
                raise ReplayTimeout(
                    f"the Reverb server did not give {what} within {limit_s:g} s",
                    where=self._address,
                    remedy="look whether it runs and is reachable, or raise buffers.reverb.timeout_s",
                )
        if failure:
            # A connection breaks a moment before the process that was killed is gone.
            for _ in range(DYING_LOOKS):
                self._require_life()
                time.sleep(LOOK_S)
            reason = (str(failure[0]).splitlines() or [""])[0]
            raise ServerLost(
                f"the Reverb server refused {what}: {type(failure[0]).__name__}: {reason}",
                where=self._address,
                remedy="look whether it was started with this run's arguments",
            ) from failure[0]
        return answer[0]

    def _require_life(self) -> None:
        if (death := self._death()) is not None:
            raise ServerLost(f"the Reverb server {death}", where=self._address, remedy="see its log")
