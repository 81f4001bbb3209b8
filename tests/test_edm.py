"""EDM's arithmetic against hand-computed values and against diffusers."""

import itertools
import math

import pytest
import torch

from world_models.edm import draw_noise, draw_offset, draw_sigmas, euler_step, karras_sigmas, precondition


def test_preconditioning_by_hand() -> None:
    """sigma 1, sigma_data 0.5: variance 1.25."""
    c = precondition(torch.tensor([1.0]), 0.5)
    assert c.c_skip.item() == pytest.approx(0.25 / 1.25)
    assert c.c_out.item() == pytest.approx(0.5 / math.sqrt(1.25))
    assert c.c_in.item() == pytest.approx(1 / math.sqrt(1.25))
    assert c.c_noise.item() == pytest.approx(0.0)


def test_offset_noise_adds_to_the_variance_everywhere() -> None:
    """sigma 0.4 with offset 0.3 is sigma 0.5."""
    with_offset = precondition(torch.tensor([0.4]), 0.5, offset_noise=0.3)
    plain = precondition(torch.tensor([0.5]), 0.5)
    for name in ("c_skip", "c_out", "c_in", "c_noise"):
        torch.testing.assert_close(getattr(with_offset, name), getattr(plain, name))


def test_preconditioned_target_has_unit_variance() -> None:
    """What F must give has deviation 1 at every noise level (EDM, appendix B.6)."""
    generator = torch.Generator().manual_seed(0)
    for sigma in (0.05, 0.5, 5.0):
        y = 0.5 * torch.randn(200_000, generator=generator)
        noisy = y + sigma * torch.randn(200_000, generator=generator)
        c = precondition(torch.tensor([sigma]), 0.5)
        assert ((y - c.c_skip * noisy) / c.c_out).std().item() == pytest.approx(1.0, abs=0.02)
        assert (c.c_in * noisy).std().item() == pytest.approx(1.0, abs=0.02)


def test_sigmas_are_lognormal_and_clipped() -> None:
    """Mean and deviation of the logarithm, and both bounds."""
    generator = torch.Generator().manual_seed(0)
    wide = draw_sigmas(50_000, mean=-0.4, std=1.2, low=1e-9, high=1e9, generator=generator).log()
    assert wide.mean().item() == pytest.approx(-0.4, abs=0.03)
    assert wide.std().item() == pytest.approx(1.2, abs=0.03)
    clipped = draw_sigmas(5000, mean=-0.4, std=5.0, low=2e-3, high=20.0, generator=generator)
    assert clipped.min().item() == pytest.approx(2e-3)
    assert clipped.max().item() == pytest.approx(20.0)


def test_karras_sigmas_by_hand() -> None:
    """Ends are the bounds, then 0; the middle of three is the mean of the rho-th roots."""
    sigmas = karras_sigmas(3, sigma_min=0.002, sigma_max=5.0)
    assert sigmas[0] == pytest.approx(5.0)
    assert sigmas[1] == pytest.approx(((0.002 ** (1 / 7) + 5.0 ** (1 / 7)) / 2) ** 7)
    assert sigmas[2] == pytest.approx(0.002)
    assert sigmas[3] == 0.0
    assert karras_sigmas(1, sigma_min=0.002, sigma_max=5.0) == [pytest.approx(5.0), 0.0]


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_sampling_equals_diffusers(steps: int) -> None:
    """The whole chain with a fixed network, against EDMEulerScheduler."""
    from diffusers import EDMEulerScheduler

    def network(x: torch.Tensor, c_noise: float) -> torch.Tensor:
        return torch.tanh(1.7 * x + c_noise)

    scheduler = EDMEulerScheduler(sigma_min=0.002, sigma_max=5.0, sigma_data=0.5, rho=7.0)
    scheduler.set_timesteps(steps)
    x = 5.0 * torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    theirs = x
    for timestep in scheduler.timesteps:
        scaled = scheduler.scale_model_input(theirs, timestep)
        theirs = scheduler.step(network(scaled, float(timestep)), timestep, theirs).prev_sample
    ours = x
    sigmas = karras_sigmas(steps, sigma_min=0.002, sigma_max=5.0)
    for sigma, sigma_next in itertools.pairwise(sigmas):
        c = precondition(torch.tensor([sigma]), 0.5)
        denoised = c.c_skip * ours + c.c_out * network(c.c_in * ours, c.c_noise.item())
        ours = euler_step(ours, denoised, sigma, sigma_next)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_offset_is_one_number_per_channel() -> None:
    """It is constant over pixels, differs between rows, and has the deviation asked for."""
    generator = torch.Generator().manual_seed(0)
    offset = draw_offset(4000, 3, offset_noise=0.3, generator=generator)
    assert offset.shape == (4000, 3, 1, 1)
    assert offset.std().item() == pytest.approx(0.3, abs=0.02)
    noise = draw_noise((2, 3, 8, 4), generator)
    assert noise.shape == (2, 3, 8, 4)
    assert noise.is_contiguous(memory_format=torch.channels_last)
