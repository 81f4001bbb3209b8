import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.advantages import AdvantageStatistics, gae, normalize


def run(
    rewards: list[list[float]],
    values: list[list[float]],
    terminated: list[bool],
    lengths: list[int],
    gamma: float = 0.9,
    lam: float = 0.5,
) -> tuple[list[list[float]], list[list[float]]]:
    advantages, returns = gae(
        torch.tensor(rewards),
        torch.tensor(values),
        torch.tensor(terminated),
        torch.tensor(lengths),
        gamma,
        lam,
    )
    return advantages.tolist(), returns.tolist()


def test_hand_computed_terminated_and_truncated() -> None:
    """gamma 0.9, lambda 0.5. delta_1 = 1 - 2 = -1 (terminated) or 1 + 0.9 * 10 - 2 = 8 (truncated).
    delta_0 = 0 + 0.9 * 2 - 1 = 0.8; A_0 = 0.8 + 0.45 * A_1."""
    rewards, values = [[0.0, 1.0]] * 2, [[1.0, 2.0, 10.0]] * 2
    advantages, returns = run(rewards, values, [True, False], [2, 2])
    assert advantages[0] == pytest.approx([0.8 - 0.45, -1.0])
    assert advantages[1] == pytest.approx([0.8 + 0.45 * 8, 8.0])
    assert returns[0] == pytest.approx([1.35, 1.0])
    assert returns[1] == pytest.approx([5.4, 10.0])


def test_padding_is_zero_and_never_read() -> None:
    short, _ = run([[0.0, 1.0]], [[1.0, 2.0, 10.0]], [False], [2])
    nan = float("nan")
    padded, returns = run([[0.0, 1.0, nan, 7.0]], [[1.0, 2.0, 10.0, nan, 99.0]], [False], [2])
    assert padded[0][:2] == pytest.approx(short[0])
    assert padded[0][2:] == [0.0, 0.0]
    assert returns[0][2:] == [0.0, 0.0]


def test_lambda_one_is_the_discounted_return_and_lambda_zero_the_td_error() -> None:
    rewards, values = [[1.0, 2.0, 3.0]], [[0.5, 0.25, -1.0, 4.0]]
    _, returns = run(rewards, values, [False], [3], gamma=0.9, lam=1.0)
    assert returns[0][0] == pytest.approx(1 + 0.9 * 2 + 0.81 * 3 + 0.729 * 4)
    advantages, _ = run(rewards, values, [True], [3], gamma=0.9, lam=0.0)
    assert advantages[0] == pytest.approx([1 + 0.9 * 0.25 - 0.5, 2 - 0.9 - 0.25, 3 + 1.0])


def test_discount_may_differ_by_decision() -> None:
    """The last decision executed one env step of four: its bootstrap is discounted once."""
    gamma = torch.tensor([[0.9**4, 0.9]])
    advantages, _ = gae(
        torch.tensor([[0.0, 0.0]]),
        torch.tensor([[0.0, 0.0, 1.0]]),
        torch.tensor([False]),
        torch.tensor([2]),
        gamma,
        1.0,
    )
    assert advantages[0].tolist() == pytest.approx([0.9**5, 0.9])


def test_no_gradient_and_empty() -> None:
    values = torch.ones(2, 4, requires_grad=True)
    advantages, returns = gae(
        torch.ones(2, 3), values, torch.tensor([True, False]), torch.tensor([3, 1]), 0.9, 0.9
    )
    assert not advantages.requires_grad
    assert not returns.requires_grad
    empty, _ = gae(
        torch.zeros(2, 0),
        torch.ones(2, 1),
        torch.zeros(2, dtype=torch.bool),
        torch.zeros(2, dtype=torch.int64),
        0.9,
        0.9,
    )
    assert empty.shape == (2, 0)


def brute_force(
    rewards: np.ndarray, values: np.ndarray, terminated: bool, length: int, gamma: float, lam: float
) -> list[float]:
    """``A_t = sum_k (gamma lam)^k delta_{t+k}`` as it is written, one episode at a time."""
    answer = []
    for t in range(len(rewards)):
        total = 0.0
        for k in range(t, length):
            following = 0.0 if terminated and k == length - 1 else values[k + 1]
            total += (gamma * lam) ** (k - t) * (rewards[k] + gamma * following - values[k])
        answer.append(total)
    return answer


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 12),
    gamma=st.floats(0.1, 1.0),
    lam=st.floats(0.0, 1.0),
)
def test_equals_brute_force(seed: int, steps: int, gamma: float, lam: float) -> None:
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(5, steps)), rng.normal(size=(5, steps + 1))
    terminated, lengths = rng.random(5) < 0.5, rng.integers(1, steps + 1, 5)
    advantages, returns = gae(
        torch.from_numpy(rewards),
        torch.from_numpy(values),
        torch.from_numpy(terminated),
        torch.from_numpy(lengths),
        gamma,
        lam,
    )
    for row in range(5):
        expected = np.array(
            brute_force(rewards[row], values[row], terminated[row], int(lengths[row]), gamma, lam)
        )
        assert np.allclose(advantages[row].numpy(), expected, atol=1e-9)
        inside = np.arange(steps) < lengths[row]
        assert np.allclose(returns[row].numpy(), np.where(inside, expected + values[row, :-1], 0), atol=1e-9)


def test_statistics_merge_exactly_and_normalise_once() -> None:
    generator = torch.Generator().manual_seed(0)
    advantages = torch.randn(7, 5, generator=generator) * 3 + 2
    mask = torch.rand(7, 5, generator=generator) < 0.6
    advantages[~mask] = torch.nan
    whole = AdvantageStatistics.of(advantages, mask)
    merged = AdvantageStatistics.of(advantages[:3], mask[:3]).merge(
        AdvantageStatistics.of(advantages[3:], mask[3:])
    )
    assert merged.n == whole.n == int(mask.sum())
    assert merged.mean == pytest.approx(float(advantages[mask].mean()), rel=1e-5)
    assert merged.deviation == pytest.approx(float(advantages[mask].std(correction=0)), rel=1e-5)
    assert whole.all_reduced() == whole
    normal = normalize(advantages, mask, merged)
    assert float(normal[mask].mean()) == pytest.approx(0, abs=1e-5)
    assert float(normal[mask].std(correction=0)) == pytest.approx(1, abs=1e-4)
    assert (normal[~mask] == 0).all()


def test_equal_or_no_advantages_normalise_to_zero() -> None:
    advantages, mask = torch.full((4,), 0.1), torch.ones(4, dtype=torch.bool)
    assert normalize(advantages, mask, AdvantageStatistics.of(advantages, mask)).abs().max() < 1e-2
    nothing = AdvantageStatistics.of(advantages, ~mask)
    assert (nothing.n, nothing.mean, nothing.deviation) == (0.0, 0.0, 0.0)


def _reduce(rank: int, port: int) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    mine = AdvantageStatistics(1.0 + rank, 10.0 * (1 + rank), 2.0 + rank)
    assert mine.all_reduced() == AdvantageStatistics(3.0, 30.0, 5.0)
    torch.distributed.destroy_process_group()


def test_all_reduce_sums_over_ranks() -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(_reduce, args=(port,), nprocs=2, start_method="fork")
