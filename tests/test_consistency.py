"""Consistency training: what is aimed at, by hand; distillation; what is measured."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch

from tests.model_parts import SPEC, encode, make_windows, obs_config
from world_models.consistency import ConsistencyAim, sample_loss, teacher_config
from world_models.denoiser import Conditions
from world_models.edm import euler_step, karras_sigmas
from world_models.obs_model import ObservationModel
from world_models.training import ObsModelTrainer

UPDATES = 60


def make_model(seed: int = 0, **changes: Any) -> ObservationModel:
    """A tiny model with outputs that differ."""
    torch.manual_seed(seed)
    model = ObservationModel(SPEC, obs_config(precision="float32", sampler="consistency", **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def conditions(model: ObservationModel, rows: int) -> Conditions:
    """Of a still world."""
    past = torch.zeros(rows, model.denoiser.channels, *model.denoiser.size)
    vector = model.denoiser.conditioner.vector(
        torch.zeros(rows, 2), torch.zeros(rows, 2), torch.zeros(rows, 2, 2)
    )
    return Conditions(past, vector, torch.ones(rows, SPEC.instruction_length, dtype=torch.long))


@pytest.mark.parametrize("taught", [True, False])
def test_the_aim_is_where_the_averaged_weights_land_from_the_next_level(taught: bool) -> None:
    """Two rows by hand: one between two levels, one on the last step to noise 0."""
    model, averaged, teacher = make_model(), make_model(1), make_model(2)
    aim = ConsistencyAim(model.config, averaged, teacher if taught else None)
    given = conditions(model, 2)
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(given.past.shape, generator=generator)
    noise = torch.randn(given.past.shape, generator=generator)
    sigma, lower = torch.tensor([3.0, 0.5]), torch.tensor([1.0, 0.0])
    noisy = clean + sigma.view(-1, 1, 1, 1) * noise
    found = aim.target(noisy, clean, sigma, lower, given)
    with torch.no_grad():
        answers = teacher.denoise(noisy, sigma, given) if taught else clean
        near = euler_step(noisy[0], answers[0], 3.0, 1.0)
        if taught:
            ahead = torch.stack([near, near])
            slopes = (noisy[0] - answers[0]) / 3.0, near - teacher.denoise(ahead, torch.ones(2), given)[0]
            near = noisy[0] + (slopes[0] + slopes[1]) / 2 * (1.0 - 3.0)
        landed = averaged.denoise(torch.stack([near, near]), torch.ones(2), given)[0]
    if not taught:
        torch.testing.assert_close(near, clean[0] + noise[0])
    torch.testing.assert_close(found[0], landed, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], answers[1], rtol=1e-4, atol=1e-5)


def test_levels_are_neighbours_on_karras_grid() -> None:
    """Each drawn pair stands side by side, all pairs come, the last one ends in 0."""
    model = make_model(consistency_levels=4)
    aim = ConsistencyAim(model.config, model, None)
    sigma, lower = aim.draw_sigmas(400, torch.Generator().manual_seed(0))
    grid = karras_sigmas(4, sigma_min=2e-3, sigma_max=5.0)
    pairs = {(round(a, 5), round(b, 5)) for a, b in zip(sigma.tolist(), lower.tolist(), strict=True)}
    assert pairs == {(round(a, 5), round(b, 5)) for a, b in itertools.pairwise(grid)}


def test_a_perfect_student_has_nothing_to_learn_but_noise() -> None:
    """The loss is zero where the student already lands where the aim says."""
    model = make_model(conditioning_noise=0.0)
    windows = make_windows(3, 1, 1)

    class Own(ConsistencyAim):
        def target(self, noisy: Any, clean: Any, sigma: Any, sigma_next: Any, given: Any) -> Any:
            with torch.no_grad():
                return model.denoise(noisy, sigma, given)

    trainer = ObsModelTrainer(model, model.config, encode=encode, seed=0)
    trainer._aim = Own(model.config, trainer.averaged, None)
    assert trainer.update(windows)["image_loss"] == pytest.approx(0.0, abs=1e-8)


def test_sample_loss_is_the_distance_to_the_teacher_or_to_the_truth() -> None:
    """Zero to itself; by hand to the real frame, in units of sigma_data squared."""
    model = make_model()
    trainer = ObsModelTrainer(model, model.config, encode=encode, seed=0)
    frames, proprio, actions, mask, words = trainer._tensors(make_windows(3, 1, 2))
    window = model.pixels(frames)
    assert sample_loss(model, copy.deepcopy(model), window, proprio, actions, mask, words) == [0.0, 0.0]
    losses = sample_loss(model, None, window, proprio, actions, mask, words)
    with torch.no_grad():
        noise = torch.Generator().manual_seed(0)
        pixels, _ = model.imagine(window[:, :1], proprio[:, 0], actions[:, 0], words, generator=noise)
    by_hand = float((pixels - window[:, 1]).square().mean()) / model.config.sigma_data**2
    assert losses[0] == pytest.approx(by_hand)
    assert len(losses) == 2


class Gaussian(ObservationModel):
    """Knows that the change is Gaussian noise of deviation sigma_data: its ODE ends where it began, scaled down."""

    def denoise(self, noisy: Any, sigma: Any, conditions: Conditions) -> Any:
        """The posterior mean."""
        variance = self.config.sigma_data**2
        return noisy * (variance / (variance + sigma**2)).view(-1, 1, 1, 1)


def test_distillation_teaches_one_step_what_the_teacher_does_in_many() -> None:
    """One step of an ordinary model gives the mean, nothing; the teacher's many steps, and then the student's one, give a
    sample of the right spread for each noise.
    """
    torch.manual_seed(0)
    # Plain frames: eight channels have room for the noise of three.
    plain = {"fold": 1, "target": "frame"}
    student = ObservationModel(
        SPEC, obs_config(**plain, precision="float32", sampler="consistency", consistency_levels=6)
    )
    teacher = Gaussian(SPEC, teacher_config(student.config))
    assert (teacher.config.sampler, teacher.config.sampling_steps) == ("heun", 6)
    trainer = ObsModelTrainer(
        student, student.config, encode=encode, seed=0, learning_rate=1e-2, chains=True, teacher=teacher
    )
    windows = make_windows(8, 1, 1)
    windows.frames["top"][:] = 127
    first = trainer.validation_loss(windows)[0]
    for _ in range(UPDATES):
        trainer.update(windows)
    trainer.averaged.load_state_dict(student.state_dict())
    assert trainer.validation_loss(windows)[0] < 0.5 * first
