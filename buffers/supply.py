"""The side of a replay buffer that keeps no frames: samples, their lifecycle, the limiter, and who waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from buffers.lifecycle import Lifecycle
from buffers.limiter import Limiter
from buffers.records import RecordSpec
from buffers.samples import Admission, Admitted, Stock, Traffic
from configs.errors import ReplayTimeout
from configs.system import BufferConfig


class Supply:
    """What both backends share. Thread-safe; a subclass takes ``_lock`` around whatever it does."""

    def __init__(self, spec: RecordSpec, config: BufferConfig, *, name: str) -> None:
        self.spec = spec
        self.name = name
        self._config = config
        self._lifecycle = Lifecycle(config.reuse_limit, spec.max_decisions)
        self._limiter = None if config.limiter is None else Limiter(config.limiter)
        self._traffic = Traffic()
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        """Something was inserted or drawn: who waits for the limiter looks again."""

    def admit(self, wanted: int, admission: Admission, owner: str = "") -> list[Admitted]:
        """At most ``wanted`` samples that the collector ``owner`` may start: as many as admission allows (see
        ``Lifecycle.room``).
        """
        with self._lock:
            return self._lifecycle.admit(wanted, admission, owner)

    def room(self, admission: Admission) -> int:
        """Samples that admission would allow now; samples stored without being admitted fill places too."""
        with self._lock:
            return self._lifecycle.room(admission)

    def running_before(self, version: int) -> int:
        """Running samples that were started under an earlier version."""
        with self._lock:
            return self._lifecycle.running_before(version)

    def oldest_version(self) -> int | None:
        """Oldest version of a decision that runs, waits or is lent; None when there is none."""
        with self._lock:
            return self._lifecycle.oldest()

    def advance(self, version: int) -> None:
        """The policy learner published ``version``: a new budget begins (see ``Lifecycle.advance``)."""
        with self._lock:
            self._lifecycle.advance(version)

    def fail(self, sample_ids: Sequence[int]) -> None:
        """Admitted or running samples end without a record; their places are free again."""
        with self._lock:
            self._lifecycle.fail(sample_ids)

    def reissue(self, sample_ids: Sequence[int] | None = None) -> None:
        """Running samples (all by default) are admitted again, to collectors that come next, with attempt + 1."""
        with self._lock:
            self._lifecycle.reissue(sample_ids)

    def reissue_of(self, owner: str) -> int:
        """The same for the samples that run at the collector ``owner``, which died; how many."""
        with self._lock:
            return self._lifecycle.reissue_of(owner)

    def available_decisions(self) -> int:
        """Decisions that could be leased now."""
        return self.stock().available

    def stock(self) -> Stock:
        """What the policy learner could get, holds, and may expect."""
        with self._lock:
            return self._lifecycle.stock()

    def _await_insert(self, decisions: int) -> None:
        """Wait, holding the lock between looks only, until the limiter lets ``decisions`` in. ReplayTimeout."""
        limiter = self._limiter
        if limiter is not None:
            self._await(limiter, lambda: limiter.may_insert(decisions), "an insertion", "draw more windows")

    def _inserted(self, decisions: int) -> None:
        if self._limiter is not None:
            self._limiter.inserted += decisions
            self._moved.notify_all()

    def _await_sample(self, windows: int) -> None:
        """The same until it lets ``windows`` be drawn, which are counted then. ReplayError when it never could."""
        limiter = self._limiter
        if limiter is not None:
            limiter.require_possible(windows, where=f"buffer {self.name}")
            self._await(limiter, lambda: limiter.may_sample(windows), "a draw", "store more records")
            limiter.sampled += windows
            self._moved.notify_all()

    def _await(self, limiter: Limiter, ready: Callable[[], bool], what: str, remedy: str) -> None:
        limit = limiter.config.timeout_s
        began = time.monotonic()
        if not self._moved.wait_for(ready, limit):
            raise ReplayTimeout(
                f"{what} waited {time.monotonic() - began:.1f} s for the limiter: {limiter.describe()}",
                where=f"buffer {self.name}",
                remedy=f"{remedy}, or raise limiter.tolerance or limiter.timeout_s",
            )

    def _supply_state(self) -> dict[str, Any]:
        """Open leases are written as buffered."""
        return {
            "lifecycle": self._lifecycle.state(),
            "traffic": asdict(self._traffic),
            "limiter": None if self._limiter is None else self._limiter.state(),
        }

    def _load_supply(self, state: dict[str, Any]) -> None:
        self._lifecycle.load(state["lifecycle"])
        self._traffic = Traffic(**state["traffic"])
        if self._limiter is not None and state["limiter"] is not None:
            self._limiter.load(state["limiter"])
