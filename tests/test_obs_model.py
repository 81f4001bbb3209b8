"""M_obs: pixels, losses by hand, multi-step training, prediction, and its trainer."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError, DataError
from policies.openvla.actions import OpenVLATokenizer
from policies.tokens import ActionTokenizer
from tests.model_parts import SPEC, encode, make_windows, obs_config
from world_models.base import ModelSpec, fold_frames, normalized_actions, quantize, unfold_frames
from world_models.edm import precondition
from world_models.obs_model import ObservationModel
from world_models.training import ObsModelTrainer


def make_model(
    seed: int = 0, spec: ModelSpec = SPEC, *, scramble: bool = False, **changes: Any
) -> ObservationModel:
    """A tiny model; ``scramble`` gives the zeroed last layers weights, so that outputs differ."""
    torch.manual_seed(seed)
    model = ObservationModel(spec, obs_config(precision="float32", **changes))
    if scramble:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def tensors(rows: int = 4, steps: int = 3, history: int = 1, seed: int = 0) -> tuple[Any, ...]:
    """Frames, proprio, actions, mask and words of random windows."""
    w = make_windows(rows, history, steps, seed=seed)
    return (
        {name: torch.from_numpy(frame) for name, frame in w.frames.items()},
        torch.from_numpy(w.proprio),
        normalized_actions(torch.from_numpy(w.tokens), SPEC.bins),
        torch.from_numpy(w.mask),
        torch.from_numpy(encode(w.instructions)),
    )


def generator(seed: int = 0) -> torch.Generator:
    """A CPU generator."""
    return torch.Generator().manual_seed(seed)


@settings(max_examples=20, deadline=None)
@given(fold=st.sampled_from([1, 2, 4]), cameras=st.integers(1, 3), seed=st.integers(0, 100))
def test_folding_is_undone_exactly(fold: int, cameras: int, seed: int) -> None:
    """Every grey level survives the way to pixels and back, for every camera."""
    rng = np.random.default_rng(seed)
    names = [f"c{i}" for i in range(cameras)]
    frames = {n: torch.from_numpy(rng.integers(0, 256, (2, 8, 12, 3), dtype=np.uint8)) for n in names}
    pixels = fold_frames(frames, names, fold)
    assert pixels.shape == (2, 3 * fold**2 * cameras, 8 // fold, 12 // fold)
    back = unfold_frames(pixels, names, fold)
    assert all(torch.equal(back[n], frames[n]) for n in names)


def test_frames_are_rounded_and_clamped() -> None:
    """Truncation would lose half a grey level a step."""
    levels = torch.tensor([100.4, 100.6, -3.0, 300.0]) / 127.5 - 1
    frames = unfold_frames(levels.view(1, 1, 2, 2).expand(1, 3, 2, 2), ["top"], 1)
    assert frames["top"][0, :, :, 0].flatten().tolist() == [100, 101, 0, 255]
    torch.testing.assert_close(quantize(levels), torch.tensor([100.0, 101.0, 0.0, 255.0]) / 127.5 - 1)


def test_actions_are_bin_centres() -> None:
    """Four bins over [-1, 1]."""
    actions = normalized_actions(torch.tensor([[[0, 1, 2, 3]]]), 4)
    torch.testing.assert_close(actions, torch.tensor([[[-0.75, -0.25, 0.25, 0.75]]]))


@pytest.mark.parametrize("kind", [ActionTokenizer, OpenVLATokenizer])
def test_the_model_is_told_what_is_executed(kind: type[ActionTokenizer]) -> None:
    """Also where one part of the range has two tokens."""
    tokenizer, tokens = kind((-1.0, -1.0), (1.0, 1.0), 16), np.arange(16).repeat(2).reshape(16, 2)
    told = normalized_actions(torch.from_numpy(tokens), tokenizer.parts)
    np.testing.assert_allclose(told.numpy(), tokenizer.decode(tokens.astype(np.int16)), atol=1e-6)


def test_an_untrained_model_nearly_copies() -> None:
    """The last convolution is zero: a gate of sigmoid(-3) = 0.047 pulls the frame that much towards grey."""
    model = make_model(sampling_sigma_max=1e4, sigma_max=2e4)
    frames, proprio, actions, _, words = tensors()
    past = {"top": frames["top"][:, :1]}
    predicted, after = model.predict(past, proprio[:, 0], actions[:, 0], words, generator=generator())
    assert predicted["top"].dtype == torch.uint8
    expected = 127.5 + (past["top"][:, 0].float() - 127.5) * (1 - 1 / (1 + math.exp(3.0)))
    torch.testing.assert_close(predicted["top"].float(), expected, atol=0.51, rtol=0)
    torch.testing.assert_close(after, proprio[:, 0])


@pytest.mark.parametrize("steps", [1, 3])
def test_prediction_depends_on_generator_and_inputs_only(steps: int) -> None:
    """Same seed, same frames; another action within the executed part, or another word, changes them."""
    model = make_model(scramble=True)
    frames, proprio, actions, _, words = tensors()
    past = {"top": frames["top"][:, :1]}

    def predict(actions: torch.Tensor, words: torch.Tensor, seed: int = 0) -> torch.Tensor:
        out, _ = model.predict(past, proprio[:, 0], actions, words, generator=generator(seed), steps=steps)
        return out["top"]

    first = predict(actions[:, 0], words)
    assert torch.equal(first, predict(actions[:, 0], words))
    executed, beyond = actions[:, 0].clone(), actions[:, 0].clone()
    executed[:, SPEC.replan - 1] *= -1
    beyond[:, SPEC.replan] *= -1
    assert not torch.equal(first, predict(executed, words))
    assert torch.equal(first, predict(beyond, words))
    assert not torch.equal(first, predict(actions[:, 0], words + 1))
    assert not torch.equal(first, predict(actions[:, 0], words, seed=1))


@pytest.mark.parametrize("target", ["residual", "frame"])
def test_one_step_loss_by_hand(target: str) -> None:
    """Untrained, F is 0 or the shut gate's; the loss is the mean square of F - (target - c_skip noisy) / c_out."""
    model = make_model(target=target, conditioning_noise=0.0)
    frames, proprio, actions, mask, words = tensors(rows=3, steps=1)
    _, stats, by_window = model.loss(
        frames, proprio, actions, mask, words, generator=generator(5), rollout_model=None
    )
    replay = generator(5)
    torch.randint(1, (1,), generator=replay)
    sigma = (1.0 + 1.2 * torch.randn(3, generator=replay)).exp().clamp(2e-3, 20.0)
    noise = torch.randn(3, 8, 8, 12, generator=replay).movedim(-1, 1)
    pixels = model.pixels(frames)
    wanted = pixels[:, 1] - pixels[:, 0] if target == "residual" else pixels[:, 1]
    noisy = wanted + sigma.view(-1, 1, 1, 1) * noise
    c = precondition(sigma, model.config.sigma_data)
    error = (wanted - c.c_skip.view(-1, 1, 1, 1) * noisy) / c.c_out.view(-1, 1, 1, 1)
    if target == "residual":
        error = error + pixels[:, 0] / model.config.sigma_data / (1 + math.exp(3.0))
    assert stats["image_loss"] == pytest.approx(float((error**2).mean()), rel=1e-5)
    position = by_window - (error**2).mean((1, 2, 3))
    assert stats["proprio_loss"] == pytest.approx(float(position.mean()), rel=1e-4)
    assert (position > 0).all()
    mask[1] = False
    *_, by_window = model.loss(
        frames, proprio, actions, mask, words, generator=generator(5), rollout_model=None
    )
    assert by_window.isnan().tolist() == [False, True, False]


