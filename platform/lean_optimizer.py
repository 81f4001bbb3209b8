"""AdamW with its moments where there is room: each rank holds those of its own weights (ZeRO's first stage) or of its own pieces
of all weights (FSDP), or they lie in the CPU's memory. The steps are AdamW's, number for number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from configs.system import Sharing

from .pieces import is_shared, local_part, part_of

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

BROADCAST = 8_000_000
"""Numbers that a rank sends in one message."""


@dataclass(frozen=True)
class Lean:
    """Where moments lie."""

    shard: Sharing = "nothing"
    """What ranks share out."""
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

        ranks = accelerator.num_processes if lean.shard == "moments" else 1
        self._owners = owners([each.numel() for each in parameters], ranks)
        self._parameters, self._ranks, self._offload = parameters, ranks, lean.offload
        self._seat = accelerator.process_index, accelerator.num_processes
        rank = accelerator.process_index if ranks > 1 else 0
        self._mine = [index for index, owner in enumerate(self._owners) if owner == rank]
        self._held = [self._hold(parameters[index]) for index in self._mine]
        # A rank may own nothing where weights are few; AdamW wants one at least.
        stand_in = [torch.nn.Parameter(torch.zeros(0))]
        self._inner = torch.optim.AdamW(self._held or stand_in, lr=lr, weight_decay=weight_decay)

    def _hold(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """What AdamW steps: the weight itself, the piece of it that this rank has, or a copy in the CPU's memory."""
        import torch

        if self._offload:
            return torch.nn.Parameter(torch.empty_like(local_part(parameter.detach()), device="cpu"))
        return torch.nn.Parameter(local_part(parameter.detach())) if is_shared(parameter) else parameter

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """AdamW's, of the weights that this rank steps."""
        return self._inner.param_groups

    def step(self) -> None:
        """Every rank must step at the same time, with the same gradients."""
        import torch

        with torch.no_grad():
            for held, each in self._apart():
                own = local_part(each)
                if self._offload:
                    # Weights may have been loaded since, so the ones on the device are those that count.
                    held.copy_(own)
                else:
                    held.data = own
                held.grad = None if each.grad is None else local_part(each.grad).to(held.device)
            self._inner.step()
            for held, each in self._apart():
                if self._offload:
                    local_part(each).copy_(held)
                held.grad = None
            if self._ranks > 1:
                self._hand_round()

    def _apart(self) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
        """What AdamW steps where that is not the weight itself, and the weight."""
        own = [self._parameters[index] for index in self._mine]
        return [(held, each) for held, each in zip(self._held, own, strict=True) if held is not each]

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
                "state": {
                    places[i]: self._own(i, moments) for i, moments in state["state"].items() if i in places
                },
                "param_groups": [{**group, "params": list(range(count))} for group in state["param_groups"]],
            }
        )

    def _own(self, index: int, moments: dict[str, Any]) -> dict[str, Any]:
        if not is_shared(self._parameters[index]):
            return moments
        return {name: part_of(x, *self._seat) if name in MOMENTS else x for name, x in moments.items()}


MOMENTS = frozenset({"exp_avg", "exp_avg_sq"})
"""Of AdamW's state, what has the weight's shape."""


def merge(states: list[dict[str, Any]], in_pieces: frozenset[int] = frozenset()) -> dict[str, Any]:
    """One state of all ranks' states, in their order; each holds its piece of the weights ``in_pieces``."""
    moments: dict[int, Any] = {}
    for state in states:
        for index, each in state["state"].items():
            moments.setdefault(index, []).append(each)
    whole = {index: _whole(held) if index in in_pieces else held[-1] for index, held in moments.items()}
    return {**states[0], "state": dict(sorted(whole.items()))}


def _whole(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    return {
        name: torch.cat([torch.as_tensor(each[name]).cpu() for each in pieces]) if name in MOMENTS else first
        for name, first in pieces[0].items()
    }


def owners(sizes: list[int], ranks: int) -> list[int]:
    """Owner of each weight: the largest first, each to the rank that has least."""
    held = [0] * ranks
    found = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        found[index] = held.index(min(held))
        held[found[index]] += sizes[index]
    return found
