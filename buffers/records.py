"""What one sample is: a real episode or an imagined segment, as arrays over its decisions.

Shape letters: T decisions, K actions per chunk, D action dimensions, P proprio numbers, H and W pixels, B records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataError

Images = dict[str, NDArray[np.uint8]]
Source = Literal["real", "imagined", "demonstration"]
_BOOL: tuple[type, ...] = (bool, np.bool_)
_INT: tuple[type, ...] = (int, np.integer)
FACTS: dict[str, tuple[type, ...]] = {
    "instruction": (str,), "task": (str,), "extra": (dict,),
    **dict.fromkeys(("terminated", "truncated", "success", "is_first", "is_last"), _BOOL),
    **dict.fromkeys(("seed", "attempt", "episode_id", "horizon", "obs_model_version", "reward_model_version"), _INT),
}  # fmt: skip
"""What a record knows beside its arrays, with the types that each may have."""


@dataclass(frozen=True)
class RecordSpec:
    """Shapes that every record of one buffer, dataset or model shares."""

    cameras: dict[str, tuple[int, int]]
    """Camera name to (height, width); frames are ``[H, W, 3]`` uint8."""
    proprio_dim: int
    chunk: int
    """Actions per decision, K."""
    replan: int
    """Actions of a chunk that are executed; tokens beyond are never valid."""
    action_dim: int
    bins: int
    """Action tokens per dimension."""
    max_decisions: int
    """Longest episode, in decisions."""
    between: bool = False
    """Frames and proprio of the env steps between two decisions are kept as well."""

    def to_json(self) -> dict[str, object]:
        """As JSON types; ``from_json`` is the inverse."""
        return {
            "cameras": {name: list(size) for name, size in self.cameras.items()},
            "proprio_dim": self.proprio_dim,
            "chunk": self.chunk,
            "replan": self.replan,
            "action_dim": self.action_dim,
            "bins": self.bins,
            "max_decisions": self.max_decisions,
            "between": self.between,
        }

    @staticmethod
    def from_json(data: dict[str, object]) -> RecordSpec:
        """Read what ``to_json`` wrote."""
        fields = dict(data)
        cameras = fields.pop("cameras")
        assert isinstance(cameras, dict)
        return RecordSpec(cameras={k: (int(v[0]), int(v[1])) for k, v in cameras.items()}, **fields)  # type: ignore[arg-type]

    def require(self, other: RecordSpec, *, where: str, remedy: str) -> None:
        """Raise DataError that names the first field in which ``other`` differs from this spec."""
        ours, theirs = self.to_json(), other.to_json()
        for key, value in ours.items():
            if theirs[key] != value:
                raise DataError(f"{key} is {theirs[key]}, expected {value}", where=where, remedy=remedy)


@dataclass
class Record:
    """One sample. ``images`` and ``proprio`` have T + 1 rows: the last is the true final (or bootstrap) observation."""

    images: Images
    """camera: ``[T+1, H, W, 3]`` uint8"""
    proprio: NDArray[np.float32]
    """``[T+1, P]``"""
    instruction: str
    tokens: NDArray[np.int16]
    """``[T, K, D]``"""
    log_probs: NDArray[np.float32]
    """``[T, K, D]`` of the behaviour, stored when made."""
    valid: NDArray[np.bool_]
    """``[T, K]``: false beyond replan and after the episode ended inside the chunk."""
    rewards: NDArray[np.float32]
    """``[T]``: rewards of a chunk's env steps, summed with the env-step discount."""
    values: NDArray[np.float32]
    """``[T]`` of the behaviour."""
    version: NDArray[np.int32]
    """``[T]``: policy version that made the decision; never decreases."""
    terminated: bool
    truncated: bool
    success: bool
    task: str
    seed: int
    attempt: int = 0
    episode_id: int = 0
    source: Source = "real"
    is_first: bool = True
    """The record starts where an episode starts."""
    is_last: bool = True
    """The record ends where an episode ends."""
    horizon: int = 0
    """Imagined only: the horizon that was in force."""
    obs_model_version: int = 0
    reward_model_version: int = 0
    extra: dict[str, float] = field(default_factory=dict)
    """Small facts for metrics, for example whether the real continuation succeeded."""
    between: Images = field(default_factory=dict)
    """camera: ``[T+1, R-1, H, W, 3]`` uint8, where the spec has them: what the env steps before each observation showed since
    the decision before. Where an episode ended inside its chunk, and where it starts, the observation itself is repeated."""
    proprio_between: NDArray[np.float32] | None = None
    """``[T+1, R-1, P]``, likewise."""

    @property
    def length(self) -> int:
        """T."""
        return int(self.tokens.shape[0])

    @property
    def env_steps(self) -> int:
        """Actions that were executed."""
        return int(self.valid.sum())

    def check(self, spec: RecordSpec, *, where: str = "record") -> None:
        """Raise DataError, naming the array or fact, unless every array has the spec's shape and dtype and is finite, and every
        fact is of its type.
        """
        self._check_facts(where)
        for name in ("proprio", "tokens", "log_probs", "valid", "rewards", "values", "version"):
            if not isinstance(getattr(self, name), np.ndarray):
                raise DataError(
                    f"{name} is {type(getattr(self, name)).__name__}",
                    where=where,
                    remedy="give a numpy array",
                )
        T, K, D = len(self.tokens) if self.tokens.ndim else 0, spec.chunk, spec.action_dim
        if not 1 <= T <= spec.max_decisions:
            raise DataError(
                f"record has {T} decisions", where=where, remedy=f"give between 1 and {spec.max_decisions}"
            )
        cameras = set(self.images) if isinstance(self.images, dict) else set()
        if cameras != set(spec.cameras):
            raise DataError(
                f"record has cameras {sorted(cameras)}",
                where=where,
                remedy=f"give {sorted(spec.cameras)}",
            )
        wanted: list[tuple[str, NDArray[np.generic], tuple[int, ...], type]] = [
            ("proprio", self.proprio, (T + 1, spec.proprio_dim), np.float32),
            ("tokens", self.tokens, (T, K, D), np.int16),
            ("log_probs", self.log_probs, (T, K, D), np.float32),
            ("valid", self.valid, (T, K), np.bool_),
            ("rewards", self.rewards, (T,), np.float32),
            ("values", self.values, (T,), np.float32),
            ("version", self.version, (T,), np.int32),
        ]
        for camera, (height, width) in spec.cameras.items():
            wanted.append((f"images[{camera}]", self.images[camera], (T + 1, height, width, 3), np.uint8))
        wanted += self._wanted_between(spec, where)
        for name, array, shape, dtype in wanted:
            if not isinstance(array, np.ndarray):
                raise DataError(f"{name} is {type(array).__name__}", where=where, remedy="give a numpy array")
            if array.shape != shape or array.dtype != dtype:
                raise DataError(
                    f"{name} is {array.dtype}{list(array.shape)}",
                    where=where,
                    remedy=f"give {np.dtype(dtype)}{list(shape)}",
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(f"{name} has NaN or infinite numbers", where=where, remedy="drop this record")
        if (np.diff(self.version) < 0).any():
            raise DataError("versions decrease within the record", where=where, remedy="drop this record")
        if self.tokens.min() < 0 or self.tokens.max() >= spec.bins:
            raise DataError(f"tokens outside 0..{spec.bins - 1}", where=where, remedy="re-encode the actions")

    def _wanted_between(
        self, spec: RecordSpec, where: str
    ) -> list[tuple[str, NDArray[np.generic], tuple[int, ...], type]]:
        if not spec.between:
            if self.between or self.proprio_between is not None:
                raise DataError("record has frames between decisions", where=where, remedy="leave them out")
            return []
        if set(self.between) != set(spec.cameras) or self.proprio_between is None:
            raise DataError(
                f"record has frames between decisions of {sorted(self.between) or 'no camera'}", where=where,
                remedy=f"give those of {sorted(spec.cameras)}, and proprio_between",
            )  # fmt: skip
        rows = (len(self.tokens) + 1, spec.replan - 1)
        frames: list[tuple[str, NDArray[np.generic], tuple[int, ...], type]] = [
            (f"between[{camera}]", self.between[camera], (*rows, *size, 3), np.uint8)
            for camera, size in spec.cameras.items()
        ]
        return [*frames, ("proprio_between", self.proprio_between, (*rows, spec.proprio_dim), np.float32)]

    def without_between(self) -> Record:
        """The same without what lies between its decisions."""
        return replace(self, between={}, proprio_between=None)

    def _check_facts(self, where: str) -> None:
        for name, kinds in FACTS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise DataError(f"{name} is {value!r}", where=where, remedy=f"give {kinds[0].__name__}")
        if self.source not in get_args(Source):
            raise DataError(
                f"source is {self.source!r}", where=where, remedy=f"give one of {', '.join(get_args(Source))}"
            )
        if not all(isinstance(value, (int, float, np.number, np.bool_)) for value in self.extra.values()):
            raise DataError("extra holds something else than numbers", where=where, remedy="leave it out")


@dataclass
class RecordBatch:
    """B records padded to the longest, T decisions. Rows beyond a record's length are zeros and never valid."""

    images: Images
    """camera: ``[B, T+1, H, W, 3]``"""
    proprio: NDArray[np.float32]
    """``[B, T+1, P]``"""
    instructions: list[str]
    tokens: NDArray[np.int16]
    """``[B, T, K, D]``"""
    log_probs: NDArray[np.float32]
    """``[B, T, K, D]``"""
    valid: NDArray[np.bool_]
    """``[B, T, K]``"""
    rewards: NDArray[np.float32]
    """``[B, T]``"""
    values: NDArray[np.float32]
    """``[B, T]``"""
    version: NDArray[np.int32]
    """``[B, T]``"""
    lengths: NDArray[np.int64]
    """``[B]``"""
    terminated: NDArray[np.bool_]
    """``[B]``"""
    truncated: NDArray[np.bool_]
    """``[B]``"""
    success: NDArray[np.bool_]
    """``[B]``"""
    imagined: NDArray[np.bool_]
    """``[B]``"""
    episode_ids: NDArray[np.int64]
    """``[B]``"""

    @property
    def decisions(self) -> NDArray[np.bool_]:
        """``[B, T]``: true where a record has a decision."""
        return np.arange(self.tokens.shape[1])[None, :] < self.lengths[:, None]
