"""What the observation model finds hard is drawn more often, where windows are drawn by priority."""

from __future__ import annotations

from platform.model_batches import ObsModelBatches
from types import SimpleNamespace
from typing import Any

import numpy as np

from buffers.memory import MemoryBuffer
from configs.replay import PrioritySamplingConfig
from tests.buffer_helper import SPEC, fill, make_buffer
from tests.replay_backends import buffer_config


def test_losses_become_priorities() -> None:
    """Seven decisions with a loss of 1 and one with 9: that is drawn nine times in sixteen."""
    config = buffer_config("memory", "small", sampling=PrioritySamplingConfig(exponent=1.0))
    buffer = MemoryBuffer(SPEC, config, seed=0, name="real")
    fill(buffer, [4, 4])
    trainer: Any = SimpleNamespace(window_steps=1)
    batches = ObsModelBatches(buffer, trainer, 64, 1, prioritise=buffer.prioritise)
    for _ in range(2):
        drawn = batches.draw()
        hard = (drawn.ids == 1) & (drawn.t == 2)
        assert hard.any()
        trainer.window_losses = np.where(hard, 9.0, 1.0)
        trainer.window_losses[0] = np.nan
        batches.learned()
    probability = batches.draw().probability
    assert probability is not None
    assert set(np.round(probability * 16, 6)) == {1.0, 9.0}


def test_nothing_is_given_where_all_windows_are_alike() -> None:
    buffer = make_buffer()
    fill(buffer, [4])
    trainer: Any = SimpleNamespace(window_steps=1, window_losses=np.ones(8))
    batches = ObsModelBatches(buffer, trainer, 8, 1, prioritise=buffer.prioritise)
    batches.draw()
    batches.learned()
