"""The optimizers of the world models, and their states as trees that are saved without pickle.

SOAP (arXiv:2409.11321) stands for the family of K-FAC: each weight's gradient is preconditioned by one small matrix per
axis. Where gradients have few directions its step is shorter than one of Adam's at the same rate: it wants a higher one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch.optim import AdamW

from configs.errors import ConfigError
from configs.obs_model import Optimizer

Groups = list[dict[str, Any]]


def _adamw(groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
    return AdamW(groups, lr=learning_rate, foreach=True)


def _soap(groups: Groups, learning_rate: float) -> torch.optim.Optimizer:
    require_soap()
    from pytorch_optimizer import SOAP

    return SOAP(groups, lr=learning_rate)


OPTIMIZERS: dict[Optimizer, Callable[[Groups, float], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "soap": _soap,
}


def require_soap() -> None:
    """Raise ConfigError where the package of the Kronecker-factored optimizer is not installed."""
    if find_spec("pytorch_optimizer") is None:
        raise ConfigError(
            "the package pytorch-optimizer is not installed",
            where="optimizer=soap",
            remedy="pip install 'reverie-rl[kronecker]', or use adamw",
        )


def state_of(optimizer: torch.optim.Optimizer) -> Any:
    """What ``load_into`` continues from, as a tree of tensors and plain values."""
    full = optimizer.state_dict()
    return pack({name: full[name] for name in ("state", "param_groups")})


def load_into(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Continue from what ``state_of`` gave."""
    optimizer.load_state_dict(unpack(state))


def pack(value: Any) -> Any:
    """An optimizer's state as dicts, lists, tensors and plain values, copied; ``unpack`` is the inverse."""
    if isinstance(value, torch.Tensor):
        # Files keep no layout, and a product of matrices laid out otherwise differs in its last bits.
        if value.dim() == 2 and not value.is_contiguous() and value.t().is_contiguous():
            return {"transposed": value.detach().t().clone()}
        return value.detach().clone()
    if isinstance(value, dict):
        return {"items": [[pack(key), pack(item)] for key, item in value.items()]}
    for kind, name in _SEQUENCES.items():
        if isinstance(value, kind):
            members: Any = sorted(value) if isinstance(value, set) else value
            return {name: [pack(item) for item in members]}
    return value


def unpack(tree: Any) -> Any:
    """The state that ``pack`` was given."""
    if isinstance(tree, torch.Tensor):
        return tree.clone()
    if not isinstance(tree, dict):
        return tree
    ((name, members),) = tree.items()
    if name == "transposed":
        return members.clone().t()
    if name == "items":
        return {unpack(key): unpack(item) for key, item in members}
    kinds: dict[str, Callable[[Any], Any]] = {word: kind for kind, word in _SEQUENCES.items()}
    return kinds[name](unpack(item) for item in members)


_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", set: "set"}
