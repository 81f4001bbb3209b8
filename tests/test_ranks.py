"""A turn over two ranks is the turn of one: same batches, same gradients, same weights, same refusals."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest

from buffers.batches import Lease
from configs.errors import ConfigError, RoleFailure
from tests.ranks_helper import everywhere, make_learner, on_ranks
from tests.run_helper import config

UNEVEN = (
    "algorithm.batch=16", "algorithm.micro_batch=4", "algorithm.critic_warm_up=0", "algorithm.epochs=2",
    "algorithm.entropy=0.01", "algorithm.learning_rate_warm_up=0", "algorithm.anchor_decay=0.9",
)  # fmt: skip
"""A turn of 64 decisions or more: four updates an epoch, each in micro-batches of whatever a rank holds of it."""


def weights(trainer: Any) -> dict[str, Any]:
    from platform.weights import module_arrays

    anchor = {f"anchor/{name}": array for name, array in module_arrays(trainer.anchor).items()}
    return module_arrays(trainer.policy) | anchor


def watch(trainer: Any) -> None:
    """Plain descent, whose steps are the gradients, and every turn's batch kept for the test to see."""
    import torch

    for part in (trainer.actor, trainer.critic):
        part.optimizer = torch.optim.SGD(part._parameters, lr=0.1)
        part._learning_rate = 0.1
    train = trainer.train

    def kept(batches: list[Any]) -> Any:
        trainer.kept = train(batches)
        return trainer.kept

    trainer.train = kept


def advantages(trainer: Any) -> Any:
    return trainer.kept.advantages.numpy()


def skipped(trainer: Any) -> tuple[int, int]:
    return trainer.actor.skipped, trainer.critic.skipped


def poison(trainer: Any) -> None:
    """The next gradients of this rank's actor are not finite."""
    backward = trainer.actor.backward

    def poisoned(loss: Any) -> None:
        backward(loss)
        trainer.actor._parameters[0].grad.fill_(math.inf)

    trainer.actor.backward = poisoned


def fall_over(trainer: Any) -> None:
    trainer.train = lambda batches: os._exit(1)


def absent_gradients(trainer: Any) -> tuple[float | None, list[float]]:
    """One step in which the first weight has a gradient on both ranks, the second on one, the third on none."""
    from platform.acceleration import OptimizerStep, accelerator

    import torch

    rank = accelerator("cpu").process_index
    own = [torch.nn.Parameter(torch.ones(())) for _ in range(3)]
    step = OptimizerStep(own, learning_rate=1.0, max_grad_norm=1e9, device="cpu")
    step.optimizer = torch.optim.SGD(own, lr=1.0, weight_decay=0.5)
    step.backward(own[0] * (1.0 + rank) + (own[1] * 4.0 if rank else 0.0))
    return step.apply(), [weight.item() for weight in own]


def turns(learner: Any) -> dict[str, Any]:
    """Everything that the tests look at, in the one order in which one group can do it."""
    services = [learner._weights, *learner._buffers.values()]
    held = [service.state() for service in services]
    seen: dict[str, Any] = {"absent": everywhere(learner, absent_gradients), "start": learner.state()}
    assert learner.step()
    assert learner.step()
    seen["adamw"] = everywhere(learner, weights)
    for service, state in zip(services, held, strict=True):
        service.load(state)
    learner.load(seen["start"])
    seen["loaded"] = everywhere(learner, weights)
    everywhere(learner, watch)
    learner.metrics()
    assert learner.step()
    seen["plain"] = everywhere(learner, weights)
    seen["advantages"] = np.concatenate(everywhere(learner, advantages))
    seen["metrics"] = learner.metrics()
    return seen


def turns_and_trouble(learner: Any) -> dict[str, Any]:
    """The same, then what only a group can suffer."""
    seen = turns(learner)
    (colleague,) = learner._team._colleagues
    colleague.finish(colleague.begin("run", poison))
    assert learner.step()
    seen["skipped"] = everywhere(learner, skipped)
    seen["poisoned"] = everywhere(learner, weights)
    colleague.finish(colleague.begin("run", fall_over))
    try:
        learner.step()
    except Exception as error:  # noqa: BLE001  the error is what is tested
        seen["trouble"] = str(error)
    return seen


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return turns(make_learner(UNEVEN))


