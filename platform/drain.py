"""When new weights may serve where episodes must end under the version that they began with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from buffers.replay import Running


class Drain:
    """Asked once per batch that was formed: whoever asked in it still runs. None: nothing must end first."""

    def __init__(self, running: Running | None) -> None:
        self._running = running
        self._version = -1
        self._decided: set[tuple[int, int]] = set()

    @property
    def waits(self) -> bool:
        """Whether there may be something to wait for."""
        return self._running is not None

    def over(self, version: int, keys: NDArray[np.int64] | None) -> bool:
        """Whether no episode runs that ``version`` may have decided in. ``keys`` are those of the batch."""
        if self._running is None:
            return True
        # Asking the buffer costs a call to another process: not when all that ask were answered under this version.
        asking = None if keys is None else {(int(sample), int(attempt)) for sample, attempt, _ in keys}
        if asking is not None and version == self._version and asking <= self._decided:
            return False
        return self._running.running_before(version + 1) == 0

    def decided(self, version: int, keys: NDArray[np.int64] | None) -> None:
        """``version`` answers the rows of ``keys``."""
        if version != self._version:
            self._version, self._decided = version, set()
        if self._running is not None and keys is not None:
            self._decided.update((int(sample), int(attempt)) for sample, attempt, _ in keys)
