"""AdamW with its moments elsewhere takes AdamW's steps: in the CPU's memory, shared out over ranks, and read back anywhere."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from configs.errors import ConfigError
from tests.ranks_helper import everywhere, on_ranks
from tests.run_helper import config

UNEVEN = (
    "algorithm.batch=16", "algorithm.micro_batch=4", "algorithm.critic_warm_up=0", "algorithm.anchor_decay=0.9",
    "algorithm.kl_anchor=0.1",
)  # fmt: skip


def weights() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 2), (5,), ())]


def give_gradients(own: list[torch.nn.Parameter], number: int) -> None:
    """The second weight has one only now and then."""
    generator = torch.Generator().manual_seed(number)
    for index, each in enumerate(own):
        gradient = torch.randn(each.shape, generator=generator)
        each.grad = gradient if index != 1 or number % 2 else None


def test_each_weight_has_one_owner_and_owners_hold_alike() -> None:
    from platform.lean_optimizer import owners

    assert owners([10, 7, 6, 3], 2) == [0, 1, 1, 0]
    assert owners([4, 4], 1) == [0, 0]
    assert owners([5], 3) == [0]


def test_moments_in_the_cpus_memory_change_no_step() -> None:
    from platform.acceleration import accelerator
    from platform.lean_optimizer import Lean, LeanAdamW

    plain, lean = weights(), weights()
    one = torch.optim.AdamW(plain, lr=0.1, weight_decay=0.01)
    two = LeanAdamW(lean, accelerator("cpu"), Lean(offload=True), lr=0.1, weight_decay=0.01)
    for number in range(4):
        for own, optimizer in ((plain, one), (lean, two)):
            give_gradients(own, number)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, lean, strict=True))
    assert all(each.grad is None for each in lean)
    held = {id(x) for group in two.param_groups for x in group["params"]}
    assert not held & {id(each) for each in lean}
    again = weights()
    three = torch.optim.AdamW(again, lr=9.0)
    # As from a checkpoint: torch would share the tensors.
    three.load_state_dict(deepcopy(two.state_dict()))
    two.load_state_dict(deepcopy(one.state_dict()))
    for a, b in zip(again, lean, strict=True):
        a.data.copy_(b)
    for own, optimizer in ((again, three), (lean, two), (plain, one)):
        give_gradients(own, 5)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(again, lean, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain, lean, strict=True))


def make_lean(trainer: Any) -> int:
    """From now on this rank holds its own share of the moments; how many numbers it then holds of the actor's."""
    from platform.acceleration import OptimizerStep
    from platform.lean_optimizer import Lean

    trainer.lean = Lean(shard="moments")
    for name in ("actor", "critic"):
        before = getattr(trainer, name)
        step = OptimizerStep(
            before._parameters, learning_rate=before._learning_rate, max_grad_norm=before._max_grad_norm,
            device="cpu", lean=trainer.lean,
        )  # fmt: skip
        setattr(trainer, name, step)
    return sum(each.numel() for group in trainer.actor.optimizer.param_groups for each in group["params"])


def policy_weights(trainer: Any) -> dict[str, Any]:
    from platform.weights import module_arrays

    return module_arrays(trainer.policy)


def moments_held(trainer: Any) -> list[int]:
    return sorted(trainer.held(["actor"])["actor"]["optimizer"]["state"])


def arrays(state: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The actor's moments by weight; tensors would have to be fetched from a process that has ended."""
    moments = state["actor"]["optimizer"]["state"]
    return {index: {name: np.array(x) for name, x in each.items()} for index, each in moments.items()}


def turns(learner: Any) -> dict[str, Any]:
    """Two turns with whole moments, then the same two with shared ones, then one more from the shared ones' checkpoint."""
    services = [learner._weights, *learner._buffers.values()]
    held, start = [service.state() for service in services], learner.state()
    seen: dict[str, Any] = {"start": policy_weights(learner.trainer)}
    for way in ("whole", "shared"):
        for service, state in zip(services, held, strict=True):
            service.load(state)
        if way == "shared":
            seen["sizes"] = everywhere(learner, make_lean)
        learner.load(start)
        assert learner.step()
        seen[way] = everywhere(learner, policy_weights)
        seen[f"{way} moments"] = everywhere(learner, moments_held)
        seen[f"{way} state"] = arrays(learner.state())
    learner.load(learner.state())
    seen["loaded"] = arrays(learner.state())
    return seen


@pytest.fixture(scope="module")
def pair() -> dict[str, Any]:
    return on_ranks(2, turns, *UNEVEN)  # type: ignore[no-any-return]


def test_shared_moments_change_no_step(pair: dict[str, Any]) -> None:
    for way in ("whole", "shared"):
        first, second = pair[way]
        assert all(np.array_equal(first[name], second[name]) for name in first), "ranks never drift apart"
    for name, array in pair["whole"][0].items():
        np.testing.assert_array_equal(array, pair["shared"][0][name], err_msg=name)
    assert any(not np.array_equal(x, pair["start"][name]) for name, x in pair["whole"][0].items())


def test_nobody_to_share_with() -> None:
    with pytest.raises(
        ConfigError, match=r"learner\.shard=moments has nobody to share with at learner\.ranks=1"
    ):
        config("real", "learner.shard=moments")


def test_nothing_to_offload_from() -> None:
    from platform.plan import check_plan

    with pytest.raises(ConfigError, match=r"moves memory from a GPU to the CPU, but run\.device=cpu"):
        check_plan(config("real", "learner.offload=true"))


def test_the_plan_counts_what_is_shared_and_what_lies_elsewhere() -> None:
    pytest.importorskip("transformers")
    from platform.context import make_context
    from platform.memory_plan import policy_memory

    from configs.loader import load_config
    from configs.schema import TrainConfig
    from tests.test_openvla_run import OPENVLA, SETTINGS

    def learner(*overrides: str) -> dict[str, int]:
        given = ["real", *SETTINGS, *OPENVLA, "algorithm.micro_batch=16", *overrides]
        settings = load_config(TrainConfig, given)
        planned = policy_memory(settings, make_context(settings, seed=0, device="cpu"))
        assert planned is not None
        return planned[1][0].parts | {"moments alone": planned[0].moment_bytes}

    ranks = ("host=ray", "learner.ranks=2")
    whole, shared, away = learner(*ranks), learner(*ranks, "learner.shard=moments"), learner("learner.offload=true")  # fmt: skip
    moments = whole["moments alone"]
    assert whole["gradients and moments"] - shared["gradients and moments"] == moments // 2
    assert away["gradients"] == moments // 2
    assert away["moments on the CPU"] == 2 * moments
    assert away["anchor on the CPU"] == whole["anchor"]
