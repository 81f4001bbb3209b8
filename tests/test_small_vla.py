import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from configs.errors import DataError
from configs.policy import SmallVLAConfig
from policies.base import ObservationTensors, PolicySpec, choose_tokens, make_policy, observation_tensors
from policies.cloning import cloning_loss
from policies.registry import POLICIES
from policies.small_vla import SmallVLA

INSTRUCTIONS = ("reach the red block", "reach the blue block")


def make_spec(cameras: Sequence[str] = ("top",), size: int = 32, proprio_dim: int = 3) -> PolicySpec:
    return PolicySpec(
        cameras=dict.fromkeys(cameras, (size, size)),
        proprio_dim=proprio_dim,
        chunk=4,
        replan=4,
        action_dim=3,
        bins=16,
        action_low=(-1.0,) * 3,
        action_high=(1.0,) * 3,
        instructions=INSTRUCTIONS,
    )


def make(spec: PolicySpec, *, trained: bool = True) -> SmallVLA:
    """With ``trained`` the zero-initialised heads get weights, so that outputs differ between observations."""
    torch.manual_seed(0)
    policy = make_policy(SmallVLAConfig(), spec)
    assert isinstance(policy, SmallVLA)
    if trained:
        torch.nn.init.normal_(policy.actor.head.weight, std=0.3)
        torch.nn.init.normal_(policy.critic.head.weight, std=0.3)
    return policy


def observe(policy: SmallVLA, count: int, seed: int = 0) -> ObservationTensors:
    rng = np.random.default_rng(seed)
    images = {
        name: rng.integers(0, 256, (count, *size, 3), dtype=np.uint8)
        for name, size in policy.spec.cameras.items()
    }
    proprio = rng.random((count, policy.spec.proprio_dim), dtype=np.float32)
    return observation_tensors(
        images, proprio, [INSTRUCTIONS[i % 2] for i in range(count)], policy.vocabulary
    )


def test_registry_knows_the_config() -> None:
    assert POLICIES[SmallVLAConfig] is SmallVLA


def test_spec_json_and_require() -> None:
    spec = make_spec(("top", "wrist"))
    assert PolicySpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    spec.require(spec, where="here", remedy="there")
    other = PolicySpec.from_json({**spec.to_json(), "bins": 8})
    with pytest.raises(DataError, match=r"bins is 8, the policy has 16 \(env\): retrain"):
        spec.require(other, where="env", remedy="retrain")
    unknown = PolicySpec.from_json({**spec.to_json(), "instructions": ["reach the green block"]})
    with pytest.raises(DataError, match="green"):
        spec.require(unknown, where="env", remedy="retrain")


def test_size_and_fresh_outputs() -> None:
    policy = make(make_spec(), trained=False)
    assert 0.3e6 <= sum(p.numel() for p in policy.parameters()) <= 0.9e6
    obs = observe(policy, 5)
    log_probs, entropy = policy.log_probs(obs, torch.zeros(5, 4, 3, dtype=torch.int64))
    assert torch.allclose(log_probs, torch.full((5, 4, 3), -float(np.log(16))))
    assert torch.allclose(entropy, torch.full((5, 4, 3), float(np.log(16))))
    assert policy.value(policy.features(obs)).tolist() == [0.0] * 5


@pytest.mark.parametrize(("cameras", "size", "proprio_dim"), [(("a", "b"), 64, 8), (("top",), 24, 0)])
def test_other_shapes(cameras: tuple[str, ...], size: int, proprio_dim: int) -> None:
    policy = make(make_spec(cameras, size, proprio_dim))
    obs = observe(policy, 3)
    assert policy(obs).logits.shape == (3, 4, 3, 16)
    output = policy(obs)
    assert torch.equal(output.features, policy.features(obs))
    assert policy.value(output.features).shape == (3,)


def test_every_input_is_used() -> None:
    policy = make(make_spec(("top", "wrist")))
    obs = observe(policy, 2)
    before, value = policy(obs).logits, policy.value(policy.features(obs))
    for name in ("top", "wrist"):
        images = {**obs.images, name: 255 - obs.images[name]}
        changed = ObservationTensors(images, obs.proprio, obs.instruction_ids)
        assert not torch.allclose(policy(changed).logits, before, atol=1e-3)
        assert not torch.allclose(policy.value(policy.features(changed)), value, atol=1e-4)
    for changed in (
        ObservationTensors(obs.images, obs.proprio + 0.3, obs.instruction_ids),
        ObservationTensors(obs.images, obs.proprio, obs.instruction_ids.flip(0)),
    ):
        assert not torch.allclose(policy(changed).logits, before, atol=1e-3)
        assert not torch.allclose(policy.value(policy.features(changed)), value, atol=1e-4)


