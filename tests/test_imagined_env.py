"""Imagined worlds with hand-made models: rewards, termination, compaction, failures, randomness."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from configs.errors import DataError
from tests.model_parts import SPEC, encode, make_windows, obs_config, reward_config
from world_models.base import Frames
from world_models.disagreement import disagreement
from world_models.imagined_env import ImaginedWorlds
from world_models.obs_model import ObservationModel
from world_models.reward_model import RewardModel


class Brightening(ObservationModel):
    """Adds 20 grey levels times the token of the first action; counts the rows it is asked for."""

    def __init__(self, break_row: int | None = None) -> None:
        super().__init__(SPEC, obs_config())
        self.rows: list[int] = []
        self.break_row = break_row

    def imagine(
        self, history: Tensor, proprio: Tensor, actions: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """As the real one."""
        self.rows.append(len(proprio))
        token = ((actions[:, 0, 0] + 1) * SPEC.bins / 2 - 0.5).round()
        pixels = history[:, -1] + token[:, None, None, None] * 20 / 127.5
        if self.break_row is not None and self.break_row < len(pixels):
            pixels[self.break_row] = torch.nan
        return pixels, proprio + 1


class Brightness(RewardModel):
    """Success probability is the first pixel's red over 200."""

    def __init__(self) -> None:
        super().__init__(SPEC, reward_config())

    def probability(self, frames: Frames, instruction: Tensor) -> Tensor:
        """As the real one."""
        assert len(instruction) == len(frames["top"])
        return frames["top"][:, 0, 0, 0].float() / 200


@dataclass
class Levels:
    """Starts."""

    frames: dict[str, NDArray[np.uint8]]
    proprio: NDArray[np.float32]
    instructions: list[str]
    between: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    proprio_between: NDArray[np.float32] | None = None


def start(levels: list[int]) -> Levels:
    """Worlds of one grey level each."""
    frames = np.zeros((len(levels), 1, 16, 16, 3), np.uint8)
    frames[:] = np.array(levels, np.uint8)[:, None, None, None, None]
    return Levels({"top": frames}, np.zeros((len(levels), 1, 2), np.float32), ["1"] * len(levels))


def tokens(values: list[int]) -> NDArray[np.int16]:
    """Chunks whose first token is given."""
    chunk = np.zeros((len(values), SPEC.chunk, SPEC.action_dim), np.int16)
    chunk[:, 0, 0] = values
    return chunk


def worlds(obs: ObservationModel | None = None, reward: str = "change") -> ImaginedWorlds:
    """Threshold 0.5: level 100."""
    return ImaginedWorlds(
        obs or Brightening(), Brightness(), encode=encode, threshold=0.5, reward=reward, seed=0
    )


def test_rewards_termination_and_compaction_by_hand() -> None:
    """Levels 40 and 0: the first succeeds in the second step and leaves the forward pass."""
    obs = Brightening()
    env = worlds(obs)
    first = env.reset(start([40, 0]))
    np.testing.assert_allclose(env.probabilities, [0.2, 0.0])
    assert first.images["top"].shape == (2, 16, 16, 3)
    one = env.step(tokens([2, 1]))
    np.testing.assert_allclose(one.rewards, [0.2, 0.1], atol=1e-6)
    assert not one.terminated.any()
    two = env.step(tokens([3, 0]))
    np.testing.assert_allclose(two.rewards, [0.3, 0.0], atol=1e-6)
    assert two.terminated.tolist() == [True, False]
    assert two.observation.images["top"][:, 0, 0, 0].tolist() == [140, 20]
    three = env.step(tokens([3, 3]))
    assert three.stepped.tolist() == [False, True]
    np.testing.assert_allclose(three.rewards, [0.0, 0.3], atol=1e-6)
    assert three.observation.images["top"][:, 0, 0, 0].tolist() == [140, 80]
    assert three.observation.proprio[:, 0].tolist() == [2, 3]
    assert obs.rows == [2, 2, 1]
    # Observations are copies: what was handed out does not change later.
    assert one.observation.images["top"][:, 0, 0, 0].tolist() == [80, 20]


def test_rewards_telescope_to_the_change_of_probability() -> None:
    """Whatever happens in between."""
    env = worlds()
    env.reset(start([10, 30, 50]))
    before = env.probabilities
    total = sum(env.step(tokens([1, 0, 1])).rewards for _ in range(2))
    np.testing.assert_allclose(total, env.probabilities - before, atol=1e-6)


def test_success_earns_one_when_the_threshold_is_reached() -> None:
    """Levels 40 and 0: only the step that passes 100 earns anything, whatever the probability does before."""
    env = worlds(reward="success")
    env.reset(start([40, 0]))
    assert env.step(tokens([2, 1])).rewards.tolist() == [0.0, 0.0]
    assert env.step(tokens([3, 0])).rewards.tolist() == [1.0, 0.0]
    assert env.step(tokens([3, 3])).rewards.tolist() == [0.0, 0.0]


