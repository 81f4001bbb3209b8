"""Imagined worlds behind Gymnasium's interfaces: a model that brightens, where every number is known."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from configs.errors import DataError, EnvError
from tests.model_parts import SPEC, encode
from tests.test_imagined_env import Brightening, Brightness, Doubtful, Levels, start
from world_models.base import normalized_actions
from world_models.imagined_actions import make_actions
from world_models.imagined_env import ImaginedWorlds
from world_models.imagined_single_env import ImaginedEnv
from world_models.imagined_vector_env import ImaginedVectorEnv

WIDTH = SPEC.replan * SPEC.action_dim


def levels(*values: int) -> Levels:
    return start(list(values))


def always(level: int) -> Any:
    return lambda count, generator: levels(*[level] * count)


def drawn(count: int, generator: np.random.Generator) -> Levels:
    return levels(*generator.integers(0, 60, count).tolist())


def worlds(obs: Any = None, **settings: Any) -> ImaginedWorlds:
    chosen = {"threshold": 0.5, "reward": "success", "seed": 0, **settings}
    return ImaginedWorlds(obs or Brightening(), Brightness(), encode=encode, **chosen)


def env(
    count: int, *, obs: Any = None, horizon: int = 3, starts: Any = drawn, mode: str = "NextStep", **more: Any
):
    actions = make_actions(more.pop("actions", "tokens"), SPEC)
    settings = {key: more.pop(key) for key in ("max_disagreement", "reward") if key in more}
    return ImaginedVectorEnv(
        worlds(obs, **settings),
        count,
        horizon=horizon,
        actions=actions,
        starts=starts,
        autoreset_mode=mode,
        **more,
    )


def act(*values: int) -> NDArray[np.int64]:
    """The first executed token of each world: 20 grey levels per unit, see ``Brightening``."""
    actions = np.zeros((len(values), WIDTH), np.int64)
    actions[:, 0] = values
    return actions


def brightness(observation: dict[str, Any]) -> list[int]:
    return observation["top"][:, 0, 0, 0].tolist()


def test_success_terminates_and_the_horizon_truncates() -> None:
    """Levels 40 and 0, success at 100, horizon 2: 20 levels per unit of the first token."""
    one = env(2, horizon=2, mode="Disabled", starts=None)
    observation, info = one.reset(options={"starts": levels(40, 0)})
    assert brightness(observation) == [40, 0]
    np.testing.assert_allclose(info["success_probability"], [0.2, 0.0])
    observation, rewards, terminated, truncated, info = one.step(act(2, 1))
    assert (rewards.tolist(), terminated.any(), truncated.any()) == ([0.0, 0.0], False, False)
    observation, rewards, terminated, truncated, info = one.step(act(3, 1))
    assert brightness(observation) == [140, 40]
    assert rewards.dtype == np.float64
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == (
        [1.0, 0.0],
        [True, False],
        [False, True],
    )
    assert info["is_success"].tolist() == [True, False]
    assert not one.running.any()


def test_success_in_the_last_decision_is_no_truncation() -> None:
    one = env(1, horizon=1, mode="Disabled", starts=always(90))
    one.reset()
    _, rewards, terminated, truncated, _ = one.step(act(3))
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([1.0], [True], [False])


def test_next_step_starts_anew_one_step_later() -> None:
    """The step after an end ignores the action, earns nothing, and shows the next start; horizon 2 from level 10."""
    one = env(2, horizon=2, starts=always(10))
    assert one.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    one.reset(seed=0)
    one.step(act(1, 1))
    observation, _, _, truncated, _ = one.step(act(1, 1))
    assert truncated.all()
    assert brightness(observation) == [50, 50]
    observation, rewards, terminated, truncated, info = one.step(act(3, 3))
    assert brightness(observation) == [10, 10]
    assert not rewards.any()
    assert not (terminated | truncated).any()
    assert not info["_stepped"].any()
    observation, _, _, truncated, info = one.step(act(1, 1))
    assert brightness(observation) == [30, 30]
    assert not truncated.any()
    assert info["_stepped"].all()
    assert info["stepped"].all()


def test_next_step_leaves_the_others_alone() -> None:
    """The first succeeds at once; the second goes on while the first starts anew, and keeps its own horizon."""
    one = env(2, horizon=3, starts=always(0), mode="NextStep")
    one.reset(options={"starts": levels(90, 0)})
    _, _, terminated, _, _ = one.step(act(1, 1))
    assert terminated.tolist() == [True, False]
    observation, _, terminated, truncated, info = one.step(act(3, 1))
    assert brightness(observation) == [0, 40]
    assert not (terminated | truncated).any()
    assert info["_stepped"].tolist() == [False, True]
    observation, _, _, truncated, _ = one.step(act(1, 1))
    assert brightness(observation) == [20, 60]
    assert truncated.tolist() == [False, True]


def test_same_step_hands_over_the_true_last_observation() -> None:
    one = env(2, horizon=1, starts=always(10), mode=AutoresetMode.SAME_STEP)
    one.reset(options={"starts": levels(90, 10), "horizon": 2})
    observation, rewards, terminated, truncated, info = one.step(act(1, 1))
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == (
        [1.0, 0.0],
        [True, False],
        [False, False],
    )
    assert brightness(observation) == [10, 30]
    assert info["_final_obs"].tolist() == [True, False]
    assert info["final_obs"][0]["top"][0, 0, 0] == 110
    assert info["final_obs"][0] in one.single_observation_space
    assert info["final_obs"][1] is None
    assert info["final_info"]["is_success"].tolist() == [True, False]
    assert info["_is_success"].tolist() == [False, True]
    observation, _, _, truncated, info = one.step(act(1, 1))
    assert truncated.tolist() == [False, True]
    assert brightness(observation) == [30, 10]
    assert info["final_obs"][1]["top"][0, 0, 0] == 50


def test_disabled_keeps_what_ended_until_it_is_reset() -> None:
    """It says that it ended, earns nothing, and leaves the forward pass."""
    obs = Brightening()
    one = env(2, obs=obs, horizon=9, starts=always(20), mode="Disabled")
    one.reset(options={"starts": levels(90, 0)})
    one.step(act(1, 1))
    observation, rewards, terminated, _, info = one.step(act(3, 1))
    assert brightness(observation) == [110, 40]
    assert (rewards.tolist(), terminated.tolist()) == ([0.0, 0.0], [True, False])
    assert info["stepped"].tolist() == [False, True]
    assert obs.rows == [2, 1]
    observation, info = one.reset(options={"reset_mask": terminated})
    assert brightness(observation) == [20, 40]
    assert info["_is_success"].tolist() == [True, False]
    _, _, terminated, truncated, _ = one.step(act(1, 1))
    assert not (terminated | truncated).any()
    assert obs.rows == [2, 1, 2]


def test_broken_and_doubtful_steps_truncate_before_they_count() -> None:
    """The last observation is the one before; nothing was earned, success in a doubtful step included."""
    one = env(3, obs=Brightening(break_row=1), horizon=9, mode="Disabled")
    one.reset(options={"starts": levels(10, 20, 30)})
    observation, rewards, terminated, truncated, info = one.step(act(1, 1, 1))
    assert brightness(observation) == [30, 20, 50]
    assert (terminated.any(), truncated.tolist()) == (False, [False, True, False])
    assert info["failed"].tolist() == [False, True, False]
    doubtful = env(2, obs=Doubtful([13, 12]), horizon=9, mode="Disabled", max_disagreement=0.05)
    doubtful.reset(options={"starts": levels(90, 90)})
    _, rewards, terminated, truncated, info = doubtful.step(act(1, 1))
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == (
        [0.0, 1.0],
        [False, True],
        [True, False],
    )
    assert info["uncertain"].tolist() == [True, False]


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", ["tokens", "continuous"])
def test_what_it_returns_lies_in_its_spaces(mode: AutoresetMode, kind: str) -> None:
    one = env(4, mode=mode, actions=kind, horizon=2)
    assert one.observation_space == batch_space(one.single_observation_space, 4)
    assert one.action_space == batch_space(one.single_action_space, 4)
    one.action_space.seed(3)
    observation, info = one.reset(seed=3)
    for _ in range(7):
        assert observation in one.observation_space
        for name in [name for name in info if not name.startswith("_")]:
            assert (info[f"_{name}"].shape, info[f"_{name}"].dtype) == ((4,), np.bool_)
        observation, rewards, terminated, truncated, info = one.step(one.action_space.sample())
        assert rewards.shape == terminated.shape == truncated.shape == (4,)
        assert not (terminated & truncated).any()
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            observation, info = one.reset(options={"reset_mask": terminated | truncated})


def test_the_same_seed_gives_the_same_episodes_and_another_others() -> None:
    def play(seed: Any) -> list[Any]:
        one = env(3, horizon=2)
        one.action_space.seed(0)
        seen = [brightness(one.reset(seed=seed)[0])]
        return seen + [brightness(one.step(one.action_space.sample())[0]) for _ in range(6)]

    assert play(5) == play(5)
    assert play([1, 2, 3]) == play([1, 2, 3])
    assert play(5) != play(6)
    one = env(3)
    first = brightness(one.reset(seed=5)[0])
    assert brightness(one.reset()[0]) != first
    assert brightness(one.reset(seed=5)[0]) == first


def test_continuous_actions_fall_into_the_bin_whose_centre_is_nearest() -> None:
    """Tokens to the centres of their bins and back; the bounds and beyond are the outermost bins."""
    actions = make_actions("continuous", SPEC)
    tokens = np.arange(SPEC.bins)
    centres = normalized_actions(torch.from_numpy(tokens), SPEC.bins).numpy()
    rows = np.repeat(centres[:, None], WIDTH, axis=1)
    assert actions.tokens(rows)[:, 0, 0].tolist() == tokens.tolist()
    assert actions.tokens(rows)[:, SPEC.replan :].max(initial=0) == 0
    edges = np.array([[-1.0], [1.0], [-7.0], [7.0]]) * np.ones(WIDTH)
    assert actions.tokens(edges)[:, 1, 1].tolist() == [0, 3, 0, 3]


def test_frames_are_rendered_on_request() -> None:
    one = env(2, render_mode="rgb_array")
    assert one.render() is None
    one.reset(options={"starts": levels(7, 9)})
    assert [int(frame[0, 0, 0]) for frame in one.render() or ()] == [7, 9]
    assert env(1).render() is None


def test_mistakes_are_one_line() -> None:
    one = env(2, mode="Disabled", starts=None)
    with pytest.raises(EnvError, match="nothing was reset"):
        one.step(act(0, 0))
    with pytest.raises(EnvError, match="no source of starts"):
        one.reset()
    with pytest.raises(EnvError, match="never started"):
        one.reset(options={"reset_mask": np.array([True, False]), "starts": levels(1)})
    with pytest.raises(EnvError, match="1 starts for 2 worlds"):
        one.reset(options={"starts": levels(1)})
    one.reset(options={"starts": levels(1, 2)})
    for bad in (act(0), act(0, SPEC.bins), act(0, 0).astype(np.float32), act(0, -1)):
        with pytest.raises(EnvError, match="actions of shape"):
            one.step(bad)
    for mask in ([True, True], np.ones(3, bool), np.zeros(2, bool)):
        with pytest.raises(EnvError, match="reset_mask"):
            one.reset(options={"reset_mask": mask})
    with pytest.raises(DataError, match="start proprio"):
        one.reset(options={"starts": replace(start([1, 2]), proprio=np.zeros((2, 2), np.float32))})
    with pytest.raises(ValueError, match="nonsense"):
        env(1, mode="nonsense")


def single(**more: Any) -> ImaginedEnv:
    render = more.pop("render_mode", None)
    return ImaginedEnv(env(1, mode="Disabled", **more), render_mode=render)


@pytest.mark.parametrize("kind", ["tokens", "continuous"])
def test_gymnasiums_checker_accepts_one_world(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Proprio has no known bounds.
        warnings.filterwarnings("ignore", message=".*(minimum|maximum) value.*infinity")
        check_env(single(actions=kind, render_mode="rgb_array"), skip_render_check=True)


def test_one_world_is_the_vector_of_one() -> None:
    one = single(horizon=2, starts=always(90))
    observation, info = one.reset(seed=1)
    assert observation["top"].shape == (16, 16, 3)
    assert info["is_success"] == np.False_
    observation, reward, terminated, truncated, info = one.step(act(1)[0])
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["is_success"]
    assert observation["top"][0, 0, 0] == 110
    with pytest.raises(EnvError, match="has ended"):
        one.step(act(1)[0])


def test_gymnasiums_own_wrappers_take_it() -> None:
    """Statistics of episodes by the contract of a vector environment: with horizon 2 each lasts two decisions."""
    one = gymnasium.wrappers.vector.RecordEpisodeStatistics(env(3, horizon=2, starts=always(0)))
    one.reset(seed=0)
    lengths = []
    for _ in range(6):
        *_, info = one.step(act(1, 1, 1))
        lengths += info["episode"]["l"][info["_episode"]].tolist() if "episode" in info else []
    assert lengths == [2] * 6
