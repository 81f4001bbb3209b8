"""Policies whose blocks are shared out: a rank holds a piece of each weight in them (FSDP, arXiv:2304.11277), the rest whole.

A weight lies in pieces along its first axis, in the order of the ranks. Those of a block are gathered when it runs, forward
and backward, and dropped again, so every rank must run it as often as the others: ``padded`` sees to that. What leaves a
rank, weights for a version or moments for a checkpoint, are its pieces; rank 0 joins them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from .acceleration import most
from .pieces import is_shared, local_part, part_of
from .weights import Arrays, frozen_names, load_arrays, module_arrays, require_names

if TYPE_CHECKING:
    import torch

    from policies.base import Policy

T = TypeVar("T")


def share_out(policy: Policy) -> None:
    """Keep this rank's pieces of every block; all ranks must ask together, with the same weights."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = next(policy.parameters()).device.type
    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    for trunk in policy.trunks():
        for block in trunk.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        shared = {id(each) for block in trunk.blocks for each in block.parameters()}
        others = {each for each in trunk.module.parameters() if id(each) not in shared}
        # Holds no weights of its own, but knows which block comes next and fetches it in advance.
        fully_shard(trunk.module, mesh=mesh, ignored_params=others)


def own_arrays(module: torch.nn.Module) -> Arrays:
    """As ``module_arrays``, of what this rank holds."""
    return module_arrays(module, local_part)


def load_own(module: torch.nn.Module, arrays: Arrays) -> None:
    """As ``load_arrays``: this rank's pieces of whole arrays."""
    import torch

    held = module.state_dict()
    if not any(is_shared(tensor) for tensor in held.values()):
        load_arrays(module, arrays)
        return
    require_names(module, arrays.keys() | frozen_names(module))
    wrong = [name for name, array in arrays.items() if array.shape != tuple(held[name].shape)]
    assert not wrong, f"weights do not fit the module: {wrong[0]}"
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    with torch.no_grad():
        for name, array in arrays.items():
            given = part_of(array, rank, ranks) if is_shared(held[name]) else array
            local_part(held[name]).copy_(torch.from_numpy(np.array(given)))


def join_arrays(module: torch.nn.Module, parts: list[Arrays]) -> Arrays:
    """Whole arrays from those of every rank, in the order of the ranks."""
    shared = {name for name, tensor in module.state_dict().items() if is_shared(tensor)}
    return {
        name: np.concatenate([part[name] for part in parts]) if name in shared else array
        for name, array in parts[0].items()
    }


def padded(pieces: list[T], device: str) -> list[T | None]:
    """``pieces``, and None as often as it takes to have as many as the rank with most; all ranks must ask together."""
    return [*pieces, *[None] * (int(most(device, len(pieces))) - len(pieces))]
