"""The tabletop behind Gymnasium's interfaces."""

from __future__ import annotations

import warnings
from platform.envs.tabletop import ENV_ID, TabletopEnv, TabletopVectorEnv

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from configs.env import TabletopConfig
from configs.errors import EnvError

SHORT = TabletopConfig(tasks=["reach", "push", "pick_place"], max_episode_steps=3)
STILL = np.zeros((4, 3), np.float32)


def same(first, second) -> bool:
    return (
        np.array_equal(first["image"], second["image"])
        and np.array_equal(first["proprio"], second["proprio"])
        and first["instruction"] == second["instruction"]
    )


@pytest.mark.parametrize("tasks", [["reach"], ["push", "pick_place"]])
def test_gymnasiums_checker_accepts_it(tasks):
    env = gymnasium.make(f"platform.envs.tabletop:{ENV_ID}", tasks=tasks, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_the_registered_vector_environment_fits_its_spaces():
    env = gymnasium.make_vec(f"platform.envs.tabletop:{ENV_ID}", num_envs=5, tasks=["push"], camera_size=64)
    assert isinstance(env.unwrapped, TabletopVectorEnv)
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    for _ in range(3):
        observation, rewards, terminated, truncated, info = env.step(env.action_space.sample())
        assert observation in env.observation_space
        assert rewards.shape == terminated.shape == truncated.shape == info["is_success"].shape == (5,)


def test_seeds_are_per_world():
    vector = TabletopVectorEnv(4, SHORT)
    by_int, _ = vector.reset(seed=7)
    by_list, _ = TabletopVectorEnv(4, SHORT).reset(seed=[7, 8, 9, 10])
    assert same(by_int, by_list)
    for world in range(4):
        alone, _ = TabletopEnv(SHORT).reset(seed=7 + world)
        np.testing.assert_array_equal(alone["image"], by_int["image"][world])
        assert alone["instruction"] == by_int["instruction"][world]


def test_later_starts_do_not_depend_on_the_other_worlds():
    one, four = TabletopVectorEnv(1, SHORT), TabletopVectorEnv(4, SHORT)
    one.reset(seed=[9])
    four.reset(seed=[3, 1, 9, 5])
    for _ in range(9):
        alone, *_ = one.step(STILL[:1])
        together, *_ = four.step(STILL)
        np.testing.assert_array_equal(alone["image"][0], together["image"][2])


def test_next_step_mode_keeps_the_final_observation_and_then_resets():
    env = TabletopVectorEnv(4, SHORT)
    first, _ = env.reset(seed=0)
    for _ in range(3):
        observation, _, _, truncated, _ = env.step(STILL)
    assert truncated.all()
    assert observation["instruction"] == first["instruction"]
    observation, rewards, terminated, truncated, _ = env.step(STILL + 1)
    assert not (terminated | truncated).any()
    assert not rewards.any()
    assert (env.worlds.steps == 0).all()
    assert not same(observation, first)


def test_same_step_mode_gives_the_final_observation_in_info():
    env, reference = (
        TabletopVectorEnv(4, SHORT, autoreset_mode=AutoresetMode.SAME_STEP),
        TabletopVectorEnv(4, SHORT, autoreset_mode=AutoresetMode.DISABLED),
    )
    env.reset(seed=0)
    reference.reset(seed=0)
    move = np.tile(np.array([[0.5, -0.5, 1]], np.float32), (4, 1))
    for _ in range(3):
        observation, _, terminated, truncated, info = env.step(move)
        expected, *_ = reference.step(move)
    ended = terminated | truncated
    assert ended.all()
    np.testing.assert_array_equal(info["_final_obs"], ended)
    for world in range(4):
        assert same(
            info["final_obs"][world],
            {
                "image": expected["image"][world],
                "proprio": expected["proprio"][world],
                "instruction": expected["instruction"][world],
            },
        )
    np.testing.assert_array_equal(info["final_info"]["is_success"], terminated)
    assert not same(observation, expected)


def test_disabled_mode_resets_by_mask_only():
    env = TabletopVectorEnv(4, SHORT, autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=0)
    for _ in range(2):
        env.step(STILL)
    mask = np.array([False, True, False, False])
    before = env.worlds.state()
    env.reset(seed=[None, 11, None, None], options={"reset_mask": mask})
    for name, array in env.worlds.state().items():
        np.testing.assert_array_equal(array[~mask], before[name][~mask])
    np.testing.assert_array_equal(env.worlds.steps, [2, 0, 2, 2])
    env.step(STILL)
    with pytest.raises(EnvError, match="reset_mask"):
        env.step(STILL)
    env.reset(options={"reset_mask": ~mask})
    np.testing.assert_array_equal(env.worlds.steps, [0, 1, 0, 0])
    env.step(STILL)


@pytest.mark.parametrize(
    "mask", [[True, False, False, False], np.ones(3, bool), np.zeros(4, bool), np.ones(4)]
)
def test_a_bad_mask_is_refused(mask):
    with pytest.raises(EnvError, match="reset_mask"):
        TabletopVectorEnv(4, SHORT).reset(options={"reset_mask": mask})


def test_bad_seeds_and_actions_are_refused():
    env = TabletopVectorEnv(4, SHORT)
    with pytest.raises(EnvError, match="3 seeds"):
        env.reset(seed=[1, 2, 3])
    env.reset(seed=0)
    with pytest.raises(EnvError, match="finite"):
        env.step(np.full((4, 3), np.nan))
    with pytest.raises(EnvError, match="finite"):
        env.step(np.zeros((3, 3)))


def test_state_and_load_continue_bit_for_bit_across_resets():
    env, other = TabletopVectorEnv(4, SHORT), TabletopVectorEnv(4, SHORT)
    env.reset(seed=0)
    env.step(STILL)
    other.load(env.state())
    rng = np.random.default_rng(1)
    for _ in range(9):
        actions = rng.uniform(-1, 1, (4, 3)).astype(np.float32)
        first, second = env.step(actions), other.step(actions)
        assert same(first[0], second[0])
        np.testing.assert_array_equal(first[3], second[3])


def test_render_gives_the_frames():
    env = TabletopVectorEnv(4, SHORT, render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    frames = env.render()
    assert frames is not None
    np.testing.assert_array_equal(np.stack(frames), observation["image"])
    assert TabletopVectorEnv(4, SHORT).render() is None
