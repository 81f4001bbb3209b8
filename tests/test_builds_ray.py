"""What builds a role on Ray outlives everything else in the object store."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

WEIGHTS = 1_000_000
"""Numbers of eight bytes: far above what Ray passes by itself, and ten of them fill the store below."""


class Holder:
    """A role that holds weights."""

    name = "rollout_0"

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self._sum = float(weights.sum())

    def step(self) -> bool:
        """Nothing to do."""
        return False

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to load."""

    def metrics(self) -> dict[str, float]:
        """What it was built from."""
        return {"sum": self._sum}

    def close(self) -> None:
        """Nothing to free."""


def test_a_role_with_large_weights_is_built_again_from_a_store_that_was_full_since(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from platform.hosts.ray_host import RayHost

    from configs.system import RayHostConfig

    host = RayHost(RayHostConfig(object_store_bytes=100_000_000))
    try:
        import ray

        host.place_role(Holder.name, partial(Holder, np.ones(WEIGHTS)), recover=lambda: None)
        host.start()
        host.resume()
        for number in range(40):
            ray.put(np.full(WEIGHTS, number, dtype=np.float64))
        os.kill(host._spares.process(Holder.name), signal.SIGKILL)
        until = time.monotonic() + 120
        while not host._spares.restarts and time.monotonic() < until:
            host.pump()
            time.sleep(0.1)
        assert host._spares.restarts == {Holder.name: 1}
        assert host.metrics()[Holder.name]["sum"] == WEIGHTS
    finally:
        host.close()
    assert "arguments in the object store" not in capfd.readouterr().err
