"""Any Gymnasium id as a decision environment."""

from __future__ import annotations

import importlib
import os
from platform.envs import env_spec, make_env
from platform.envs.gymnasium_env import resize_area

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from configs.env import GymnasiumConfig, TabletopConfig
from configs.errors import EnvError


class Line(gymnasium.Env):
    """A point on a line; the goal is at 1. ``told`` puts success into info, ``bonus`` is the reward at the goal."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None, told=True, bonus=1.0, action=None, image=False, limit=1000):
        self.render_mode = render_mode
        self.action_space = action or spaces.Box(-0.5, 0.5, (2,), np.float32)
        numbers = spaces.Box(-10, 10, (3,), np.float32)
        picture = spaces.Box(0, 255, (8, 12, 3), np.uint8)
        self.observation_space = (
            spaces.Dict({"robot": spaces.Dict({"state": numbers}), "eye": picture}) if image else numbers
        )
        self._told, self._bonus, self._image, self._limit = told, bonus, image, limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t, self.seen = float(self.np_random.uniform(-1, 0)), 0, []
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        self.seen.append(action)
        self.x += float(action[0])
        there = self.x >= 1
        info = {"is_success": there} if self._told else {}
        return self._observe(), self._bonus if there else 0.0, there, self.t >= self._limit, info

    def _observe(self):
        state = np.array([self.x, self.t, 0], np.float32)
        return (
            {"robot": {"state": state}, "eye": np.full((8, 12, 3), self.t, np.uint8)}
            if self._image
            else state
        )

    def render(self):
        return np.full((20, 30, 3), 10 * self.t, np.uint8) if self.render_mode else None


gymnasium.register("ReverieTest/Line-v0", entry_point=Line, disable_env_checker=True)
SLOTS = np.arange(3)


def config(**fields) -> GymnasiumConfig:
    return GymnasiumConfig(id="ReverieTest/Line-v0", **{"camera_size": 10, "overlap": "none", **fields})


def test_spec_and_observation():
    env = make_env(config(instruction="go right"), 3, chunk=2, replan=2)
    assert env.spec == env_spec(config(instruction="go right"))
    assert env.spec.action_low == (-0.5, -0.5)
    assert env.spec.action_high == (0.5, 0.5)
    observation = env.reset(SLOTS, np.array([5, 6, 5]))
    assert observation.images["camera"].shape == (3, 10, 10, 3)
    assert observation.proprio.shape == (3, 3)
    assert observation.instructions == ["go right"] * 3
    np.testing.assert_array_equal(observation.proprio[0], observation.proprio[2])
    assert observation.proprio[0, 0] != observation.proprio[1, 0]
    assert env.state() is None
    env.close()


def test_a_chunk_stops_at_the_end_and_answers_follow_the_slots():
    env = make_env(config(), 3, chunk=4, replan=3)
    env.reset(SLOTS, SLOTS)
    for slot, x in enumerate((0.4, -5.0, 0.8)):
        env._envs[slot].unwrapped.x = x
    result = env.step(np.array([2, 1, 0]), np.full((3, 4, 2), 0.5, np.float32))
    np.testing.assert_array_equal(result.valid, [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]])
    np.testing.assert_array_equal(result.rewards, [[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(result.terminated, [True, False, True])
    np.testing.assert_array_equal(result.success, [True, False, True])
    np.testing.assert_allclose(result.observation.proprio[:, 0], [1.3, -3.5, 1.4], atol=1e-6)
    np.testing.assert_array_equal(result.observation.images["camera"][:, 0, 0, 0], [10, 30, 20])


def test_actions_are_clipped_to_the_space():
    env = make_env(config(), 1, chunk=1, replan=1)
    env.reset(SLOTS[:1], SLOTS[:1])
    env.step(SLOTS[:1], np.array([[[9, -9]]], np.float32))
    np.testing.assert_array_equal(env._envs[0].unwrapped.seen[0], np.array([0.5, -0.5], np.float32))


@pytest.mark.parametrize("fields", [{"max_episode_steps": 3}, {"kwargs": {"limit": 3}}])
def test_either_time_limit_truncates(fields):
    env = make_env(config(**fields), 1, chunk=2, replan=2)
    slot, still = SLOTS[:1], np.zeros((1, 2, 2), np.float32)
    env.reset(slot, slot)
    assert not env.step(slot, still).truncated[0]
    result = env.step(slot, still)
    assert result.truncated[0]
    assert not result.terminated[0]
    np.testing.assert_array_equal(result.valid, [[True, False]])


@pytest.mark.parametrize(
    ("told", "bonus", "success"), [(True, 0.0, True), (False, 1.0, True), (False, 0.0, False)]
)
def test_success_comes_from_info_else_from_a_rewarded_end(told, bonus, success):
    env = make_env(config(kwargs={"told": told, "bonus": bonus}), 1, chunk=1, replan=1)
    env.reset(SLOTS[:1], SLOTS[:1])
    env._envs[0].unwrapped.x = 0.9
    result = env.step(SLOTS[:1], np.full((1, 1, 2), 0.5, np.float32))
    assert result.terminated[0]
    assert bool(result.success[0]) is success


def test_image_and_proprio_from_a_nested_observation():
    fields = {"image": "observation", "image_key": "eye", "kwargs": {"image": True}}
    env = make_env(config(proprio_key="robot.state", **fields), 1, chunk=1, replan=1)
    env.reset(SLOTS[:1], SLOTS[:1])
    result = env.step(SLOTS[:1], np.zeros((1, 1, 2), np.float32))
    assert (result.observation.images["camera"] == 1).all()
    assert result.observation.proprio[0, 1] == 1
    assert env_spec(config(**fields)).proprio_dim == 0


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (GymnasiumConfig(), "no environment is named"),
        (GymnasiumConfig(id="ReverieTest/None-v0"), "cannot make"),
        (GymnasiumConfig(id="no_such_package:Env-v0"), "cannot make"),
        (config(kwargs={"nonsense": 1}), "cannot make"),
        (config(kwargs={"action": spaces.Discrete(3)}), "action space"),
        (config(kwargs={"action": spaces.Box(-np.inf, 1, (2,))}), "no bounds"),
        (config(image="observation"), "no image"),
        (config(image="observation", image_key="eye"), "no 'eye'"),
        (config(image="observation", image_key="hand", kwargs={"image": True}), "no 'hand'"),
        (config(kwargs={"render_mode": None}), "no image"),
    ],
)
def test_a_misfit_is_one_line_with_a_remedy(broken, message):
    with pytest.raises(EnvError, match=message) as caught:
        env_spec(broken)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_broken_reward_is_an_error():
    env = make_env(config(kwargs={"bonus": float("nan")}), 1, chunk=1, replan=1)
    env.reset(SLOTS[:1], SLOTS[:1])
    env._envs[0].unwrapped.x = 0.9
    with pytest.raises(EnvError, match="reward"):
        env.step(SLOTS[:1], np.full((1, 1, 2), 0.5, np.float32))


def test_the_tabletop_through_gymnasium_equals_its_own_adapter():
    wrapped = GymnasiumConfig(
        id="platform.envs.tabletop:reverie/Tabletop-v0",
        image="observation",
        image_key="image",
        proprio_key="proprio",
        camera_size=32,
    )
    first, second = make_env(wrapped, 3, chunk=4, replan=4), make_env(TabletopConfig(), 3, chunk=4, replan=4)
    seeds = np.array([3, 1, 4])
    one, two = first.reset(SLOTS, seeds), second.reset(SLOTS, seeds)
    np.testing.assert_array_equal(one.images["camera"], two.images["top"])
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 4, 3)).astype(np.float32)
    left, right = first.step(SLOTS, actions), second.step(SLOTS, actions)
    np.testing.assert_array_equal(left.observation.images["camera"], right.observation.images["top"])
    np.testing.assert_array_equal(left.observation.proprio, right.observation.proprio)
    np.testing.assert_array_equal(left.rewards, right.rewards)
    first.close()


def test_resize_takes_the_mean_of_the_area():
    frame = np.zeros((4, 4, 3), np.uint8)
    frame[:2, :2] = 100
    frame[0, 0] = 200
    np.testing.assert_array_equal(resize_area(frame, 2)[..., 0], [[125, 0], [0, 0]])
    ramp = np.repeat(np.arange(3, dtype=np.uint8)[:, None, None] * 30, 3, axis=1).repeat(3, axis=2)
    np.testing.assert_array_equal(resize_area(ramp, 2)[:, 0, 0], [10, 50])
    assert resize_area(np.full((5, 7, 3), 9, np.uint8), 16).min() == 9


def _headless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    if "MUJOCO_GL" not in os.environ:
        monkeypatch.setenv("MUJOCO_GL", "egl")


def _exercise(settings: GymnasiumConfig) -> None:
    env = make_env(settings, 2, chunk=2, replan=2)
    slots = np.arange(2)
    first = env.reset(slots, slots)
    low, high = np.array(env.spec.action_low), np.array(env.spec.action_high)
    actions = np.random.default_rng(0).uniform(low, high, (2, 2, len(low))).astype(np.float32)
    result = env.step(slots, actions)
    assert result.valid.all()
    assert result.observation.images["camera"].shape == (2, settings.camera_size, settings.camera_size, 3)
    assert np.ptp(first.images["camera"][0].astype(int)) > 50, "the frame shows something"
    assert np.isfinite(result.observation.proprio).all()
    again = env.reset(slots, slots)
    np.testing.assert_allclose(again.proprio, first.proprio)
    env.close()


@pytest.mark.external
def test_push_t(monkeypatch):
    if importlib.util.find_spec("gym_pusht") is None:
        pytest.skip("gym-pusht is not installed")
    _headless(monkeypatch)
    settings = GymnasiumConfig(
        id="gym_pusht:gym_pusht/PushT-v0",
        kwargs={"obs_type": "pixels_agent_pos"},
        image="observation",
        image_key="pixels",
        proprio_key="agent_pos",
    )
    _exercise(settings)
    assert env_spec(settings).proprio_dim == 2


@pytest.mark.external
def test_mujoco_reacher(monkeypatch):
    if importlib.util.find_spec("mujoco") is None:
        pytest.skip("mujoco is not installed")
    _headless(monkeypatch)
    _exercise(GymnasiumConfig(id="Reacher-v5", max_episode_steps=50))
