"""A record taken apart: arrays over its rows (columns) and everything else (facts). Datasets and buffers store both.

A record of T decisions takes T + 1 rows: one per decision and one for the bootstrap observation.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from buffers.records import Record, RecordSpec, Source

Arrays = dict[str, NDArray[Any]]

IMAGE_PREFIX = "images."
BETWEEN_PREFIX = "between."
PROPRIO_BETWEEN = "proprio_between"


def holds_frames(name: str) -> bool:
    """Whether column ``name`` holds frames."""
    return name.startswith((IMAGE_PREFIX, BETWEEN_PREFIX))


def is_between(name: str) -> bool:
    """Whether column ``name`` holds what lies between decisions."""
    return name.startswith(BETWEEN_PREFIX) or name == PROPRIO_BETWEEN


@dataclass(frozen=True)
class Column:
    """One array of a record."""

    name: str
    """``images.<camera>`` or the field's name."""
    shape: tuple[int, ...]
    """Of one row."""
    dtype: DTypeLike
    observed: bool
    """It has T + 1 rows (observations) instead of T (decisions)."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(slots=True)
class Facts:
    """The fields of a record that are not arrays; types are JSON's."""

    instruction: str
    terminated: bool
    truncated: bool
    success: bool
    task: str
    seed: int
    attempt: int
    episode_id: int
    source: Source
    is_first: bool
    is_last: bool
    horizon: int
    obs_model_version: int
    reward_model_version: int
    extra: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON types; ``Facts(**data)`` is the inverse."""
        return asdict(self)


def columns(spec: RecordSpec) -> list[Column]:
    """The columns of every record of ``spec``."""
    K, D = spec.chunk, spec.action_dim
    frames = [
        Column(f"{IMAGE_PREFIX}{camera}", (height, width, 3), np.uint8, observed=True)
        for camera, (height, width) in spec.cameras.items()
    ]
    return [
        *frames,
        *_between(spec),
        Column("proprio", (spec.proprio_dim,), np.float32, observed=True),
        Column("tokens", (K, D), np.int16, observed=False),
        Column("log_probs", (K, D), np.float32, observed=False),
        Column("valid", (K,), np.bool_, observed=False),
        Column("rewards", (), np.float32, observed=False),
        Column("values", (), np.float32, observed=False),
        Column("version", (), np.int32, observed=False),
    ]


def _between(spec: RecordSpec) -> list[Column]:
    if not spec.between:
        return []
    rows = spec.replan - 1
    frames = [
        Column(f"{BETWEEN_PREFIX}{camera}", (rows, height, width, 3), np.uint8, observed=True)
        for camera, (height, width) in spec.cameras.items()
    ]
    return [*frames, Column(PROPRIO_BETWEEN, (rows, spec.proprio_dim), np.float32, observed=True)]


def frames_of(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What lies under ``<prefix><camera>``, by camera."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def split_record(record: Record) -> tuple[Arrays, Facts]:
    """Columns of ``record`` (not copied) and its facts."""
    arrays: Arrays = {f"{IMAGE_PREFIX}{camera}": frames for camera, frames in record.images.items()}
    arrays |= {f"{BETWEEN_PREFIX}{camera}": frames for camera, frames in record.between.items()}
    if record.proprio_between is not None:
        arrays[PROPRIO_BETWEEN] = record.proprio_between
    arrays |= {
        "proprio": record.proprio,
        "tokens": record.tokens,
        "log_probs": record.log_probs,
        "valid": record.valid,
        "rewards": record.rewards,
        "values": record.values,
        "version": record.version,
    }
    facts = Facts(
        instruction=sys.intern(str(record.instruction)),
        terminated=bool(record.terminated),
        truncated=bool(record.truncated),
        success=bool(record.success),
        task=sys.intern(str(record.task)),
        seed=int(record.seed),
        attempt=int(record.attempt),
        episode_id=int(record.episode_id),
        source=record.source,
        is_first=bool(record.is_first),
        is_last=bool(record.is_last),
        horizon=int(record.horizon),
        obs_model_version=int(record.obs_model_version),
        reward_model_version=int(record.reward_model_version),
        extra={str(key): float(value) for key, value in record.extra.items()},
    )
    return arrays, facts


def join_record(arrays: Arrays, facts: Facts) -> Record:
    """The inverse of ``split_record``."""
    rest: dict[str, Any] = {name: array for name, array in arrays.items() if not holds_frames(name)}
    images, between = frames_of(arrays, IMAGE_PREFIX), frames_of(arrays, BETWEEN_PREFIX)
    return Record(images=images, between=between, **rest, **facts.to_json())
