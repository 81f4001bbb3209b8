"""A policy whose blocks two ranks share out learns what one process would, and leaves the same weights and checkpoints."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from tests.ranks_helper import everywhere, make_learner, on_ranks

pytest.importorskip("transformers", reason="pip install 'reverie-rl[vla]'")

OPENVLA = (
    "policy=openvla_tiny", "policy.chunk=4", "policy.replan=4", "policy.vision_layers=3", "policy.layers=2",
    "policy.width=24", "policy.vision_width=24", "policy.heads=3",
    "algorithm.batch=16", "algorithm.micro_batch=4", "algorithm.critic_warm_up=0", "algorithm.epochs=2",
    "algorithm.kl_anchor=0.1", "algorithm.learning_rate_warm_up=0", "algorithm.anchor_decay=0.9",
    "algorithm.max_grad_norm=0.05",
)  # fmt: skip
"""Widths that two ranks cannot halve evenly everywhere, a norm that clips, and shares of a turn that differ."""
SHARED = ("host=ray", "learner.ranks=2", "learner.shard=weights")


def held_numbers(trainer: Any) -> int:
    """Numbers of the policy's weights in this process."""
    return sum(array.size for array in trainer.held(["policy"])["policy"].values())


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """The parts that ranks share out, as arrays: tensors would have to be fetched from a process that has ended."""
    steps = {
        name: {
            index: {key: np.array(x) for key, x in moments.items()}
            for index, moments in state[name]["optimizer"]["state"].items()
        }
        for name in ("actor", "critic")
    }
    return {"policy": state["policy"], "anchor": state["anchor"], **steps}


def turns(learner: Any) -> dict[str, Any]:
    """Two turns, a checkpoint, a third turn; the same third turn again from the checkpoint."""
    from platform.context import POLICY

    assert learner.step()
    assert learner.step()
    services = [learner._weights, *learner._buffers.values()]
    held, state = [service.state() for service in services], deepcopy(learner.state())
    seen: dict[str, Any] = {"numbers": everywhere(learner, held_numbers), "state": plain(state)}
    seen["published"] = learner._weights.fetch(POLICY, -1).arrays
    assert learner.step()
    seen["third"] = plain(learner.state())
    seen["metrics"] = learner.metrics()
    for service, each in zip(services, held, strict=True):
        service.load(each)
    learner.load(state)
    assert learner.step()
    seen["third again"] = plain(learner.state())
    return seen


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return turns(make_learner(OPENVLA))


@pytest.fixture(scope="module")
def pair() -> dict[str, Any]:
    return on_ranks(2, turns, *OPENVLA, *SHARED)  # type: ignore[no-any-return]


def distance(one: dict[Any, Any], other: dict[Any, Any]) -> float:
    assert one.keys() == other.keys()
    return max(
        distance(x, other[name]) if isinstance(x, dict) else float(np.abs(x - other[name]).max(initial=0.0))
        for name, x in one.items()
    )


def test_shared_weights_take_the_steps_of_whole_ones(alone: dict[str, Any], pair: dict[str, Any]) -> None:
    assert distance(pair["state"], alone["state"]) < 2e-6
    assert distance(pair["third"], alone["third"]) < 5e-6
    moved = distance(pair["third"]["policy"], pair["state"]["policy"])
    assert moved > 1e-4, "something was learned"


def test_a_rank_holds_about_half_and_publishes_all(alone: dict[str, Any], pair: dict[str, Any]) -> None:
    (whole,) = alone["numbers"]
    assert all(0.45 * whole < count < 0.75 * whole for count in pair["numbers"])
    assert distance(pair["published"], pair["state"]["policy"]) == 0.0
    assert sum(array.size for array in pair["published"].values()) == whole


def test_a_checkpoint_of_shared_weights_is_everybodys(alone: dict[str, Any], pair: dict[str, Any]) -> None:
    assert distance(pair["third again"], pair["third"]) == 0.0
    shapes = {
        index: {key: x.shape for key, x in each.items()} for index, each in alone["state"]["actor"].items()
    }
    assert shapes == {
        index: {key: x.shape for key, x in each.items()} for index, each in pair["state"]["actor"].items()
    }


def test_metrics_count_no_filling(alone: dict[str, Any], pair: dict[str, Any]) -> None:
    # A filling decision has no valid token, so its entropy would count as 0.
    assert pair["metrics"]["policy/entropy"] == pytest.approx(alone["metrics"]["policy/entropy"], rel=1e-3)
    assert pair["metrics"]["policy/grad_norm"] == pytest.approx(
        alone["metrics"]["policy/grad_norm"], rel=1e-4
    )


def test_the_plan_counts_pieces_and_the_block_that_runs() -> None:
    from platform.context import make_context
    from platform.memory_plan import policy_memory

    from tests.test_openvla_run import config

    def learner(*overrides: str) -> dict[str, int]:
        settings = config("real", "host=ray", "learner.ranks=4", "algorithm.micro_batch=8", *overrides)
        planned = policy_memory(settings, make_context(settings, seed=0, device="cpu"))
        assert planned is not None
        return planned[1][0].parts

    whole, shared = learner(), learner("learner.shard=weights")
    sizes = {
        name: each.numel()
        for name, each in make_context(config("real"), seed=0, device="cpu").make_policy().named_parameters()
    }
    layer, block = (
        sum(n for name, n in sizes.items() if f".{word}.0." in name) for word in ("layers", "blocks")
    )
    largest = max(layer, block)
    # One layer and one block of the tower: three of four pieces lie elsewhere, and the larger is gathered while it runs.
    away = 3 * (layer + block)
    assert whole["weights"] - shared["weights"] == away - 4 * largest
    assert whole["anchor"] - shared["anchor"] == away - 4 * largest
    assert whole["gradients and moments"] - shared["gradients and moments"] == 3 * away


def test_a_policy_without_blocks_is_refused() -> None:
    from platform.plan import check_plan

    from configs.errors import ConfigError
    from tests.run_helper import config

    settings = config(
        "real", "host=ray", "learner.ranks=2", "learner.shard=weights", "algorithm.micro_batch=16"
    )
    with pytest.raises(
        ConfigError, match="policy=small_vla has no blocks whose weights ranks could share out"
    ):
        check_plan(settings)