@pytest.fixture(scope="module")
def pair() -> dict[str, Any]:
    return on_ranks(2, turns_and_trouble, *UNEVEN)  # type: ignore[no-any-return]


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of any weight that both have."""
    common = one.keys() & other.keys()
    assert len(common) >= len(other)
    return max(float(np.abs(one[name] - other[name]).max()) for name in common)


@pytest.mark.parametrize("optimizer", ["plain", "adamw"])
def test_two_ranks_take_the_steps_of_one(alone: dict[str, Any], pair: dict[str, Any], optimizer: str) -> None:
    first, second = pair[optimizer]
    assert distance(first, second) == 0.0, "ranks never drift apart"
    assert distance(first, alone[optimizer][0]) < 1e-6
    assert distance(first, alone["start"]["policy"]) > 1e-4, "something was learned"


def test_advantages_are_normalised_over_both_ranks(alone: dict[str, Any], pair: dict[str, Any]) -> None:
    np.testing.assert_allclose(pair["advantages"], alone["advantages"], atol=1e-6)
    assert abs(pair["advantages"].mean()) < 1e-6
    assert abs(pair["advantages"].std() - 1) < 1e-5


def test_metrics_are_of_the_whole_turn(alone: dict[str, Any], pair: dict[str, Any]) -> None:
    assert alone["metrics"].keys() == pair["metrics"].keys()
    for name, value in alone["metrics"].items():
        if name.startswith(("staleness/", "policy/batch_", "policy/advantage_std", "policy/grad_norm")) or (
            name in ("policy/real_share", "policy/average_version")
        ):
            assert pair["metrics"][name] == pytest.approx(value, abs=1e-5), name


def test_a_gradient_is_the_sum_of_those_that_ranks_have(pair: dict[str, Any]) -> None:
    # 1 + 2 = 3 and 4; a step of -(gradient + 0.5 weight) where there is a gradient, none where there is not.
    for norm, after in pair["absent"]:
        assert norm == pytest.approx(5.0)
        assert after == pytest.approx([1 - 3 - 0.5, 1 - 4 - 0.5, 1.0])


def test_every_rank_continues_from_a_checkpoint(pair: dict[str, Any]) -> None:
    for loaded in pair["loaded"]:
        assert distance(loaded, pair["start"]["policy"]) == 0.0


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_both(pair: dict[str, Any]) -> None:
    (actor, critic), other = pair["skipped"]
    assert (actor, critic) == other
    assert critic == 0
    assert actor == 8, "four updates an epoch, two epochs"
    first, second = pair["poisoned"]
    assert distance(first, second) == 0.0
    for name, array in first.items():
        assert np.isfinite(array).all()
        if name.startswith("actor."):
            assert np.array_equal(array, pair["plain"][0][name])


def test_a_rank_that_dies_is_told_by_name(pair: dict[str, Any]) -> None:
    assert pair["trouble"].startswith("the process of policy_learner_1 died")


def test_a_rank_that_fails_keeps_its_error_for_the_host() -> None:
    from platform.hosts.actors import RankActor
    from platform.hosts.seat import Seat

    actor = RankActor(list, Seat(threads=1))
    assert actor.call("__len__") == 0
    assert actor.error() is None
    with pytest.raises(IndexError):
        actor.call("pop")
    message, trace = actor.error() or ("", "")
    assert message == "IndexError: pop from empty list"
    assert trace.startswith("Traceback")


def test_the_host_tells_which_rank_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    from platform.hosts import ray_host

    class Failed:
        """An actor whose answers are there at once."""

        @property
        def error(self) -> Any:
            return self

        def remote(self) -> tuple[str, str]:
            return "ValueError: out of paper", "Traceback"

    host = object.__new__(ray_host.RayHost)
    host._services, host._roles, host._ranks = {}, {}, {"policy_learner_1": Failed()}
    host._spares, host._answer_s = ray_host.Spares(0), 1.0
    monkeypatch.setattr(ray_host, "answers", lambda asked, *_, **__: asked)
    with pytest.raises(RoleFailure, match="policy_learner_1 failed: ValueError: out of paper"):
        host._look()


def lease_of(lengths: list[int]) -> Lease:
    from buffers.records import RecordSpec
    from tests.ranks_helper import random_record

    spec = RecordSpec(
        cameras={"top": (2, 2)}, proprio_dim=1, chunk=2, replan=2, action_dim=1, bins=4, max_decisions=12
    )
    from buffers.memory import MemoryBuffer
    from configs.system import BufferConfig

    buffer = MemoryBuffer(spec, BufferConfig(max_bytes=100_000), seed=0, name="real")
    numbers = iter(range(10_000))
    for length in lengths:
        record = next(r for r in (random_record(spec, n) for n in numbers) if r.length == length)
        buffer.extend([record])
    lease = buffer.lease(sum(lengths))
    assert lease is not None
    return lease


@pytest.mark.parametrize(
    ("lengths", "ranks", "expected"),
    [
        ([[4, 4, 4, 4]], 2, [[4, 4], [4, 4]]),
        ([[1, 1, 1, 12]], 2, [[1, 1, 1], [12]]),
        ([[12, 1, 1, 1]], 2, [[12], [1, 1, 1]]),
        ([[12, 1, 1]], 3, [[12], [1], [1]]),
        ([[1, 1, 12]], 3, [[1], [1], [12]]),
        ([[5, 3], [2, 6]], 2, [[5, 3], [2, 6]]),
        ([[2], [5, 5, 4]], 2, [[2, 5], [5, 4]]),
    ],
)
def test_records_are_shared_out_whole_and_in_order(
    lengths: list[list[int]], ranks: int, expected: list[list[int]]
) -> None:
    from platform.ranks import shares_of

    batches = [lease_of(each).batch for each in lengths]
    shares = shares_of(batches, ranks)
    assert [[int(n) for part in share for n in part.lengths] for share in shares] == expected
    for name in ("tokens", "rewards", "terminated"):
        wanted = np.concatenate(
            [getattr(batch, name)[:, ...].reshape(len(batch.lengths), -1)[:, :1] for batch in batches]
        )
        given = np.concatenate(
            [getattr(part, name).reshape(len(part.lengths), -1)[:, :1] for share in shares for part in share]
        )
        assert np.array_equal(wanted, given)
    assert [i for share in shares for part in share for i in part.instructions] == [
        i for batch in batches for i in batch.instructions
    ]


def test_one_rank_gets_the_lease_itself() -> None:
    from platform.ranks import shares_of

    batch = lease_of([3, 2]).batch
    assert shares_of([batch], 1)[0][0] is batch


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("host=serial", "learner.ranks=2", "algorithm.micro_batch=16"), "use host=ray"),
        (("learner.ranks=2",), "choose a micro_batch that divides each rank's share"),
        (("learner.ranks=3",), "choose a batch that divides by learner.ranks"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config("real", *overrides)
