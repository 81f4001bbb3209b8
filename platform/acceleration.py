"""accelerate's place in Reverie: device, precision, backward and gradient clipping of every learner.

accelerate keeps one state per process, so every learner of a process shares one ``Accelerator``; precision is chosen
per forward through ``autocast``.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

Precision = Literal["no", "bf16"]


@lru_cache(maxsize=1)
def accelerator(device: str) -> Accelerator:
    """The process's accelerator; built once."""
    from accelerate import Accelerator

    return Accelerator(cpu=device == "cpu")


def autocast(device: str, precision: Precision) -> AbstractContextManager[object]:
    """Mixed precision for a forward; "no" is float32."""
    if precision == "no":
        return nullcontext()
    import torch

    return torch.autocast(device, dtype=torch.bfloat16)


class OptimizerStep:
    """One optimizer with accumulation, clipping, and the refusal of non-finite steps."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        learning_rate: float,
        max_grad_norm: float,
        device: str,
    ) -> None:
        import torch

        self._parameters = list(parameters)
        self._accelerator = accelerator(device)
        self.optimizer = torch.optim.AdamW(self._parameters, lr=learning_rate, weight_decay=1e-4)
        self._max_grad_norm = max_grad_norm
        self._learning_rate = learning_rate
        self.skipped = 0

    def scale_rate(self, share: float) -> None:
        """Use ``share`` of the learning rate from now on."""
        for group in self.optimizer.param_groups:
            group["lr"] = share * self._learning_rate

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of one micro-batch; the caller weighs the micro-batches."""
        self._accelerator.backward(loss)

    def apply(self) -> float | None:
        """Clip and step. A non-finite gradient skips the step, is counted, and None is returned, else the norm."""
        import torch

        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        finite = bool(torch.isfinite(norm))
        if finite:
            self.optimizer.step()
        else:
            self.skipped += 1
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm) if finite else None

    def state(self) -> dict[str, object]:
        """Moments and counters."""
        return {"optimizer": self.optimizer.state_dict(), "skipped": self.skipped}

    def load(self, state: dict[str, object]) -> None:
        """Continue from ``state``."""
        self.optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]
        self.skipped = int(state["skipped"])  # type: ignore[call-overload]
