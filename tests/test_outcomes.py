"""Imagined frames with real labels: which decisions, which label, the pool and its exact state."""

from __future__ import annotations

import copy

import numpy as np
import torch

from tests.model_parts import SPEC, Outcomes, encode, make_windows, reward_config
from tests.test_imagined_env import Brightening
from world_models.outcomes import OutcomePool, imagine_outcomes


def test_labels_say_which_decision_brought_success() -> None:
    """Window 0 succeeds with its second decision and ends; window 1 goes on without."""
    windows = make_windows(2, 1, 3)
    windows.frames["top"][:] = np.array([10, 50], np.uint8)[:, None, None, None, None]
    windows.tokens[:] = 1
    windows.instructions = ["1", "2"]
    windows.success_within[0, 2:] = True
    windows.mask[0, 2] = False
    made = imagine_outcomes(Brightening(), windows, encode=encode, generator=torch.Generator())
    assert made.frames["top"][:, 0, 0, 0].tolist() == [30, 70, 50, 90, 110]
    assert made.label.tolist() == [0, 0, 1, 0, 0]
    assert made.instructions == ["1", "2", "1", "2", "2"]


def make_pool(seed: int = 0, **changes: object) -> OutcomePool:
    """A small pool."""
    config = reward_config(batch=8, imagined_fraction=0.5, imagined_pool=10, **changes)
    return OutcomePool(SPEC, config, encode=encode, seed=seed, device=torch.device("cpu"))


def real_batch(rows: int) -> Outcomes:
    """Black failures."""
    return Outcomes({"top": np.zeros((rows, 16, 16, 3), np.uint8)}, ["3"] * rows, np.zeros(rows, np.float32))


def judged_windows(level: int) -> object:
    """Four windows of one decision each, two of them successes, at one grey level."""
    windows = make_windows(4, 1, 1)
    windows.frames["top"][:] = level
    windows.tokens[:] = 1
    windows.success_within[:2, 1] = True
    return windows


def test_pool_fills_batches_in_equal_shares() -> None:
    """Half real, a quarter each imagined success and failure; real alone while there is nothing to draw."""
    pool = make_pool()
    assert pool.real_share == 4
    assert len(pool.joined(real_batch(4)).label) == 4
    pool.add(Brightening(), judged_windows(100))  # type: ignore[arg-type]
    batch = pool.joined(real_batch(4))
    assert batch.label.tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    assert batch.frames["top"][:, 0, 0, 0].tolist() == [0] * 4 + [120] * 4
    assert batch.instructions == ["3"] * 4 + ["1 2"] * 4


def test_pool_keeps_the_newest() -> None:
    """Room for ten: of three times four the first two rows are overwritten."""
    pool = make_pool()
    for level in (20, 60, 100):
        pool.add(Brightening(), judged_windows(level))  # type: ignore[arg-type]
    assert pool.size == 10
    levels = sorted(pool.state()["frames"]["top"][:, 0, 0, 0].tolist())
    assert levels == [40] * 2 + [80] * 4 + [120] * 4


def test_pool_state_continues_exactly() -> None:
    """Same draws afterwards."""
    one, two = make_pool(1), make_pool(2)
    one.add(Brightening(), judged_windows(20))  # type: ignore[arg-type]
    one.joined(real_batch(4))
    two.load(copy.deepcopy(one.state()))
    for pool in (one, two):
        pool.add(Brightening(), judged_windows(90))  # type: ignore[arg-type]
    a, b = one.joined(real_batch(4)), two.joined(real_batch(4))
    assert np.array_equal(a.frames["top"], b.frames["top"])
    assert np.array_equal(a.label, b.label)
