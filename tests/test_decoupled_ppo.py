"""Decoupled PPO against hand-made numbers and against the plain formula under autograd."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs.algorithm import AlgorithmBase, DecoupledPPOConfig, GIPOConfig, PPOConfig
from policies.objectives import ObjectiveResult, decoupled_ppo_loss, policy_loss, ppo_loss
from policies.proximal import (
    Age,
    Counts,
    interpolation_share,
    proximal_log_probs,
    total_clip_range,
    training_counts,
)

ANCHORS = ["recompute", "interpolate", "behaviour"]
SHARES = ["clip_fraction", "dual_clip_fraction", "behav_clip_fraction", "effective_sample_size"]


def single(
    config: DecoupledPPOConfig, current: float, weight: float, advantage: float
) -> tuple[ObjectiveResult, float]:
    """One token with r = ``current`` and w = ``weight``; the result and d loss / d log pi."""
    behaviour = torch.tensor([[[-1.0]]])
    proximal = behaviour + math.log(weight)
    log_probs = (proximal + math.log(current)).requires_grad_()
    result = decoupled_ppo_loss(
        config, log_probs, behaviour, torch.tensor([advantage]), torch.tensor([[True]]),
        Age(torch.tensor([1]), proximal),
    )  # fmt: skip
    result.loss.backward()
    assert log_probs.grad is not None
    return result, float(log_probs.grad)


@pytest.mark.parametrize(
    ("ratio", "weight", "advantage", "loss", "slope", "clipped", "bounded"),
    [
        (1.1, 1.5, 1.0, -1.65, -1.65, 0, 0),  # inside the clip range: r w A
        (1.5, 0.5, 1.0, -0.65, 0.0, 1, 0),  # r is clipped at 1.3, whatever w is
        (0.5, 2.0, -1.0, 1.6, 0.0, 1, 0),  # a bad action that became rare since the turn began
        (5.0, 0.5, -2.0, 3.0, 0.0, 0, 1),  # the dual clip bounds what w multiplies: 0.5 * 3 * 2
        (1.1, 2.5, 1.0, 0.0, 0.0, 0, 0),  # w above the threshold: nothing is left
    ],
)
def test_by_hand(
    ratio: float, weight: float, advantage: float, loss: float, slope: float, clipped: int, bounded: int
) -> None:
    config = DecoupledPPOConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0, behave_weight_threshold=2.001)
    result, gradient = single(config, ratio, weight, advantage)
    assert float(result.loss.detach()) == pytest.approx(loss, rel=1e-5)
    assert gradient == pytest.approx(slope, rel=1e-5)
    assert float(result.statistics["clip_fraction"]) == clipped
    assert float(result.statistics["dual_clip_fraction"]) == bounded
    assert float(result.statistics["behav_clip_fraction"]) == float(weight > 2.001)


def test_dropped_tokens_leave_numerator_and_denominator() -> None:
    """Weights 1, 3 and 1.5 at threshold 2: the mean is over two tokens."""
    proximal = torch.tensor([1.0, 3.0, 1.5]).log()[None, None]
    config = DecoupledPPOConfig(behave_weight_threshold=2.0)
    arguments = (proximal.clone(), torch.zeros(1, 1, 3), torch.tensor([2.0]), torch.tensor([[True]]))
    age = Age(torch.tensor([1]), proximal)
    result = decoupled_ppo_loss(config, *arguments, age)
    assert float(result.loss) == pytest.approx(-2.0 * (1.0 + 1.5) / 2)
    assert float(result.count) == 2
    assert float(result.statistics["behav_clip_fraction"]) == pytest.approx(1 / 3)
    assert float(result.statistics["effective_sample_size"]) == pytest.approx(2.5**2 / (3 * (1 + 1.5**2)))
    everything = decoupled_ppo_loss(DecoupledPPOConfig(behave_weight_threshold=None), *arguments, age)
    assert float(everything.loss) == pytest.approx(-2.0 * 5.5 / 3)
    assert float(everything.statistics["behav_clip_fraction"]) == 0.0
    unweighted = decoupled_ppo_loss(DecoupledPPOConfig(behave_weight=False), *arguments, age)
    assert float(unweighted.loss) == pytest.approx(-2.0)


def test_divergences_by_hand() -> None:
    """Two tokens: proximal over behaviour e^0.5 and e^-0.5, current over proximal e^0.1 and 1; k3 is e^l - 1 - l."""
    behaviour = torch.zeros(1, 1, 2)
    proximal = torch.tensor([[[0.5, -0.5]]])
    result = decoupled_ppo_loss(
        DecoupledPPOConfig(), proximal + torch.tensor([0.1, 0.0]), behaviour, torch.ones(1), torch.tensor([[True]]),
        Age(torch.tensor([1]), proximal),
    )  # fmt: skip
    statistics = {name: float(value) for name, value in result.statistics.items()}
    assert statistics["behav_approx_kl"] == pytest.approx(
        (math.exp(0.5) - 1.5 + math.exp(-0.5) - 0.5) / 2, rel=1e-4
    )
    assert statistics["proximal_approx_kl"] == pytest.approx((math.exp(0.1) - 1.1) / 2, rel=1e-3)
    assert statistics["ratio_mean"] == pytest.approx((math.exp(0.6) + math.exp(-0.5)) / 2, rel=1e-5)


def case(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Current, proximal and behaviour log-probs, advantages and valid of 6 decisions of 4 actions of 3 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    behaviour = -torch.rand(6, 4, 3, generator=generator) * 3
    proximal = behaviour + 0.5 * torch.randn(6, 4, 3, generator=generator)
    current = proximal + 0.3 * torch.randn(6, 4, 3, generator=generator)
    valid = torch.rand(6, 4, generator=generator) < 0.7
    valid[0], valid[1] = True, False
    return current, proximal, behaviour, torch.randn(6, generator=generator), valid


def plain(
    config: DecoupledPPOConfig,
    log_ratio: torch.Tensor,
    log_weight: torch.Tensor,
    advantages: torch.Tensor,
    valid: torch.Tensor,
) -> torch.Tensor:
    """The formula, one ratio after the other."""
    terms = []
    for b in range(len(advantages)):
        rows = [(log_ratio[b, k, d], log_weight[b, k, d]) for k in range(4) for d in range(3) if valid[b, k]]
        if config.ratio == "chunk" and rows:
            rows = [(torch.stack([r for r, _ in rows]).sum(), torch.stack([w for _, w in rows]).sum())]
        for log_r, log_w in rows:
            r, w, a = log_r.exp(), log_w.exp(), advantages[b]
            loss = torch.max(-r * a, -r.clamp(1 - config.clip_low, 1 + config.clip_high) * a)
            if config.dual_clip is not None and a < 0:
                loss = torch.min(loss, config.dual_clip * a.abs())
            if config.behave_weight_threshold is None or w <= config.behave_weight_threshold:
                terms.append(w * loss)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ratio", ["token", "chunk"])
@pytest.mark.parametrize("threshold", [None, 1.5])
@pytest.mark.parametrize("anchor", ANCHORS)
def test_equals_the_plain_formula(seed: int, ratio: str, threshold: float | None, anchor: str) -> None:
    current, proximal, behaviour, advantages, valid = case(seed)
    config = DecoupledPPOConfig(
        anchor=anchor, ratio=ratio, behave_weight_threshold=threshold, dual_clip=1.4, clip_low=0.1, clip_high=0.2
    )  # type: ignore[arg-type]  # fmt: skip
    lag = torch.tensor([0, 1, 2, 5, 50, 1])
    ours, theirs = current.clone().requires_grad_(), current.clone().requires_grad_()
    result = decoupled_ppo_loss(config, ours, behaviour, advantages, valid, Age(lag, proximal))
    alpha = torch.tensor([0.0, 1 / 2, 2 / 3, 5 / 6, 50 / 51, 1 / 2])[:, None, None]
    interpolated = (behaviour + alpha * (theirs - behaviour)).detach()
    fixed = {"recompute": proximal, "interpolate": interpolated, "behaviour": behaviour}[anchor]
    expected = plain(config, theirs - fixed, fixed - behaviour, advantages, valid)
    result.loss.backward()
    expected.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(result.loss, expected, atol=1e-5)
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)


@pytest.mark.parametrize("ratio", ["token", "chunk"])
def test_all_anchors_agree_at_lag_0(ratio: str) -> None:
    """And are PPO: at lag 0 the turn began with the policy that acted."""
    current, behaviour, _, advantages, valid = case(0)
    age = Age(torch.zeros(6, dtype=torch.int64), behaviour)
    expected = ppo_loss(PPOConfig(ratio=ratio), current, behaviour, advantages, valid)  # type: ignore[arg-type]
    for anchor in ANCHORS:
        config = DecoupledPPOConfig(anchor=anchor, ratio=ratio)  # type: ignore[arg-type]
        result = decoupled_ppo_loss(config, current, behaviour, advantages, valid, age)
        assert torch.equal(result.loss, expected.loss), anchor
        for name in ("clip_fraction", "dual_clip_fraction", "ratio_mean", "effective_sample_size"):
            assert torch.equal(result.statistics[name], expected.statistics[name]), (anchor, name)
        assert float(result.statistics["behav_approx_kl"]) == 0.0


def test_interpolation_share_by_hand() -> None:
    """(v_theta - 1 - v_b) / (v_theta - v_b), where the learner at version 7 makes version 8."""
    made, behaviour = 8, torch.tensor([7, 6, 5, 0])
    lag = 7 - behaviour
    assert interpolation_share(lag).tolist() == pytest.approx(
        [(made - 1 - b) / (made - b) for b in behaviour.tolist()]
    )
    assert interpolation_share(torch.tensor([0])).tolist() == [0.0]


@given(st.integers(0, 40), st.floats(-2, 2))
def test_interpolation_clips_the_total_ratio_at_the_logged_range(lag: int, log_ratio: float) -> None:
    """r is clipped exactly where the ratio to the behaviour leaves (1 - low)^(lag + 1), (1 + high)^(lag + 1)."""
    config = DecoupledPPOConfig(
        anchor="interpolate", clip_low=0.2, clip_high=0.3, behave_weight_threshold=None
    )
    low, high = (float(end) for end in total_clip_range(config, torch.tensor(lag)))
    assert (low, high) == (pytest.approx(0.8 ** (lag + 1)), pytest.approx(1.3 ** (lag + 1)))
    edge = min(abs(log_ratio - math.log(low)), abs(log_ratio - math.log(high)))
    if edge < 1e-3 * (lag + 1):
        return
    outside = False
    for advantage in (1.0, -1.0):
        result = decoupled_ppo_loss(
            config, torch.full((1, 1, 1), log_ratio), torch.zeros(1, 1, 1), torch.tensor([advantage]),
            torch.tensor([[True]]), Age(torch.tensor([lag])),
        )  # fmt: skip
        outside |= bool(result.statistics["clip_fraction"])
        assert float(result.statistics["total_clip_high"]) == pytest.approx(high)
        assert float(result.statistics["total_clip_low"]) == pytest.approx(low)
    assert outside == (not math.log(low) < log_ratio < math.log(high))


def test_only_interpolation_reports_a_range() -> None:
    current, proximal, behaviour, advantages, valid = case(0)
    age = Age(torch.tensor([0, 0, 3, 0, 0, 1]), proximal)
    for anchor in ANCHORS:
        config = DecoupledPPOConfig(anchor=anchor)  # type: ignore[arg-type]
        statistics = decoupled_ppo_loss(config, current, behaviour, advantages, valid, age).statistics
        assert ("total_clip_high" in statistics) == (anchor == "interpolate")
    assert proximal_log_probs(DecoupledPPOConfig(), lambda: current, behaviour, age) is not current


@given(
    st.lists(
        st.tuples(st.floats(-120, 120), st.floats(-120, 120), st.integers(0, 99)), min_size=1, max_size=12
    ),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.sampled_from(ANCHORS),
    st.sampled_from(["token", "chunk"]),
)
def test_statistics_stay_in_their_ranges(
    rows: list[tuple[float, float, int]], flags: list[bool], anchor: str, ratio: str
) -> None:
    current = torch.tensor([row[0] for row in rows])[:, None, None]
    age = Age(torch.tensor([row[2] for row in rows]), torch.tensor([row[1] for row in rows])[:, None, None])
    result = decoupled_ppo_loss(
        DecoupledPPOConfig(anchor=anchor, ratio=ratio),  # type: ignore[arg-type]
        current, torch.zeros_like(current), torch.ones(len(rows)), torch.tensor(flags[: len(rows)])[:, None], age,
    )  # fmt: skip
    for name, value in result.statistics.items():
        assert value.isfinite(), name
        if name.split("/")[0] in SHARES:
            assert 0 <= float(value) <= 1, name
    assert float(result.statistics["behav_approx_kl"]) >= 0
    assert float(result.statistics["proximal_approx_kl"]) >= 0


def test_what_is_no_number_is_refused_and_not_dropped() -> None:
    proximal = torch.full((1, 1, 1), math.nan)
    result = decoupled_ppo_loss(
        DecoupledPPOConfig(), torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), torch.ones(1), torch.tensor([[True]]),
        Age(torch.tensor([1]), proximal),
    )  # fmt: skip
    assert not result.loss.isfinite()


MICRO = [
    GIPOConfig(entropy=0.1),
    GIPOConfig(ratio="chunk", entropy=0.1),
    PPOConfig(ratio="chunk"),
    *(
        DecoupledPPOConfig(anchor=anchor, ratio=ratio, entropy=0.1, behave_weight_threshold=1.2)  # type: ignore[arg-type]
        for anchor in ANCHORS
        for ratio in ("token", "chunk")
    ),
]


@pytest.mark.parametrize("config", MICRO)
@pytest.mark.parametrize("cuts", [[1, 1, 4], [2, 4], [5, 1]])
def test_micro_batches_add_up_to_the_batch(config: AlgorithmBase, cuts: list[int]) -> None:
    """Uneven valid tokens, tokens that the threshold drops, entropy and anchor: one gradient."""
    _, proximal, behaviour, advantages, valid = case(1)
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(6, 4, 3, 5, generator=generator)
    anchor = torch.randn(6, 4, 3, 5, generator=generator)
    tokens = torch.randint(0, 5, (6, 4, 3), generator=generator)
    lag = torch.tensor([0, 1, 2, 5, 50, 1])
    whole = logits.clone().requires_grad_()
    policy_loss(
        config, whole, tokens, behaviour, advantages, valid, anchor, Age(lag, proximal)
    ).loss.backward()  # fmt: skip
    parts = logits.clone().requires_grad_()
    pieces = torch.arange(6).split(cuts)

    def counts(rows: torch.Tensor) -> Counts:
        current = logits[rows].log_softmax(-1).gather(-1, tokens[rows].unsqueeze(-1)).squeeze(-1)
        age = Age(lag[rows], proximal[rows])
        return training_counts(config, lambda: current, behaviour[rows], valid[rows], age)

    over = sum((counts(rows) for rows in pieces), Counts(0.0, 0.0))
    for rows in pieces:
        policy_loss(
            config, parts[rows], tokens[rows], behaviour[rows], advantages[rows], valid[rows], anchor[rows],
            Age(lag[rows], proximal[rows]), over,
        ).loss.backward()  # fmt: skip
    assert whole.grad is not None
    assert parts.grad is not None
    assert whole.grad.abs().max() > 1e-3
    assert torch.allclose(whole.grad, parts.grad, atol=1e-7)
