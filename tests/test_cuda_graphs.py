"""Serving by captured graphs. The capture is a fake here, so what is tested is all that surrounds it: buckets, fixed
inputs, padding, and that padding never shows. No test needs a GPU; none was captured on one.
"""

from __future__ import annotations

from platform.context import make_context
from platform.cuda_graphs import Forward, GraphedAct, can_capture, serving_act

import numpy as np
import pytest
import torch

from policies.base import ObservationTensors, Policy
from tests.run_helper import config

MAX_BATCH = 6


@pytest.fixture(scope="module")
def policy() -> Policy:
    made = make_context(config("real"), seed=3, device="cpu").make_policy().eval()
    # Fresh heads are zero: every row would look the same.
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return made


class Recorder:
    """Stands for the capture: it "records" a forward once and replays it over whatever its inputs hold then."""

    def __init__(self) -> None:
        self.captured = 0
        self.rows: list[int] = []

    def __call__(self, forward: Forward) -> Forward:
        self.captured += 1
        output = forward()

        def replay() -> tuple[torch.Tensor, torch.Tensor]:
            self.rows.append(len(output[1]))
            for held, fresh in zip(output, forward(), strict=True):
                held.copy_(fresh)
            return output

        return replay


def observations(policy: Policy, count: int, seed: int) -> ObservationTensors:
    rng = np.random.default_rng(seed)
    images = {
        name: torch.from_numpy(rng.integers(0, 256, (count, *size, 3), np.uint8))
        for name, size in policy.spec.cameras.items()
    }
    proprio = torch.from_numpy(rng.normal(size=(count, policy.spec.proprio_dim)).astype(np.float32))
    ids = torch.from_numpy(policy.vocabulary.encode([policy.spec.instructions[0]] * count))
    return ObservationTensors(images, proprio, ids)


def test_every_batch_size_gives_what_the_policy_gives(policy: Policy) -> None:
    recorder = Recorder()
    graphed = GraphedAct(policy, MAX_BATCH, recorder)
    for seed, count in enumerate([6, 1, 2, 3, 4, 5, 6, 1, 3]):
        obs = observations(policy, count, seed)
        expected = policy.act(obs, greedy=False, generator=torch.Generator().manual_seed(seed))
        found = graphed(obs, greedy=False, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(found.tokens, expected.tokens)
        torch.testing.assert_close(found.log_probs, expected.log_probs)
        torch.testing.assert_close(found.values, expected.values)
    assert recorder.rows == [6, 1, 2, 4, 4, 6, 6, 1, 4], "the smallest bucket that holds the batch"
    assert recorder.captured == 4, "each bucket once"


def test_an_answer_outlives_the_next_batch(policy: Policy) -> None:
    graphed = GraphedAct(policy, MAX_BATCH, Recorder())
    first = graphed(observations(policy, 2, 0), greedy=True)
    held = [part.clone() for part in first]
    graphed(observations(policy, 2, 1), greedy=True)
    assert all(torch.equal(a, b) for a, b in zip(first, held, strict=True))


def test_weights_loaded_in_place_are_used(policy: Policy) -> None:
    graphed = GraphedAct(policy, MAX_BATCH, Recorder())
    obs = observations(policy, 3, 0)
    graphed(obs, greedy=True)
    held = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    try:
        policy.load_state_dict({name: 1.1 * tensor for name, tensor in held.items()})
        found, expected = graphed(obs, greedy=True), policy.act(obs, greedy=True)
        torch.testing.assert_close(found.values, expected.values)
    finally:
        policy.load_state_dict(held)


def test_a_cpu_is_served_by_the_policy_itself(policy: Policy) -> None:
    assert not can_capture(policy)
    assert serving_act(policy, MAX_BATCH) == policy.act