def test_multi_step_loss_is_the_loss_on_own_predictions() -> None:
    """A chain of one decision, against the same computation written out."""
    model = make_model(0, scramble=True, conditioning_noise=0.0)
    roller = make_model(1, scramble=True)
    frames, proprio, actions, mask, words = tensors(steps=2)
    seed = next(s for s in range(50) if int(torch.randint(2, (1,), generator=generator(s))) == 1)
    _, stats, _ = model.loss(
        frames, proprio, actions, mask, words, generator=generator(seed), rollout_model=roller
    )
    assert stats["chain"] == 1.0

    replay = generator(seed)
    torch.randint(2, (1,), generator=replay)
    start = {"top": frames["top"][:, :1]}
    own, own_proprio = roller.predict(start, proprio[:, 0], actions[:, 0], words, generator=replay)
    window = {"top": torch.stack([own["top"], frames["top"][:, 2]], dim=1)}
    sigma = (1.0 + 1.2 * torch.randn(4, generator=replay)).exp().clamp(2e-3, 20.0)
    noise = torch.randn(4, 8, 8, 12, generator=replay).movedim(-1, 1)
    pixels = model.pixels(window)
    wanted = pixels[:, 1] - pixels[:, 0]
    noisy = wanted + sigma.view(-1, 1, 1, 1) * noise
    c = precondition(sigma, model.config.sigma_data)
    c_in, c_skip, c_out = (x.view(-1, 1, 1, 1) for x in (c.c_in, c.c_skip, c.c_out))
    executed = actions[:, 1, : SPEC.replan]
    vector = model.denoiser.conditioner.vector(
        own_proprio, model.proprio_head(own_proprio, executed), executed
    )
    output = model.denoiser(c_in * noisy, c.c_noise, pixels[:, 0], vector, words)
    by_hand = ((output - (wanted - c_skip * noisy) / c_out) ** 2).mean()
    assert stats["image_loss"] == pytest.approx(float(by_hand.detach()), rel=1e-4)


