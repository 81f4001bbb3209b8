"""Solvers on a case whose ODE has a closed form, and what they cost."""

from __future__ import annotations

import math

import pytest
import torch

from tests.model_parts import SPEC, obs_config
from world_models.edm import karras_sigmas
from world_models.obs_model import ObservationModel
from world_models.samplers import SAMPLERS, SamplerName

DATA = 0.5
"""Deviation of Gaussian data: its denoiser is x * s^2 / (s^2 + sigma^2), and the ODE keeps x / sqrt(s^2 + sigma^2)."""


def exact(x: torch.Tensor, sigma: float) -> torch.Tensor:
    """The denoiser of that data."""
    return x * DATA**2 / (DATA**2 + sigma**2)


def error(name: SamplerName, steps: int) -> float:
    """Largest distance from where the ODE ends."""
    sigmas = karras_sigmas(steps, sigma_min=2e-3, sigma_max=5.0)
    start = torch.linspace(-5, 5, 8, dtype=torch.double).view(1, 1, 2, 4)
    ends = start * DATA / math.sqrt(DATA**2 + sigmas[0] ** 2)
    found = SAMPLERS[name](exact, start, sigmas, torch.Generator().manual_seed(0))
    return float((found - ends).abs().max())


def test_heun_is_of_higher_order_than_euler() -> None:
    """Twice the steps: half of Euler's error, and a good deal less than half of Heun's, which is smaller to begin with."""
    assert error("heun", 10) < error("euler", 10) / 2
    assert error("euler", 20) / error("euler", 10) == pytest.approx(0.5, abs=0.12)
    assert error("heun", 20) / error("heun", 10) < 0.35


def test_one_heun_step_by_hand() -> None:
    """From 2 over 1 to 0: the corrected slope of the first step, plain Euler in the second."""
    x, high, low = 3.0, 2.0, 1.0

    def d(x: float, sigma: float) -> float:
        return x * DATA**2 / (DATA**2 + sigma**2)

    first = (x - d(x, high)) / high
    ahead = x + first * (low - high)
    corrected = x + (first + (ahead - d(ahead, low)) / low) / 2 * (low - high)
    wanted = corrected + (corrected - d(corrected, low)) / low * (0 - low)
    found = SAMPLERS["heun"](exact, torch.full((1, 1, 1, 1), x), [high, low, 0.0], torch.Generator())
    assert float(found) == pytest.approx(wanted, rel=1e-6)


def test_consistency_sampling_lands_at_once_and_renoises() -> None:
    """A denoiser that always answers 7 is left at 7, having been asked once a level with noise of that level on it."""
    asked: list[tuple[float, float]] = []

    def seven(x: torch.Tensor, sigma: float) -> torch.Tensor:
        asked.append((sigma, float((x - 7).std())))
        return torch.full_like(x, 7.0)

    start = 7 + 5 * torch.randn(1, 3, 40, 40, generator=torch.Generator().manual_seed(1))
    found = SAMPLERS["consistency"](seven, start, [5.0, 1.0, 0.0], torch.Generator().manual_seed(0))
    assert torch.equal(found, torch.full_like(found, 7.0))
    assert [sigma for sigma, _ in asked] == [5.0, 1.0]
    assert [spread for _, spread in asked] == pytest.approx([5.0, 1.0], rel=0.05)


@pytest.mark.parametrize(
    ("sampler", "steps", "evaluations"),
    [
        ("euler", 1, 1),
        ("euler", 3, 3),
        ("heun", 1, 1),
        ("heun", 3, 5),
        ("heun", 10, 19),
        ("consistency", 2, 2),
    ],
)
def test_the_network_is_asked_as_often_as_the_sampler_needs(
    sampler: str, steps: int, evaluations: int
) -> None:
    """One a step, two for Heun's but the last."""
    model = ObservationModel(SPEC, obs_config(sampler=sampler, sampling_steps=steps, precision="float32"))
    calls: list[int] = []
    model.denoiser.register_forward_hook(lambda *_: calls.append(1))
    history = torch.zeros(2, 1, model.denoiser.channels, *model.denoiser.size)
    words = torch.ones(2, SPEC.instruction_length, dtype=torch.long)
    with torch.no_grad():
        frame, _ = model.imagine(
            history,
            torch.zeros(2, 2),
            torch.zeros(2, 3, 2),
            words,
            generator=torch.Generator().manual_seed(0),
        )
    assert len(calls) == evaluations
    assert frame.isfinite().all()