def test_behaviour_log_probs_are_recomputed_whatever_the_batch() -> None:
    policy = make(make_spec())
    obs = observe(policy, 37)
    tokens, log_probs, values = policy.act(obs, greedy=False, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(policy.value(policy.features(obs)), values, atol=1e-5)
    assert tokens.dtype == torch.int64
    assert log_probs.dtype == torch.float32
    whole, _ = policy.log_probs(obs, tokens)
    assert torch.allclose(whole, log_probs, atol=1e-5)
    for rows in (slice(0, 1), slice(3, 9), slice(5, 36)):
        part, _ = policy.log_probs(obs.take(rows), tokens[rows])
        assert torch.allclose(part, log_probs[rows], atol=1e-5)


def test_a_value_loss_never_reaches_the_actor() -> None:
    policy = make(make_spec())
    obs = observe(policy, 3)
    policy.value(policy(obs).features).sum().backward()
    assert all(p.grad is None for p in policy.actor_parameters())
    assert all(p.grad is not None for p in policy.critic_parameters())
    policy.zero_grad()
    policy(obs).logits.sum().backward()
    assert all(p.grad is None for p in policy.critic_parameters())
    both = [id(p) for p in policy.actor_parameters()] + [id(p) for p in policy.critic_parameters()]
    assert sorted(both) == sorted(id(p) for p in policy.parameters())


def test_sampling_is_reproducible_and_greedy_is_the_mode() -> None:
    policy = make(make_spec())
    obs = observe(policy, 8)
    first, second = (
        policy.act(obs, greedy=False, generator=torch.Generator().manual_seed(7))[0] for _ in range(2)
    )
    other = policy.act(obs, greedy=False, generator=torch.Generator().manual_seed(8))[0]
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(policy.act(obs, greedy=True)[0], policy(obs).logits.argmax(-1))


def test_samples_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, -torch.inf]).expand(40_000, 4)
    tokens, log_probs = choose_tokens(logits, greedy=False, generator=torch.Generator().manual_seed(0))
    shares = torch.bincount(tokens, minlength=4) / len(tokens)
    assert torch.allclose(shares, logits[0].softmax(0), atol=0.01)
    assert shares[3] == 0
    assert log_probs.isfinite().all()


def test_half_precision_forward_stays_near() -> None:
    policy = make(make_spec())
    obs = observe(policy, 16)
    exact = policy(obs).logits
    with torch.autocast("cpu", torch.bfloat16):
        logits, values = policy(obs).logits, policy.value(policy.features(obs))
    assert logits.dtype == values.dtype == torch.float32
    assert (logits - exact).abs().max() < 0.1
    assert (values - policy.value(policy.features(obs))).abs().max() < 0.1


def test_proprio_statistics_travel_with_the_weights() -> None:
    policy, copy = make(make_spec()), make(make_spec())
    policy.set_proprio_statistics(torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.1, 0.0, 2.0]))
    obs = observe(policy, 3)
    assert not torch.allclose(policy(obs).logits, copy(obs).logits, atol=1e-4)
    copy.load_state_dict(policy.state_dict())
    assert torch.equal(policy(obs).logits, copy(obs).logits)


def test_take_and_to() -> None:
    policy = make(make_spec())
    obs = observe(policy, 4)
    rows = obs.to("cpu").take(torch.tensor([2, 0]))
    assert len(rows) == 2
    assert torch.equal(rows.images["top"], obs.images["top"][[2, 0]])
    assert torch.equal(rows.instruction_ids, obs.instruction_ids[[2, 0]])


def test_cloning_loss_by_hand() -> None:
    # Two actions of one dimension with three bins; p of the target is 1/2 for the first, the second is not valid.
    logits = torch.log(torch.tensor([[[[0.25, 0.5, 0.25]], [[0.9, 0.05, 0.05]]]]))
    tokens, valid = torch.tensor([[[1], [99]]]), torch.tensor([[True, False]])
    result = cloning_loss(logits, tokens, valid)
    assert float(result.loss) == pytest.approx(np.log(2))
    assert float(result.statistics["token_accuracy"]) == 1.0
    assert float(result.statistics["bin_error"]) == 0.0
    smooth = cloning_loss(logits, tokens, valid, neighbour_smoothing=0.2)
    assert float(smooth.loss) == pytest.approx(0.8 * np.log(2) + 0.2 * np.log(4))
    missed = cloning_loss(logits, torch.tensor([[[1], [2]]]), torch.tensor([[True, True]]))
    assert float(missed.statistics["token_accuracy"]) == 0.5
    assert float(missed.statistics["bin_error"]) == 1.0


def test_a_few_steps_of_cloning_find_the_dot() -> None:
    """A bright dot whose column is the token: the loss falls far below chance (ln 16)."""
    policy = make(make_spec(), trained=False)
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 16, 32)
    images = np.zeros((32, 32, 32, 3), dtype=np.uint8)
    images[np.arange(32)[:, None], 14:18, 2 * columns[:, None]] = 255
    images[np.arange(32)[:, None], 14:18, 2 * columns[:, None] + 1] = 255
    obs = observation_tensors(
        {"top": images}, np.zeros((32, 3), np.float32), [INSTRUCTIONS[0]] * 32, policy.vocabulary
    )
    tokens = torch.from_numpy(columns)[:, None, None].expand(32, 4, 3)
    valid = torch.ones(32, 4, dtype=torch.bool)
    optimizer = torch.optim.AdamW(policy.actor_parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        result = cloning_loss(policy(obs).logits, tokens, valid)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        losses.append(float(result.loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