def test_masked_decisions_never_count() -> None:
    """Whatever stands in the frames, proprio and actions past a record's end, the loss is the same."""
    model = make_model(scramble=True)
    frames, proprio, actions, mask, words = tensors(rows=6, steps=3)
    mask[::2, 1:] = False
    other = {"top": frames["top"].clone()}, proprio.clone(), actions.clone()
    other[0]["top"][::2, 2:] = 7
    other[1][::2, 2:] = -9.0
    other[2][::2, 1:] = 0.3
    for seed in range(6):
        a = model.loss(frames, proprio, actions, mask, words, generator=generator(seed), rollout_model=model)
        b = model.loss(*other, mask, words, generator=generator(seed), rollout_model=model)
        assert a[1] == b[1]


def test_validation_loss_is_repeatable_and_by_step() -> None:
    """No chance in it; steps that no window has are left out."""
    model = make_model(scramble=True)
    frames, proprio, actions, mask, words = tensors(steps=3)
    first = model.validation_loss(frames, proprio, actions, mask, words)
    assert len(first) == 3
    assert first == model.validation_loss(frames, proprio, actions, mask, words)
    mask[:, 2] = False
    assert model.validation_loss(frames, proprio, actions, mask, words) == first[:2]


def test_proprio_is_exact_inside_autocast() -> None:
    """bfloat16 holds three digits: too few for where an arm is."""
    model = make_model(scramble=True)
    frames, proprio, actions, _, words = tensors()
    past = {"top": frames["top"][:, :1]}
    _, plain = model.predict(past, proprio[:, 0], actions[:, 0], words, generator=generator())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, inside = model.predict(past, proprio[:, 0], actions[:, 0], words, generator=generator())
    assert torch.equal(plain, inside)


