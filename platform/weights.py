"""Published weights by version, and the board of small shared facts. Both are passive services; hosts place them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Published:
    """One model's weights as of one version."""

    name: str
    version: int
    arrays: Arrays
    published_at: float = 0.0
    """``time.time()`` of the store's process."""


class Weights(Protocol):
    """What roles see of the weight store."""

    def publish(self, name: str, version: int, arrays: Arrays) -> None:
        """Make ``arrays`` the current weights of ``name``; never waits for a reader."""
        ...

    def fetch(self, name: str, newer_than: int) -> Published | None:
        """The current weights, or None when they are not newer."""
        ...


class Board(Protocol):
    """Small JSON values that loops leave for each other; last writer wins."""

    def put(self, values: dict[str, Any]) -> None:
        """Set keys."""
        ...

    def read(self) -> dict[str, Any]:
        """All keys."""
        ...

    def keep(self, name: str, state: dict[str, Any], facts: dict[str, Any]) -> None:
        """What role ``name`` would continue from if its process died now, and board keys: both or neither."""
        ...


class WeightStore:
    """Holds the newest weights of each model and the board. Whole or not at all: a version is one object."""

    def __init__(self) -> None:
        self._current: dict[str, Published] = {}
        self._board: dict[str, Any] = {}
        self._kept: dict[str, dict[str, Any]] = {}

    def publish(self, name: str, version: int, arrays: Arrays) -> None:
        """Replace the weights of ``name``; versions must increase."""
        held = self._current.get(name)
        assert held is None or version > held.version, (
            f"{name}: version {version} after {held and held.version}"
        )
        self._current[name] = Published(name, version, arrays, time.time())

    def fetch(self, name: str, newer_than: int) -> Published | None:
        """The newest weights of ``name`` if their version is above ``newer_than``."""
        held = self._current.get(name)
        return held if held is not None and held.version > newer_than else None

    def put(self, values: dict[str, Any]) -> None:
        """Set board keys."""
        self._board.update(values)

    def read(self) -> dict[str, Any]:
        """A copy of the board."""
        return dict(self._board)

    def keep(self, name: str, state: dict[str, Any], facts: dict[str, Any]) -> None:
        """Hold ``state`` for whoever takes over from role ``name``; set board keys."""
        self._kept[name] = state
        self._board.update(facts)

    def kept(self, name: str) -> dict[str, Any] | None:
        """The last state that role ``name`` kept; None when it never did."""
        return self._kept.get(name)

    def state(self) -> dict[str, Any]:
        """Weights, versions, board, and what roles kept."""
        weights = {p.name: {"version": p.version, "arrays": dict(p.arrays)} for p in self._current.values()}
        return {"weights": weights, "board": dict(self._board), "kept": dict(self._kept)}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._current = {
            name: Published(name, held["version"], held["arrays"], time.time())
            for name, held in state["weights"].items()
        }
        self._board = dict(state["board"])
        self._kept = dict(state["kept"])


Held = Callable[["torch.Tensor"], "torch.Tensor"]
"""What this process holds of a weight."""


def _all(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def module_arrays(module: torch.nn.Module, held: Held = _all) -> Arrays:
    """A copy of the module's weights as arrays; bfloat16 is widened since numpy has none.

    Weights that never change and that everybody has (``Policy.frozen_names``) are left out.
    """
    import torch

    def convert(tensor: torch.Tensor) -> NDArray[Any]:
        tensor = held(tensor.detach()).to("cpu", copy=True)
        tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        # safetensors writes an array's memory as it lies: channels-last weights would come back shuffled.
        return np.ascontiguousarray(tensor.numpy())

    frozen = frozen_names(module)
    return {name: convert(tensor) for name, tensor in module.state_dict().items() if name not in frozen}


def load_arrays(module: torch.nn.Module, arrays: Arrays) -> None:
    """Put published arrays into the module: whole or not at all, since a wrong name or shape raises before any copy."""
    import torch

    frozen = frozen_names(module)
    held = {} if not frozen else {name: x for name, x in module.state_dict().items() if name in frozen}
    given = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    if frozen:
        require_names(module, given.keys() | held.keys())
    module.load_state_dict(given, strict=not frozen)


def frozen_names(module: torch.nn.Module) -> frozenset[str]:
    """Weights that nobody publishes: they never change and everybody has them."""
    found: frozenset[str] = getattr(module, "frozen_names", frozenset())
    return found


def require_names(module: torch.nn.Module, names: set[str]) -> None:
    """What torch's strict loading would do, if it could be told which names may be absent."""
    wrong = names ^ set(module.state_dict())
    if wrong:
        raise RuntimeError(f"weights do not fit the module: {sorted(wrong)[0]} is on one side only")
