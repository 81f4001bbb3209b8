"""One update of the policy trainer: micro-batches, the proximal policy, statistics by lag."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.run_helper import config

DECISIONS = 24


def trainer(*overrides: str) -> Any:
    """Of a policy that was never trained."""
    from platform.context import ANCHOR, POLICY, make_context
    from platform.policy_trainer import PolicyTrainer
    from platform.weights import WeightStore, module_arrays

    settings = config("real", "algorithm.max_grad_norm=1e9", "algorithm.kl_anchor=0.1", *overrides)
    context = make_context(settings, seed=0, device="cpu")
    torch.manual_seed(0)
    store = WeightStore()
    store.publish(POLICY, 0, module_arrays(context.make_policy()))
    store.publish(ANCHOR, 0, module_arrays(context.make_policy()))
    return PolicyTrainer(
        context, settings.algorithm, store, bound=9, discount=0.9, max_turns=10, precision="no"
    )


def batch_for(trained: Any, *, with_proximal: bool) -> Any:
    """Decisions of a policy near the learner's, some chunks cut short, one without a valid action."""
    from platform.envs.base import Observation
    from platform.policy_batch import DecisionBatch, proximal_log_probs

    context, rng = trained.context, np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    spec = context.env_spec
    observations = context.tensors(
        Observation(
            {name: rng.integers(0, 256, (DECISIONS, *size, 3), np.uint8) for name, size in spec.cameras.items()},
            rng.random((DECISIONS, spec.proprio_dim), np.float32),
            [spec.instructions[i % len(spec.instructions)] for i in range(DECISIONS)],
        )
    )  # fmt: skip
    choice = trained.policy.act(observations, greedy=False, generator=generator)
    valid = torch.rand(DECISIONS, 4, generator=generator) < 0.6
    valid[:5], valid[5] = True, False
    batch = DecisionBatch(
        observations, choice.tokens, choice.log_probs + 0.2 * torch.randn(choice.log_probs.shape, generator=generator),
        valid, torch.randn(DECISIONS, generator=generator), torch.randn(DECISIONS, generator=generator),
        torch.zeros(DECISIONS), trained.policy.features(observations), torch.arange(DECISIONS) % 4,
        np.zeros(DECISIONS, np.int32), np.ones(DECISIONS, np.bool_),
    )  # fmt: skip
    if with_proximal:
        batch.proximal_log_probs = proximal_log_probs(batch, trained.policy, list)
    return batch


OBJECTIVES = [
    ["algorithm=gipo", "algorithm.entropy=0.1"],
    ["algorithm=gipo", "algorithm.ratio=chunk", "algorithm.entropy=0.1"],
    ["algorithm=ppo", "algorithm.ratio=chunk"],
    ["algorithm=decoupled_ppo", "algorithm.behave_weight_threshold=1.1"],
    [
        "algorithm=decoupled_ppo", "algorithm.behave_weight_threshold=1.1", "algorithm.anchor=interpolate",
        "algorithm.ratio=chunk", "algorithm.entropy=0.1",
    ],
]  # fmt: skip


@pytest.mark.parametrize("objective", OBJECTIVES, ids=" ".join)
@pytest.mark.parametrize("loss", ["actor", "critic"])
def test_micro_batches_give_the_update_of_the_batch(objective: list[str], loss: str) -> None:
    """Gradients of 24 decisions in one piece and in pieces of 5, with uneven valid tokens."""
    gradients = []
    for size in (DECISIONS, 5):
        trained = trainer(*objective)
        batch = batch_for(trained, with_proximal=trained.recomputes)
        # Adam's first step is a sign: what is compared is the gradient that it is given.
        optimizer = getattr(trained, loss)
        taken: list[torch.Tensor] = []
        optimizer.optimizer.register_step_pre_hook(
            lambda stepped, *_, taken=taken: taken.extend(
                parameter.grad.clone() for group in stepped.param_groups for parameter in group["params"]
                if parameter.grad is not None
            )
        )  # fmt: skip
        getattr(trained, f"update_{loss}")([batch.take(rows) for rows in torch.arange(DECISIONS).split(size)])
        gradients.append(taken)
    assert len(gradients[0]) == len(gradients[1]) > 0
    assert max(float(gradient.abs().max()) for gradient in gradients[0]) > 1e-4
    for whole, parts in zip(*gradients, strict=True):
        assert torch.allclose(whole, parts, rtol=1e-4, atol=1e-6)


def test_the_turn_keeps_the_proximal_policy_that_it_began_with() -> None:
    trained = trainer("algorithm=decoupled_ppo", "algorithm.learning_rate=1e-2")
    batch = batch_for(trained, with_proximal=True)
    before = batch.proximal_log_probs.clone()
    for _ in range(2):
        trained.update_actor([batch])
    statistics = trained.averages.take()
    assert torch.equal(batch.proximal_log_probs, before)
    # Two looks: at the weights that the turn began with, and one step away.
    assert statistics["policy/proximal_approx_kl"] > 1e-6
    assert statistics["policy/behav_approx_kl"] == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=" ".join)
def test_statistics_are_reported_by_lag(objective: list[str]) -> None:
    trained = trainer(*objective)
    trained.update_actor([batch_for(trained, with_proximal=trained.recomputes)])
    names = {name for name in trained.averages.take() if "/lag_" in name}
    assert {f"policy/effective_sample_size/lag_{lag}" for lag in ("0", "1", "2_3")} <= names


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], [2.7, 2.7, 1.0, 2.7]),
        (["algorithm.value_range=[0,1]"], [0.9, 0.9, 1.0, 0.9]),
        (["algorithm.value_range=[0,1]", "algorithm.time_limit=end"], [0.0, 0.9, 1.0, 0.9]),
    ],
)
def test_what_comes_after_the_last_decision(
    overrides: list[str], expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of one decision: a real one out of time, an imagined one at its horizon, a success, a real one that goes on. The
    critic says 3, the discount is 0.9.
    """
    from platform.policy_batch import decision_batch

    from buffers.records import RecordBatch

    trained = trainer(*overrides)
    monkeypatch.setattr(trained.policy, "value", lambda features: torch.full(features.shape[:-1], 3.0))
    spec = trained.context.record_spec
    shape = (4, 1, spec.chunk, spec.action_dim)
    records = RecordBatch(
        images={name: np.zeros((4, 2, *size, 3), np.uint8) for name, size in spec.cameras.items()},
        proprio=np.zeros((4, 2, spec.proprio_dim), np.float32),
        instructions=[trained.context.env_spec.instructions[0]] * 4,
        tokens=np.zeros(shape, np.int16), log_probs=np.zeros(shape, np.float32), valid=np.ones(shape[:3], np.bool_),
        rewards=np.array([[0], [0], [1], [0]], np.float32), values=np.zeros((4, 1), np.float32),
        version=np.zeros((4, 1), np.int32), lengths=np.ones(4, np.int64),
        terminated=np.array([False, False, True, False]), truncated=np.array([True, True, False, False]),
        success=np.array([False, False, True, False]), imagined=np.array([False, True, False, False]),
        episode_ids=np.arange(4),
    )  # fmt: skip
    batch = decision_batch(
        trained.context,
        [records],
        trained.policy,
        trained._algorithm,
        version=0,
        bound=9,
        discount=0.9,
        evened=list,
    )
    assert batch.returns.tolist() == pytest.approx(expected)


def test_an_empty_range_of_values_is_refused() -> None:
    from configs.errors import ConfigError

    with pytest.raises(ConfigError, match=r"value_range=\[1\.0, 0\.0\] is empty"):
        config("real", "algorithm.value_range=[1,0]")
