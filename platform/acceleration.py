"""accelerate's place in Reverie: device, precision, backward, what ranks add up, and gradient clipping of every learner.

accelerate keeps one state per process, so every learner of a process shares one ``Accelerator``; precision is chosen
per forward through ``autocast``. A process that joined a group (``ranks.py``) before its first ``Accelerator`` is one
rank of that group; every other process is alone, and whatever ranks add up is then its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from .lean_optimizer import Lean, LeanAdamW
from .pieces import is_shared, local_part

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

Precision = Literal["auto", "no", "bf16"]
MakeOptimizer = Callable[[list["torch.nn.Parameter"], float], "torch.optim.Optimizer"]
WEIGHT_DECAY = 1e-4

BUCKET = 8_000_000
"""Numbers that ranks add up in one message: large enough to be worth one, small beside the model."""


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Inside, numbers under 1e-38 count as zero for this thread; every thread that computes must ask for itself.

    A policy that has become sure has probabilities and gradients that small, and a CPU takes up to a hundred times as
    long for each: a learner's turn took three times as long.
    """
    import torch

    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@lru_cache(maxsize=1)
def accelerator(device: str) -> Accelerator:
    """The process's accelerator; built once."""
    from accelerate import Accelerator

    return Accelerator(cpu=device == "cpu")


def autocast(device: str, precision: Precision) -> AbstractContextManager[object]:
    """Mixed precision for a forward; "no" is float32, "auto" what the device computes in."""
    if precision == "no":
        return nullcontext()
    import torch

    from world_models.acceleration import computes_bfloat16

    if precision == "auto" and not computes_bfloat16(device):
        return nullcontext()

    return torch.autocast(device, dtype=torch.bfloat16)


def summed(device: str, number: float) -> float:
    """The sum of every rank's ``number``; all ranks must ask together."""
    ranks = accelerator(device)
    if ranks.num_processes == 1:
        return number
    import torch

    own = torch.tensor([number], dtype=torch.float64, device=ranks.device)
    return float(ranks.reduce(own, reduction="sum"))


def most(device: str, number: float) -> float:
    """The largest of every rank's ``number``; all ranks must ask together."""
    ranks = accelerator(device)
    if ranks.num_processes == 1:
        return number
    import torch

    return float(ranks.gather(torch.tensor([number], dtype=torch.float64, device=ranks.device)).max())


def place_of(device: str, rows: int) -> tuple[int, int]:
    """(rows of the ranks before this one, rows of all ranks); all ranks must ask together."""
    ranks = accelerator(device)
    if ranks.num_processes == 1:
        return 0, rows
    import torch

    every = ranks.gather(torch.tensor([rows], device=ranks.device)).tolist()
    return sum(every[: ranks.process_index]), sum(every)


class OptimizerStep:
    """One optimizer with accumulation, clipping, and the refusal of non-finite steps.

    Over several ranks the gradient is the sum of theirs, so each weighs its micro-batches by what all ranks' means are
    taken over. The norm is that of the sum: all ranks clip alike, and skip a step together.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        learning_rate: float,
        max_grad_norm: float,
        device: str,
        lean: Lean | None = None,
        make: MakeOptimizer | None = None,
    ) -> None:
        """``lean`` says where AdamW's moments lie, if not beside their weights; ``make`` builds another optimizer than AdamW,
        where there is one rank.
        """
        self._parameters = list(parameters)
        self._accelerator = accelerator(device)
        self.optimizer: Any = (
            LeanAdamW(self._parameters, self._accelerator, lean, lr=learning_rate, weight_decay=WEIGHT_DECAY)
            if lean is not None
            else (make or _adamw)(self._parameters, learning_rate)
        )
        self._max_grad_norm = max_grad_norm
        self._learning_rate = learning_rate
        self.skipped = 0

    @property
    def in_pieces(self) -> frozenset[int]:
        """Numbers of the weights of which this rank holds a piece alone."""
        return frozenset(index for index, each in enumerate(self._parameters) if is_shared(each))

    def scale_rate(self, share: float) -> None:
        """Use ``share`` of the learning rate from now on."""
        for group in self.optimizer.param_groups:
            group["lr"] = share * self._learning_rate

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of one micro-batch; the caller weighs the micro-batches."""
        self._accelerator.backward(loss)

    def apply(self) -> float | None:
        """Add up, clip and step. A non-finite gradient skips the step, is counted, and None is returned, else the norm."""
        import torch

        if self._accelerator.num_processes > 1:
            self._add_up()
        norm = self._clip()
        finite = bool(torch.isfinite(norm))
        if finite:
            self.optimizer.step()
        else:
            self.skipped += 1
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm) if finite else None

    def _clip(self) -> torch.Tensor:
        """The norm before it."""
        import torch

        shared = [each.grad for each in self._parameters if each.grad is not None and is_shared(each)]
        if not shared:
            return torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        squares = [local_part(gradient).square().sum() for gradient in shared]
        whole = [each.grad for each in self._parameters if each.grad is not None and not is_shared(each)]
        of_all = self._accelerator.reduce(torch.stack(squares).sum(), reduction="sum")
        norm = torch.stack([of_all, *(gradient.square().sum() for gradient in whole)]).sum().sqrt()
        share = (self._max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([local_part(gradient) for gradient in [*shared, *whole]], share)
        return norm

    def _add_up(self) -> None:
        """Each gradient becomes the sum over the ranks. One that no rank has stays absent: AdamW then leaves its weight."""
        import torch

        parameters = [each for each in self._parameters if not is_shared(each)]
        for each in self._parameters:
            if is_shared(each) and each.grad is not None:
                # The backward pass has left the mean over the ranks.
                local_part(each.grad).mul_(self._accelerator.num_processes)
        given = torch.tensor([p.grad is not None for p in parameters], device=self._accelerator.device)
        given = self._accelerator.reduce(given.float(), reduction="sum") > 0
        wanted = [p for p, somewhere in zip(parameters, given.tolist(), strict=True) if somewhere]
        for bucket in _buckets(wanted):
            for parameter in bucket:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [p.grad for p in bucket if p.grad is not None]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            parts = self._accelerator.reduce(flat, reduction="sum").split([g.numel() for g in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def state(self) -> dict[str, object]:
        """Moments and counters."""
        whole = self.optimizer.state_dict()
        return {
            "optimizer": {name: whole[name] for name in ("state", "param_groups")},
            "skipped": self.skipped,
        }

    def load(self, state: dict[str, object]) -> None:
        """Continue from ``state``."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.skipped = int(state["skipped"])  # type: ignore[call-overload]


def _adamw(parameters: list[torch.nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    import torch

    return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=WEIGHT_DECAY)


def _buckets(parameters: list[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Neighbours with at most ``BUCKET`` numbers together, or one that has more."""
    bucket: list[torch.nn.Parameter] = []
    numbers = 0
    for parameter in parameters:
        if bucket and numbers + parameter.numel() > BUCKET:
            yield bucket
            bucket, numbers = [], 0
        bucket.append(parameter)
        numbers += parameter.numel()
    if bucket:
        yield bucket
