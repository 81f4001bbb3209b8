"""M_reward: losses by hand, instructions, augmentation, learning, and its trainer."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from tests.model_parts import SPEC, Outcomes, encode, reward_config
from world_models.reward_model import RewardModel, shifted
from world_models.training import RewardModelTrainer


def make_model(seed: int = 0, **changes: Any) -> RewardModel:
    """A tiny model."""
    torch.manual_seed(seed)
    return RewardModel(SPEC, reward_config(precision="float32", **changes))


def generator(seed: int = 0) -> torch.Generator:
    """A CPU generator."""
    return torch.Generator().manual_seed(seed)


def spots(rows: int, seed: int) -> Outcomes:
    """A red and a green square each; success: the one that the instruction names lies on white."""
    rng = np.random.default_rng(seed)
    frames = np.zeros((rows, 16, 16, 3), np.uint8)
    named, on_white = rng.integers(0, 2, rows), rng.integers(0, 2, rows)
    for row in range(rows):
        left, right = rng.integers(1, 4), rng.integers(9, 12)
        top = rng.integers(1, 11, 2)
        columns = (left, right) if rng.random() < 0.5 else (right, left)
        white = named[row] if on_white[row] else 1 - named[row]
        for colour in range(2):
            y, x = top[colour], columns[colour]
            if colour == white:
                frames[row, y - 1 : y + 4, x - 1 : x + 4] = 255
            frames[row, y : y + 3, x : x + 3] = 0
            frames[row, y : y + 3, x : x + 3, colour] = 255
    return Outcomes({"top": frames}, [f"{1 + n} 3" for n in named], on_white.astype(np.float32))


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_loss_by_hand(gamma: float) -> None:
    """Cross-entropy, and its focal form (1 - p_correct)^gamma of it."""
    model = make_model(focal_gamma=gamma, shift=0, noise=0.0)
    batch = spots(6, 0)
    frames = {"top": torch.from_numpy(batch.frames["top"])}
    words = torch.from_numpy(encode(batch.instructions))
    loss, _ = model.loss(frames, words, torch.from_numpy(batch.label), generator=generator())
    probability = model.probability(frames, words).double().numpy()
    correct = np.where(batch.label > 0.5, probability, 1 - probability)
    assert float(loss.detach()) == pytest.approx(
        float(np.mean(-((1 - correct) ** gamma) * np.log(correct))), rel=1e-4
    )


def test_shift_moves_whole_frames_and_repeats_edges() -> None:
    """Every result is one of the nine moves of its frame, the same for all its channels; 0 changes nothing."""
    frame = torch.arange(16, dtype=torch.uint8).view(1, 4, 4, 1).expand(40, 4, 4, 3)
    moved = shifted({"top": frame}, 1, generator())["top"]
    padded = torch.nn.functional.pad(frame[:1].permute(0, 3, 1, 2).float(), (1, 1, 1, 1), mode="replicate")
    allowed = [padded[0, :, y : y + 4, x : x + 4].permute(1, 2, 0) for y in range(3) for x in range(3)]
    seen = {next(i for i, a in enumerate(allowed) if torch.equal(a, row.float())) for row in moved}
    assert len(seen) > 5
    assert torch.equal(shifted({"top": frame}, 0, generator())["top"], frame)


def test_it_learns_what_the_instruction_asks() -> None:
    """The same frame is success under one instruction and not under the other."""
    model = make_model(channels=[16, 16])
    trainer = RewardModelTrainer(
        model, model.config, encode=encode, seed=0, learning_rate=1e-2, total_updates=150
    )
    for update in range(150):
        stats = trainer.update(spots(64, update))
    assert stats["accuracy"] > 0.9
    held_out = spots(200, 10_000)
    frames = {"top": torch.from_numpy(held_out.frames["top"])}
    called = trainer.averaged.probability(frames, torch.from_numpy(encode(held_out.instructions))) > 0.5
    assert float((called.numpy() == (held_out.label > 0.5)).mean()) > 0.9
    swapped = [f"{3 - int(text[0])} 3" for text in held_out.instructions]
    other = trainer.averaged.probability(frames, torch.from_numpy(encode(swapped))) > 0.5
    assert float((other.numpy() == (held_out.label < 0.5)).mean()) > 0.9


def test_trainer_state_continues_bit_for_bit() -> None:
    """Including the augmentation's random state."""
    one = RewardModelTrainer(make_model(), reward_config(), encode=encode, seed=0)
    two = RewardModelTrainer(make_model(9), reward_config(), encode=encode, seed=5)
    for update in range(3):
        one.update(spots(8, update))
    two.load(copy.deepcopy(one.state()))
    assert [one.update(spots(8, u)) for u in range(3)] == [two.update(spots(8, u)) for u in range(3)]


def test_a_broken_batch_is_skipped() -> None:
    """A label that is not a number."""
    trainer = RewardModelTrainer(make_model(), reward_config(), encode=encode, seed=0)
    batch = spots(8, 0)
    batch.label[0] = np.nan
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    assert trainer.update(batch)["skipped"] == 1.0
    assert all(torch.equal(v, before[k]) for k, v in trainer.model.state_dict().items())