def test_no_world_left_is_no_forward() -> None:
    """All have ended: nothing moves."""
    obs = Brightening()
    env = worlds(obs)
    env.reset(start([90]))
    env.step(tokens([1]))
    assert not env.running.any()
    result = env.step(tokens([1]))
    assert obs.rows == [1]
    assert result.rewards.tolist() == [0.0]
    assert result.observation.images["top"][0, 0, 0, 0] == 110


def test_numbers_that_are_not_finite_fail_one_world_only() -> None:
    """It keeps its last good observation and takes no further part."""
    env = worlds(Brightening(break_row=1))
    env.reset(start([10, 20, 30]))
    result = env.step(tokens([1, 1, 1]))
    assert result.failed.tolist() == [False, True, False]
    assert not result.terminated.any()
    np.testing.assert_allclose(result.rewards, [0.1, 0.0, 0.1], atol=1e-6)
    assert result.observation.images["top"][:, 0, 0, 0].tolist() == [30, 20, 50]
    assert env.running.tolist() == [True, False, True]
    assert np.isfinite(result.observation.proprio).all()


def test_starts_that_do_not_fit_are_refused() -> None:
    """Camera, shape, dtype: one line each."""
    fits, env = start([10]), worlds()
    frames = fits.frames["top"]
    with pytest.raises(DataError, match="cameras"):
        env.reset(replace(fits, frames={"side": frames}))
    with pytest.raises(DataError, match="start frames top"):
        env.reset(replace(fits, frames={"top": frames[:, :, :8]}))
    with pytest.raises(DataError, match="start frames top are float32"):
        env.reset(replace(fits, frames={"top": frames.astype(np.float32)}))  # type: ignore[dict-item]
    with pytest.raises(DataError, match="start proprio"):
        env.reset(replace(fits, proprio=fits.proprio[:, 0]))


def test_real_models_same_contract_and_exact_state() -> None:
    """Real frames and imagined ones share keys, shapes and dtypes; the random state continues bit for bit."""
    torch.manual_seed(0)
    obs, reward = ObservationModel(SPEC, obs_config()), RewardModel(SPEC, reward_config())
    w = make_windows(3, 1, 1)
    real = Levels({"top": w.frames["top"][:, :1]}, w.proprio[:, :1], w.instructions)
    one = ImaginedWorlds(obs, reward, encode=encode, threshold=0.99, reward="change", seed=1)
    two = ImaginedWorlds(obs, reward, encode=encode, threshold=0.99, reward="change", seed=2)
    first = one.reset(real)
    assert np.array_equal(first.images["top"], w.frames["top"][:, 0])
    one.step(w.tokens[:, 0])
    two.load(one.state())
    one.reset(real)
    two.reset(real)
    a, b = one.step(w.tokens[:, 0]), two.step(w.tokens[:, 0])
    assert a.observation.images["top"].dtype == np.uint8
    assert a.observation.proprio.dtype == np.float32
    assert np.array_equal(a.observation.images["top"], b.observation.images["top"])
    assert np.array_equal(a.rewards, b.rewards)


class Doubtful(Brightening):
    """Every second draw of a step differs by ``levels`` grey levels in one 8x8 patch of the row's frame."""

    def __init__(self, levels: list[int]) -> None:
        super().__init__()
        self.levels = levels

    def imagine(
        self, history: Tensor, proprio: Tensor, actions: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """As the real one."""
        pixels, proprio = super().imagine(history, proprio, actions)
        if len(self.rows) % 2 == 0:
            cells = 8 // self.config.fold
            shift = torch.tensor(self.levels[: len(pixels)]) * 2 / 255
            pixels[:, :, :cells, :cells] += shift[:, None, None, None]
        return pixels, proprio


def test_disagreeing_draws_end_a_world_before_the_step() -> None:
    """Bound 0.05: 13 levels of 255 are 0.051, 12 are 0.047. The ended world keeps its last observation, earns nothing
    and leaves the forward passes; success in the doubtful step does not count.
    """
    obs = Doubtful([13, 12])
    env = ImaginedWorlds(
        obs, Brightness(), encode=encode, threshold=0.5, reward="success", seed=0, max_disagreement=0.05
    )
    env.reset(start([90, 90]))
    step = env.step(tokens([1, 1]))
    assert step.uncertain.tolist() == [True, False]
    assert step.terminated.tolist() == [False, True]
    assert step.failed.tolist() == [False, False]
    np.testing.assert_allclose(step.rewards, [0.0, 1.0])
    assert step.observation.images["top"][:, 0, 0, 0].tolist() == [90, 110]
    assert env.running.tolist() == [False, False]
    assert obs.rows == [2, 2]


def test_disagreement_by_hand() -> None:
    """16 of the 64 pixels of one patch differ by 51 levels, 0.2 of the range: the root of 0.04 / 4. Equal draws: 0.

    A camera smaller than a patch is one, and the camera that differs most counts.
    """
    frames = torch.full((2, 16, 16, 3), 100, dtype=torch.uint8)
    other = frames.clone()
    other[0, 8:12, 8:12] += 51
    assert disagreement({"top": frames}, {"top": other}).tolist() == pytest.approx([0.1, 0.0])
    two = disagreement({"top": frames, "side": frames[:, :4]}, {"top": frames, "side": other[:, 8:12]})
    assert two.tolist() == pytest.approx([0.2, 0.0])
