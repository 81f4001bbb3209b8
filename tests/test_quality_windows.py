"""How many held-out windows a quality report looks at."""

from __future__ import annotations

from dataclasses import replace
from platform.quality import LEAST_WINDOWS, windows_within

from tests.buffer_helper import SPEC


def test_windows_are_as_many_as_time_and_memory_allow() -> None:
    """Small frames: 9216 decisions of horizon 50 are 184 windows. Two 256-pixel cameras, 54 frames: 12 windows fit."""
    small = replace(SPEC, cameras={"top": (32, 32)})
    assert windows_within(small, 384, 1, 12) == 384
    assert windows_within(small, 384, 4, 50) == 184
    large = replace(SPEC, cameras={"top": (256, 256), "wrist": (256, 256)})
    assert windows_within(large, 384, 4, 8) == 256_000_000 // (2 * 3 * 256 * 256 * 12)
    assert windows_within(large, 384, 4, 50) == LEAST_WINDOWS
    assert windows_within(large, 8, 4, 50) == 8
