"""AdamW with its moments where there is room: each rank holds those of its own weights (ZeRO's first stage), or they lie in the
CPU's memory, or both. The steps are AdamW's, number for number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

BROADCAST = 8_000_000
"""Numbers that a rank sends in one message."""


@dataclass(frozen=True)
class Lean:
    """Where moments lie."""

    shard: bool = False
    """Each rank holds a share of them."""
    offload: bool = False
    """They lie in the CPU's memory."""


class LeanAdamW:
    """Looks like a torch optimizer to who steps it; its state counts weights as AdamW's over all of them would."""

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        accelerator: Accelerator,
        lean: Lean,
        *,
        lr: float,
        weight_decay: float,
    ) -> None:
        import torch

        ranks = accelerator.num_processes if lean.shard else 1
        self._owners = owners([each.numel() for each in parameters], ranks)
        self._parameters, self._ranks, self._offload = parameters, ranks, lean.offload
        rank = accelerator.process_index if ranks > 1 else 0
        self._mine = [index for index, owner in enumerate(self._owners) if owner == rank]
        own = [parameters[index] for index in self._mine]
        self._held = (
            [torch.nn.Parameter(torch.empty_like(each, device="cpu")) for each in own]
            if lean.offload
            else own
        )
        # A rank may own nothing where weights are few; AdamW wants one at least.
        stand_in = [torch.nn.Parameter(torch.zeros(0))]
        self._inner = torch.optim.AdamW(self._held or stand_in, lr=lr, weight_decay=weight_decay)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """AdamW's, of the weights that this rank steps."""
        return self._inner.param_groups

    def step(self) -> None:
        """Every rank must step at the same time, with the same gradients."""
        import torch

        with torch.no_grad():
            if self._offload:
                for held, each in self._pairs():
                    # Weights may have been loaded since, so the ones on the device are those that count.
                    held.copy_(each)
                    held.grad = None if each.grad is None else each.grad.to("cpu")
            self._inner.step()
            if self._offload:
                for held, each in self._pairs():
                    each.copy_(held)
                    held.grad = None
            if self._ranks > 1:
                self._hand_round()

    def _pairs(self) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
        own = [self._parameters[index] for index in self._mine]
        return list(zip(self._held, own, strict=True))

    def _hand_round(self) -> None:
        """Every weight from the rank that stepped it."""
        import torch
        from accelerate.utils import broadcast

        for owner in range(self._ranks):
            owned = [each for each, its in zip(self._parameters, self._owners, strict=True) if its == owner]
            while owned:
                bucket = [owned.pop(0)]
                while owned and sum(each.numel() for each in bucket) + owned[0].numel() <= BROADCAST:
                    bucket.append(owned.pop(0))
                flat = torch.cat([each.reshape(-1) for each in bucket])
                parts = broadcast(flat, from_process=owner).split([each.numel() for each in bucket])
                for each, part in zip(bucket, parts, strict=True):
                    each.copy_(part.view_as(each))

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Drop the gradients of all weights."""
        assert set_to_none, "absent gradients are what AdamW skips"
        for each in self._parameters:
            each.grad = None

    def state_dict(self) -> dict[str, Any]:
        """As AdamW's over all weights, with the moments that this rank holds; ``merge`` adds those of others."""
        own = self._inner.state_dict()
        groups = [{**group, "params": list(range(len(self._parameters)))} for group in own["param_groups"]]
        return {
            "state": {self._mine[index]: moments for index, moments in own["state"].items()},
            "param_groups": groups,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From the state over all weights, whoever wrote it."""
        places = {index: place for place, index in enumerate(self._mine)}
        count = max(1, len(self._held))
        self._inner.load_state_dict(
            {
                "state": {places[i]: moments for i, moments in state["state"].items() if i in places},
                "param_groups": [{**group, "params": list(range(count))} for group in state["param_groups"]],
            }
        )


def merge(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One state of all ranks' states."""
    moments = {index: each for state in states for index, each in state["state"].items()}
    return {**states[0], "state": dict(sorted(moments.items()))}


def owners(sizes: list[int], ranks: int) -> list[int]:
    """Owner of each weight: the largest first, each to the rank that has least."""
    held = [0] * ranks
    found = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        found[index] = held.index(min(held))
        held[found[index]] += sizes[index]
    return found
