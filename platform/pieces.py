"""Weights of which this rank holds a piece alone: torch's DTensors, cut along their first axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether this rank holds a piece of it alone."""
    return hasattr(tensor, "to_local")


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of ``tensor``, in the same memory."""
    return cast("Any", tensor).to_local() if is_shared(tensor) else tensor


def part_of(whole: Any, rank: int, ranks: int) -> Any:
    """Of an array or tensor, as FSDP cuts it: equal pieces but for the last ones, which may be empty."""
    size = -(-len(whole) // ranks)
    return whole[size * rank : size * (rank + 1)]
