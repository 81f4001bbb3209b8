import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs.algorithm import AlgorithmBase, DecoupledPPOConfig, GIPOConfig, PPOConfig
from policies.objectives import (
    OBJECTIVES,
    ObjectiveResult,
    explained_variance,
    gipo_loss,
    kl_to_anchor,
    policy_loss,
    ppo_loss,
    value_loss,
)
from policies.proximal import Age
from policies.ratios import approximate_kl, by_lag, effective_sample_size

CONFIGS = [
    GIPOConfig(),
    GIPOConfig(ratio="chunk"),
    PPOConfig(),
    PPOConfig(ratio="chunk", dual_clip=None),
    DecoupledPPOConfig(anchor="behaviour"),
    DecoupledPPOConfig(anchor="behaviour", ratio="chunk"),
]


def case(seed: int = 0, spread: float = 0.3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs, behaviour log-probs, advantages, valid for 6 decisions of 4 actions of 3 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    behaviour = -torch.rand(6, 4, 3, generator=generator) * 3
    log_probs = behaviour + spread * torch.randn(6, 4, 3, generator=generator)
    advantages = torch.randn(6, generator=generator)
    valid = torch.rand(6, 4, generator=generator) < 0.7
    valid[0], valid[1] = True, False
    return log_probs, behaviour, advantages, valid


def single(log_ratio: float, advantage: float, config: AlgorithmBase) -> tuple[ObjectiveResult, float]:
    """One decision of one token; the result and d loss / d log pi."""
    log_probs = torch.tensor([[[-1.0 + log_ratio]]], requires_grad=True)
    result = OBJECTIVES[type(config)](
        config, log_probs, torch.tensor([[[-1.0]]]), torch.tensor([advantage]), torch.tensor([[True]])
    )
    result.loss.backward()
    assert log_probs.grad is not None
    return result, float(log_probs.grad)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sigma", [0.2, 0.5, 2.0])
def test_gipo_equals_the_plain_formula(seed: int, sigma: float) -> None:
    log_probs, behaviour, advantages, valid = case(seed)
    ours, plain = log_probs.clone().requires_grad_(), log_probs.clone().requires_grad_()
    result = gipo_loss(GIPOConfig(sigma=sigma), ours, behaviour, advantages, valid)
    log_ratio = plain - behaviour
    weight = torch.exp(-0.5 * (log_ratio / sigma) ** 2).detach()
    terms = weight * log_ratio.exp() * advantages[:, None, None]
    expected = -terms[valid].mean()
    result.loss.backward()
    expected.backward()
    assert ours.grad is not None
    assert plain.grad is not None
    assert torch.allclose(result.loss, expected, atol=1e-6)
    assert torch.allclose(ours.grad, plain.grad, atol=1e-6)
    assert float(result.statistics["gipo_weight_mean"]) == pytest.approx(
        float(weight[valid].mean()), abs=1e-6
    )
    suppressed = float((weight[valid] < 0.1).float().mean())
    assert float(result.statistics["gipo_suppressed_ratio"]) == pytest.approx(suppressed)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("log_ratio", [-100.0, -88.0, 88.0, 100.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_extreme_ratios_stay_finite(config: AlgorithmBase, log_ratio: float, advantage: float) -> None:
    result, gradient = single(log_ratio, advantage, config)
    assert math.isfinite(gradient)
    assert result.loss.isfinite()
    assert all(value.isfinite() for value in result.statistics.values())


def test_gipo_maximum() -> None:
    """omega e^l is largest at l = sigma^2, where it is e^(sigma^2 / 2)."""
    config = GIPOConfig(sigma=0.5)
    at_top = -float(single(0.25, 1.0, config)[0].loss.detach())
    assert at_top == pytest.approx(math.exp(0.125), rel=1e-6)
    assert all(
        -float(single(0.25 + d, 1.0, config)[0].loss.detach()) < at_top for d in (-2.0, -0.1, 0.1, 2.0)
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_changed_means_ratio_one(config: AlgorithmBase) -> None:
    """What the start-up self-check relies on: equal policies, whatever the advantages."""
    _, behaviour, advantages, valid = case()
    result = OBJECTIVES[type(config)](config, behaviour.clone(), behaviour, advantages, valid)
    expected = {
        "ratio_mean": 1.0,
        "behav_approx_kl": 0.0,
        "effective_sample_size": 1.0,
        "gipo_weight_mean": 1.0,
        "gipo_suppressed_ratio": 0.0,
        "clip_fraction": 0.0,
        "dual_clip_fraction": 0.0,
        "behav_clip_fraction": 0.0,
        "proximal_approx_kl": 0.0,
    }
    for name, value in result.statistics.items():
        assert float(value) == pytest.approx(expected[name], abs=1e-6), name


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped", "bounded"),
    [
        (1.1, 1.0, -1.1, -1.1, 0, 0),  # inside
        (1.5, 1.0, -1.3, 0.0, 1, 0),  # gain capped at 1 + clip_high
        (0.5, 1.0, -0.5, -0.5, 0, 0),  # a good action that became rare is pulled back
        (0.5, -1.0, 0.8, 0.0, 1, 0),  # a bad action that became rare: capped at 1 - clip_low
        (1.5, -1.0, 1.5, 1.5, 0, 0),  # a bad action that became likely is pushed down
        (5.0, -2.0, 6.0, 0.0, 0, 1),  # ... but by no more than dual_clip |A|
        (5.0, 2.0, -2.6, 0.0, 1, 0),  # the dual clip is for A < 0 only
    ],
)
def test_ppo_by_hand(
    ratio: float, advantage: float, loss: float, slope: float, clipped: int, bounded: int
) -> None:
    config = PPOConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    result, gradient = single(math.log(ratio), advantage, config)
    assert float(result.loss.detach()) == pytest.approx(loss, rel=1e-5)
    assert gradient == pytest.approx(slope, rel=1e-5)
    assert float(result.statistics["clip_fraction"]) == clipped
    assert float(result.statistics["dual_clip_fraction"]) == bounded


def test_ppo_without_dual_clip() -> None:
    result, gradient = single(math.log(5.0), -2.0, PPOConfig(dual_clip=None))
    assert float(result.loss.detach()) == pytest.approx(10.0, rel=1e-5)
    assert gradient == pytest.approx(10.0, rel=1e-5)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("noise", [3.0, math.nan, math.inf])
def test_invalid_tokens_never_count(config: AlgorithmBase, noise: float) -> None:
    log_probs, behaviour, advantages, valid = case()
    changed = torch.where(valid[:, :, None], log_probs, noise).requires_grad_()
    changed_behaviour = torch.where(valid[:, :, None], behaviour, -noise)
    advantages_changed = torch.where(valid.any(1), advantages, noise)
    objective = OBJECTIVES[type(config)]
    before = objective(config, log_probs, behaviour, advantages, valid)
    after = objective(config, changed, changed_behaviour, advantages_changed, valid)
    assert torch.equal(before.loss, after.loss.detach())
    assert all(torch.equal(before.statistics[name], after.statistics[name]) for name in before.statistics)
    after.loss.backward()
    assert changed.grad is not None
    assert (changed.grad[~valid] == 0).all()
    assert changed.grad.isfinite().all()


@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_valid_is_zero(config: AlgorithmBase) -> None:
    log_probs, behaviour, advantages, valid = case()
    result = OBJECTIVES[type(config)](config, log_probs, behaviour, advantages, torch.zeros_like(valid))
    assert float(result.loss) == 0.0
    assert float(result.count) == 0.0
    assert all(value.isfinite() for value in result.statistics.values())


def test_chunk_ratio_by_hand() -> None:
    """Decision 0: tokens 0.1 + 0.2 valid, 5 not. Decision 1: -0.4 valid. Decision 2: nothing valid."""
    log_ratio = torch.tensor([[[0.1, 0.2], [5.0, 5.0]], [[-0.4, 0.0], [9.0, 9.0]], [[1.0, 1.0], [1.0, 1.0]]])
    valid = torch.tensor([[True, False], [True, False], [False, False]])
    advantages = torch.tensor([2.0, -1.0, 100.0])
    config = PPOConfig(ratio="chunk", clip_low=0.2, clip_high=0.2)
    result = ppo_loss(config, log_ratio, torch.zeros_like(log_ratio), advantages, valid)
    # e^0.3 = 1.35 is clipped to 1.2: -2.4. e^-0.4 = 0.67 is clipped to 0.8: +0.8. Mean over two decisions.
    assert float(result.loss) == pytest.approx(-0.8, rel=1e-5)
    assert float(result.count) == 2
    assert float(result.statistics["clip_fraction"]) == 1.0
    assert float(result.statistics["ratio_mean"]) == pytest.approx((math.exp(0.3) + math.exp(-0.4)) / 2)
    gipo = gipo_loss(GIPOConfig(ratio="chunk"), log_ratio, torch.zeros_like(log_ratio), advantages, valid)
    terms = [2 * math.exp(0.3 - 0.5 * 0.6**2), -1 * math.exp(-0.4 - 0.5 * 0.8**2)]
    assert float(gipo.loss) == pytest.approx(-sum(terms) / 2, rel=1e-5)


@given(
    st.lists(st.floats(-120, 120), min_size=1, max_size=20),
    st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_statistics_stay_in_their_ranges(ratios: list[float], flags: list[bool]) -> None:
    log_ratio = torch.tensor(ratios)[:, None, None]
    valid = torch.tensor(flags[: len(ratios)])[:, None]
    for config in (GIPOConfig(), PPOConfig(), DecoupledPPOConfig(anchor="behaviour")):
        result = OBJECTIVES[type(config)](
            config, log_ratio, torch.zeros_like(log_ratio), torch.ones(len(ratios)), valid
        )
        assert float(result.statistics["behav_approx_kl"]) >= 0
        shares = set(result.statistics) - {"behav_approx_kl", "proximal_approx_kl", "ratio_mean"}
        assert all(0 <= float(result.statistics[name]) <= 1 for name in shares)


def test_effective_sample_size_by_hand() -> None:
    """Weights 1, 1, 2: 16 / (3 * 6); one weight that dwarfs the rest: 1 / 3; far below exp's range: still right."""
    mask = torch.ones(3, dtype=torch.bool)
    weights = torch.tensor([0.0, 0.0, math.log(2.0)])
    assert float(effective_sample_size(weights, mask)) == pytest.approx(16 / 18)
    assert float(effective_sample_size(weights - 5000, mask)) == pytest.approx(16 / 18, rel=1e-3)
    assert float(effective_sample_size(torch.tensor([0.0, 0.0, 50.0]), mask)) == pytest.approx(1 / 3)
    assert float(effective_sample_size(weights, ~mask)) == 0.0


def test_approximate_kl_by_hand() -> None:
    mask = torch.tensor([True, True, False])
    value = approximate_kl(torch.tensor([0.5, -0.5, 9.0]), mask)
    assert float(value) == pytest.approx((math.exp(0.5) - 1.5 + math.exp(-0.5) - 0.5) / 2, rel=1e-5)


def test_statistics_by_lag() -> None:
    """Weights of gipo at l = 5 and sigma 0.5 are e^-50: suppressed. Lags 2 and 3 share a range; its invalid token is out."""
    log_ratio = torch.tensor([[[0.0, 0.0]], [[5.0, 0.0]], [[5.0, 5.0]], [[0.0, 0.0]]])
    valid = torch.tensor([[True], [True], [True], [False]])
    age = Age(torch.tensor([0, 2, 3, 1]))
    result = gipo_loss(GIPOConfig(), log_ratio, torch.zeros_like(log_ratio), torch.ones(4), valid, age)
    named = {name: float(value) for name, value in result.statistics.items() if "/" in name}
    assert named == {
        "gipo_suppressed_ratio/lag_0": 0.0,
        "effective_sample_size/lag_0": pytest.approx(1.0),
        "gipo_suppressed_ratio/lag_2_3": 0.75,
        "effective_sample_size/lag_2_3": pytest.approx(0.25, rel=1e-3),
    }


def test_every_lag_has_its_range() -> None:
    lag = torch.tensor([0, 1, 2, 3, 4, 7, 8, 15, 16, 1000])
    counted = by_lag(lag, torch.ones(10, dtype=torch.bool), lambda mask: {"n": mask.sum()})
    assert {name: int(value) for name, value in counted.items()} == {
        "n/lag_0": 1, "n/lag_1": 1, "n/lag_2_3": 2, "n/lag_4_7": 2, "n/lag_8_15": 2, "n/lag_16_up": 2,
    }  # fmt: skip


def test_kl_to_anchor_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    logits = torch.stack([p.log(), torch.tensor([9.0, 0.0, 0.0])])[None, :, None].requires_grad_()
    anchor = torch.stack([q.log() + 3.0, torch.zeros(3)])[None, :, None].requires_grad_()
    valid = torch.tensor([[True, False]])
    kl = kl_to_anchor(logits, anchor, valid)
    assert float(kl.detach()) == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(0.5), rel=1e-5)
    kl.backward()
    assert anchor.grad is None
    assert float(kl_to_anchor(logits, logits, valid).detach()) == pytest.approx(0.0, abs=1e-7)


def test_policy_loss_adds_entropy_and_anchor() -> None:
    logits = torch.zeros(2, 1, 1, 4)
    anchor = torch.tensor([0.0, 0.0, 0.0, 1.0]).expand(2, 1, 1, 4)
    tokens = torch.zeros(2, 1, 1, dtype=torch.int64)
    behaviour = torch.full((2, 1, 1), -math.log(4))
    arguments = (logits, tokens, behaviour, torch.tensor([1.0, 0.5]), torch.ones(2, 1, dtype=torch.bool))
    plain = policy_loss(GIPOConfig(kl_anchor=0.2), *arguments)
    assert float(plain.loss) == pytest.approx(-0.75)
    assert float(plain.statistics["entropy"]) == pytest.approx(math.log(4))
    kl = float(kl_to_anchor(logits, anchor, arguments[-1]))
    assert kl > 0
    full = policy_loss(GIPOConfig(kl_anchor=0.2, entropy=0.1), *arguments, anchor)
    assert float(full.loss) == pytest.approx(-0.75 - 0.1 * math.log(4) + 0.2 * kl)
    assert float(full.statistics["loss"]) == float(full.loss)


def test_gipo_step_raises_good_actions() -> None:
    logits = torch.zeros(2, 1, 1, 4, requires_grad=True)
    tokens = torch.tensor([[[1]], [[2]]])
    behaviour = torch.full((2, 1, 1), -math.log(4))
    result = policy_loss(
        GIPOConfig(), logits, tokens, behaviour, torch.tensor([1.0, -1.0]), torch.ones(2, 1, dtype=torch.bool)
    )
    result.loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 0, 0, 1] < 0 < logits.grad[1, 0, 0, 2]


def test_value_loss_by_hand() -> None:
    values = torch.tensor([0.5, 3.0, 99.0])
    returns, mask = torch.tensor([0.0, 0.0, math.nan]), torch.tensor([True, True, False])
    old = torch.tensor([0.0, 3.0, 0.0])
    assert float(value_loss(GIPOConfig(), values, returns, old, mask).loss) == pytest.approx(
        (0.125 + 2.5) / 2
    )
    mse = value_loss(GIPOConfig(value_loss="mse"), values, returns, old, mask)
    assert float(mse.loss) == pytest.approx((0.25 + 9) / 2)
    # Clipping only ever makes the loss larger: 3 against the return 2.5, from 1, clipped to 1.2.
    clipped = value_loss(
        GIPOConfig(value_loss="mse", value_clip=0.2),
        torch.tensor([3.0]),
        torch.tensor([2.5]),
        torch.tensor([1.0]),
        torch.tensor([True]),
    )
    assert float(clipped.loss) == pytest.approx(1.3**2)


def test_explained_variance() -> None:
    returns, mask = torch.tensor([1.0, 2.0, 3.0, 50.0]), torch.tensor([True, True, True, False])
    assert float(explained_variance(returns, returns, mask)) == 1.0
    assert float(explained_variance(torch.full((4,), 7.0), returns, mask)) == pytest.approx(0.0)
    assert float(explained_variance(2 * returns, returns, mask)) == pytest.approx(0.0)
    assert float(explained_variance(returns, torch.ones(4), mask)) == 0.0