def test_history_and_cameras_are_seen() -> None:
    """Two frames, two cameras: an older frame changes the prediction."""
    spec = ModelSpec({"a": (16, 16), "b": (16, 16)}, 2, 3, 2, 2, 4, 5, 3)
    model = make_model(spec=spec, scramble=True, history=2)
    w = make_windows(2, 2, 1, spec=spec)
    past = {name: torch.from_numpy(frame[:, :2]) for name, frame in w.frames.items()}
    actions = normalized_actions(torch.from_numpy(w.tokens), 4)[:, 0]
    words = torch.from_numpy(encode(w.instructions))
    proprio = torch.from_numpy(w.proprio[:, 1])
    out, _ = model.predict(past, proprio, actions, words, generator=generator())
    assert {name: tuple(frame.shape) for name, frame in out.items()} == {
        "a": (2, 16, 16, 3),
        "b": (2, 16, 16, 3),
    }
    older = {name: frame.clone() for name, frame in past.items()}
    older["b"][:, 0] = 0
    other, _ = model.predict(older, proprio, actions, words, generator=generator())
    assert not torch.equal(out["a"], other["a"])


def test_frames_that_do_not_fit_are_refused() -> None:
    """One line that names the remedy."""
    with pytest.raises(ConfigError, match="does not divide by 8"):
        make_model(spec=ModelSpec({"top": (20, 16)}, 2, 3, 2, 2, 4, 5, 3), fold=4)
    with pytest.raises(ConfigError, match="differ in size"):
        make_model(spec=ModelSpec({"a": (16, 16), "b": (32, 32)}, 2, 3, 2, 2, 4, 5, 3))


def test_spec_round_trip_and_mismatch() -> None:
    """JSON and back; the first difference is named."""
    assert ModelSpec.from_json(SPEC.to_json()) == SPEC
    other = ModelSpec.from_json({**SPEC.to_json(), "bins": 8})
    with pytest.raises(DataError, match="bins is 8, expected 4"):
        SPEC.require(other, where="model", remedy="use the same tokens")


def make_trainer(**changes: Any) -> ObsModelTrainer:
    """A trainer of a tiny model."""
    model = make_model(**changes)
    return ObsModelTrainer(model, model.config, encode=encode, seed=0, learning_rate=1e-2, total_updates=40)


def test_training_learns_a_fixed_change() -> None:
    """Every decision brightens the frame: the averaged model's validation loss falls well below its start."""
    trainer = make_trainer(rollout_steps=1, rollout_start=20)
    windows = make_windows(8, 1, 2)
    windows.frames["top"][:] = np.arange(3, dtype=np.uint8)[None, :, None, None, None] * 40 + 50
    before = trainer.validation_loss(windows)
    for _ in range(60):
        stats = trainer.update(windows)
    assert trainer.window_steps == 2
    assert stats["skipped"] == 0.0
    assert trainer.validation_loss(windows)[0] < 0.5 * before[0]


def test_trainer_state_continues_bit_for_bit() -> None:
    """Weights, average, optimizer, learning rate and random state."""
    windows = make_windows(4, 1, 3)
    one, two = make_trainer(), make_trainer(seed=3)
    for _ in range(3):
        one.update(windows)
    two.load(copy.deepcopy(one.state()))
    assert [one.update(windows) for _ in range(3)] == [two.update(windows) for _ in range(3)]
    for a, b in zip(one.averaged.state_dict().values(), two.averaged.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert one.updates == two.updates == 6


def test_a_broken_batch_is_skipped_and_counted() -> None:
    """Not a single parameter changes, and the next update works."""
    trainer = make_trainer()
    windows = make_windows(4, 1, 3)
    trainer.update(windows)
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    broken = make_windows(4, 1, 3)
    broken.proprio[0] = np.nan
    assert trainer.update(broken)["skipped"] == 1.0
    assert all(torch.equal(v, before[k]) for k, v in trainer.model.state_dict().items())
    assert trainer.skipped == 1
    assert trainer.update(windows)["skipped"] == 0.0


def test_chains_begin_when_told() -> None:
    """One-step windows first, or chains from the first update."""
    model = make_model(rollout_start=2, rollout_steps=4)
    trainer = ObsModelTrainer(model, model.config, encode=encode, seed=0)
    assert trainer.window_steps == 1
    assert trainer.update(make_windows(4, 1, 1))["chain"] == 0.0
    chained = ObsModelTrainer(model, model.config, encode=encode, seed=0, chains=True)
    assert chained.window_steps == 5
