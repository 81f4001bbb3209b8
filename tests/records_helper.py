"""Records whose pixels tell which record and which observation they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from buffers.records import Record, RecordSpec


def make_spec(*, cameras: int = 1, size: int = 4, max_decisions: int = 8) -> RecordSpec:
    """A small spec: 2 proprio numbers, chunks of 3 x 2 tokens of 16 bins."""
    return RecordSpec(
        cameras={f"camera{i}": (size, size) for i in range(cameras)},
        proprio_dim=2,
        chunk=3,
        replan=2,
        action_dim=2,
        bins=16,
        max_decisions=max_decisions,
    )


def make_record(spec: RecordSpec, number: int, length: int, *, version: int = 0, **facts: Any) -> Record:
    """Record ``number``: pixel channel 0 holds the number, channel 1 the observation's index, proprio both."""
    K, D = spec.chunk, spec.action_dim
    index = np.arange(length + 1)
    images = {}
    for camera, (height, width) in spec.cameras.items():
        frames = np.zeros((length + 1, height, width, 3), np.uint8)
        frames[..., 0] = number % 256
        frames[..., 1] = index[:, None, None]
        images[camera] = frames
    valid = np.zeros((length, K), np.bool_)
    valid[:, : spec.replan] = True
    tokens = np.broadcast_to((index[:length, None, None] % spec.bins), (length, K, D)).astype(np.int16)
    success = bool(facts.pop("success", False))
    return Record(
        images=images,
        proprio=np.stack([np.full(length + 1, number), index], axis=1).astype(np.float32),
        instruction=f"reach {number}",
        tokens=tokens,
        log_probs=np.full((length, K, D), -0.5, np.float32),
        valid=valid,
        rewards=np.arange(length, dtype=np.float32),
        values=np.full(length, number, np.float32),
        version=np.full(length, version, np.int32),
        terminated=success,
        truncated=not success,
        success=success,
        task=f"task{number}",
        seed=1000 + number,
        episode_id=facts.pop("episode_id", number),
        **facts,
    )


def assert_same_record(left: Record, right: Record) -> None:
    """Every field is equal, arrays in dtype too."""
    for name, value in vars(left).items():
        other = getattr(right, name)
        pairs = value.items() if name == "images" else [(name, value)]
        for key, array in pairs:
            twin = other[key] if name == "images" else other
            if isinstance(array, np.ndarray):
                assert array.dtype == twin.dtype, name
                np.testing.assert_array_equal(array, twin, err_msg=name)
            else:
                assert array == twin, name
