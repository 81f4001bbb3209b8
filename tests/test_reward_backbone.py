"""M_reward on the first layers of the policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from configs.errors import ConfigError
from tests.model_parts import SPEC, encode, reward_config
from tests.run_helper import config
from tests.test_reward_model import spots
from world_models.reward_model import PolicyRewardModel
from world_models.training import RewardModelTrainer


def context(*overrides: str) -> Any:
    from platform.context import make_context

    argv = ["world_model.reward_model.backbone=policy", *overrides]
    return make_context(config("real+imagined", *argv), seed=0, device="cpu")


def test_it_starts_with_the_policys_weights_and_goes_its_own_way() -> None:
    """The same numbers in its stem, in memory of its own; a frozen one stays, another one moves."""
    for frozen in (True, False):
        made = context(f"world_model.reward_model.freeze_backbone={frozen}".lower())
        policy = made.make_policy()
        model = made.make_reward_model(policy)
        before = {name: value.clone() for name, value in policy.state_dict().items()}
        for name, value in model.backbone.state_dict().items():
            assert torch.equal(value, before[f"actor.{name}"]), name
        trainer = RewardModelTrainer(model, model.config, encode=made.vocabulary.encode, seed=0)
        batch = spots(8, 0)
        batch.frames = {"top": batch.frames["top"].repeat(2, axis=1).repeat(2, axis=2)}
        batch.frames = dict.fromkeys(made.model_spec.cameras, batch.frames["top"])
        batch.instructions = [made.env_spec.instructions[0]] * 8
        trainer.update(batch)
        moved = [
            n for n, v in model.backbone.state_dict().items() if not torch.equal(v, before[f"actor.{n}"])
        ]
        assert bool(moved) is not frozen
        assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
        assert all(torch.isfinite(value).all() for value in trainer.averaged.state_dict().values())


def test_it_learns_what_the_instruction_asks() -> None:
    """As the network of its own does: one frame is success under one instruction and not under the other."""
    from configs.policy import SmallVLAConfig
    from policies.base import PolicySpec
    from policies.perception import perception
    from policies.small_vla import SmallVLA

    torch.manual_seed(0)
    spec = PolicySpec(
        cameras=SPEC.cameras, proprio_dim=2, chunk=3, replan=2, action_dim=2, bins=4, action_low=(-1.0, -1.0),
        action_high=(1.0, 1.0), instructions=("a b c", "d b c"),
    )  # fmt: skip
    policy = SmallVLA(SmallVLAConfig(width=16, heads=2, layers=1, stem_channels=[16, 16], keypoints=8), spec)
    model = PolicyRewardModel(
        SPEC, reward_config(backbone="policy", precision="float32", shift=0), perception(policy)
    )
    trainer = RewardModelTrainer(
        model, model.config, encode=encode, seed=0, learning_rate=4e-3, total_updates=200
    )
    for update in range(200):
        trainer.update(spots(64, update))
    held_out = spots(200, 10_000)
    called = model.probability(
        {"top": torch.from_numpy(held_out.frames["top"])}, torch.from_numpy(encode(held_out.instructions))
    )
    assert float(((called > 0.5).numpy() == (held_out.label > 0.5)).mean()) > 0.85


def test_a_policy_without_first_layers_is_named() -> None:
    """Another kind of policy."""
    from policies.base import Policy
    from policies.perception import perception

    class Other(Policy):
        forward = features = value = actor_parameters = critic_parameters = None  # type: ignore[assignment]

    with pytest.raises(ConfigError, match="Other has no first layers"):
        perception(Other())


def test_freezing_untrained_layers_is_refused() -> None:
    """Only the policy's are worth keeping."""
    with pytest.raises(ConfigError, match="would freeze untrained layers"):
        replace(reward_config(), freeze_backbone=True)
