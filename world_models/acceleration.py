"""What only some machines can do: bfloat16 and FP8 arithmetic, compiled modules. FP8 and compilation are errors where they
are asked for and missing.
"""

from __future__ import annotations

import os
import shutil
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import nn

from configs.errors import ResourceError

FP8_CAPABILITY = (8, 9)
"""Ada and Hopper are the first with FP8 tensor cores."""
WHERE = "world_model.obs_model.precision=fp8"


@lru_cache
def computes_bfloat16(device: str) -> bool:
    """Whether this machine's ``device`` ("cpu" or "cuda") has instructions for bfloat16. A CPU without them took 8 times as
    long as in float32 for a training step of a small network, 30 times for one of a convolutional one.
    """
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def uses_bfloat16(precision: str, device: str) -> bool:
    """Whether a model of this ``precision`` (see its config) computes in bfloat16 on ``device``; with fp8 the rest does."""
    return computes_bfloat16(device) if precision == "auto" else precision != "float32"


def require_fp8() -> None:
    """Raise ResourceError unless this machine's GPU computes in FP8 and torchao is installed."""
    remedy = "use bfloat16"
    if not torch.cuda.is_available():
        raise ResourceError("FP8 needs a GPU, there is none", where=WHERE, remedy=remedy)
    capability = torch.cuda.get_device_capability()
    if capability < FP8_CAPABILITY:
        found, wanted = ("{}.{}".format(*version) for version in (capability, FP8_CAPABILITY))
        raise ResourceError(
            f"FP8 needs a GPU of compute capability {wanted}, this one has {found}",
            where=WHERE,
            remedy=remedy,
        )
    if find_spec("torchao") is None:
        raise ResourceError(
            "the package torchao is not installed",
            where=WHERE,
            remedy="pip install 'reverie-rl[fp8]', or use bfloat16",
        )


def to_fp8(module: nn.Module) -> None:
    """Let the linear layers of ``module`` multiply in FP8, all but the first and the last; names and weights stay.

    Raises ResourceError as ``require_fp8`` does, and where no layer's sizes are multiples of 16, as FP8 wants them.
    """
    require_fp8()
    inner = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][1:-1]
    if not any(layer.in_features % 16 == layer.out_features % 16 == 0 for layer in inner):
        raise ResourceError(
            "no linear layer's sizes are multiples of 16", where=WHERE, remedy="choose such channels"
        )
    from accelerate.utils.ao import convert_model_to_fp8_ao
    from torchao.float8 import Float8LinearConfig

    # The rows of a batch are whatever worlds still run: no multiple of 16.
    convert_model_to_fp8_ao(module, config=Float8LinearConfig(pad_inner_dim=True))


def require_compiler() -> None:
    """Raise ResourceError unless torch.compile finds the C++ compiler that it needs where there is no GPU."""
    if torch.cuda.is_available():
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ResourceError(
            f"torch.compile needs a C++ compiler, {compiler} is not there",
            where="world_model.obs_model.compiled",
            remedy="install g++, set CXX, or set compiled=false",
        )
