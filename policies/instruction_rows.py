"""Which of the instructions that a policy was built for an observation has, by its word ids."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from configs.errors import DataError


def which_instruction(ids: Int64[Tensor, "B L"], known: Int64[Tensor, "N L"]) -> Int64[Tensor, " B"]:
    """Row of ``known`` that each row of ``ids`` is. Raises DataError for one whose words are known in another order."""
    same = (ids[:, None, :] == known[None]).all(dim=-1)
    capturing = ids.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if not capturing and not bool(same.any(dim=1).all()):
        raise DataError(
            "an instruction is not one that the policy was built for", where="instruction",
            remedy="use those of the environment, word by word",
        )  # fmt: skip
    return same.long().argmax(dim=1)
