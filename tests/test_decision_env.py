"""Whole decisions on the tabletop."""

from __future__ import annotations

from platform.envs import env_spec, make_env
from platform.envs.base import StepResult
from platform.envs.decision import TabletopDecisionEnv
from platform.envs.expert import expert_actions, expert_chunks

import numpy as np

from configs.env import TabletopConfig

REACH = TabletopConfig(tasks=["reach"])


def make(
    config: TabletopConfig = REACH, slots: int = 6, chunk: int = 4, replan: int = 4
) -> TabletopDecisionEnv:
    env = make_env(config, slots, chunk=chunk, replan=replan)
    assert isinstance(env, TabletopDecisionEnv)
    return env


def test_spec_tells_what_observations_are():
    env = make(TabletopConfig(tasks=["push", "reach"], camera_size=64))
    assert env.spec == env_spec(TabletopConfig(tasks=["push", "reach"], camera_size=64))
    observation = env.reset(np.arange(6), np.arange(6))
    assert observation.images["top"].shape == (6, *env.spec.cameras["top"], 3)
    assert observation.images["top"].dtype == np.uint8
    assert observation.proprio.shape == (6, env.spec.proprio_dim)
    assert observation.proprio.dtype == np.float32
    assert set(observation.instructions) <= set(env.spec.instructions)
    assert set(env.tasks(np.arange(6))) <= set(env.spec.tasks)


def test_only_replan_actions_are_executed():
    env = make(replan=2)
    env.reset(np.arange(6), np.arange(6))
    result = env.step(np.arange(6), np.zeros((6, 4, 3), np.float32))
    np.testing.assert_array_equal(result.valid, np.tile([True, True, False, False], (6, 1)))
    assert (env.worlds.steps == 2).all()


def test_only_the_slots_asked_for_are_stepped_and_answers_follow_their_order():
    env = make()
    env.reset(np.arange(6), np.arange(6))
    before = env.worlds.state()
    slots = np.array([4, 1])
    actions = np.zeros((2, 4, 3), np.float32)
    actions[0, :, 0], actions[1, :, 0] = 0.5, -0.5
    result = env.step(slots, actions)
    moved = env.worlds.gripper[:, 0] - before["gripper"][:, 0]
    assert moved[4] > 0 > moved[1]
    np.testing.assert_array_equal(moved[[0, 2, 3, 5]], 0)
    np.testing.assert_array_equal(result.observation.proprio, env.worlds.proprio(slots))


def test_a_row_stops_where_its_episode_ends():
    env = make(TabletopConfig(tasks=["reach"], reach_hold=1), slots=2)
    env.reset(np.arange(2), np.arange(2))
    env.worlds.gripper[0], env.worlds.blocks[0, 0] = (0.5, 0.5), (0.6, 0.5)
    env.worlds.gripper[1], env.worlds.blocks[1, 0] = (0.5, 0.5), (0.9, 0.9)
    actions = np.zeros((2, 4, 3), np.float32)
    actions[:, :, 0] = [[0.5, 1.0, 1.0, 1.0]]
    result = env.step(np.arange(2), actions)
    np.testing.assert_array_equal(result.valid, [[True, True, False, False], [True] * 4])
    np.testing.assert_array_equal(result.rewards, [[0, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(result.terminated, [True, False])
    np.testing.assert_array_equal(result.success, [True, False])
    assert not result.truncated.any()
    np.testing.assert_allclose(result.observation.proprio[0, :2], [0.545, 0.5], atol=1e-6)
    assert env.worlds.steps[0] == 2
    np.testing.assert_allclose(result.chunk_rewards(0.9), [0.9, 0.0])


def test_truncation_inside_a_chunk_keeps_the_true_final_observation():
    env = make(TabletopConfig(tasks=["reach"], max_episode_steps=6), slots=3)
    slots = np.arange(3)
    env.reset(slots, slots)
    rng = np.random.default_rng(0)
    env.step(slots, rng.uniform(-0.2, 0.2, (3, 4, 3)).astype(np.float32))
    result = env.step(slots, rng.uniform(-0.2, 0.2, (3, 4, 3)).astype(np.float32))
    assert result.truncated.all()
    assert not result.terminated.any()
    assert (result.valid.sum(axis=1) == 2).all()
    np.testing.assert_array_equal(result.observation.images["top"], env.worlds.draw(slots))


def test_a_chunk_equals_its_env_steps():
    env, single = (
        make(TabletopConfig(tasks=["push"])),
        make(TabletopConfig(tasks=["push"]), chunk=1, replan=1),
    )
    slots = np.arange(6)
    env.reset(slots, slots)
    single.reset(slots, slots)
    actions = np.random.default_rng(0).uniform(-1, 1, (6, 4, 3)).astype(np.float32)
    chunked = env.step(slots, actions)
    for step in range(4):
        stepped: StepResult = single.step(slots, actions[:, step : step + 1])
    np.testing.assert_array_equal(chunked.observation.images["top"], stepped.observation.images["top"])
    np.testing.assert_array_equal(chunked.observation.proprio, stepped.observation.proprio)


def test_expert_chunks_are_the_closed_loop():
    config = TabletopConfig(tasks=["reach", "push", "pick_place"])
    env, single = make(config, slots=12), make(config, slots=12)
    slots = np.arange(12)
    env.reset(slots, slots)
    single.reset(slots, slots)
    chunk = expert_chunks(env.worlds, slots, 4)
    np.testing.assert_array_equal(env.worlds.gripper, single.worlds.gripper)
    for step in range(4):
        actions = expert_actions(single.worlds, slots)
        np.testing.assert_array_equal(chunk[:, step], actions)
        single.worlds.step(slots, actions)


def test_state_and_load_continue_bit_for_bit():
    env, other = make(), make()
    slots = np.arange(6)
    env.reset(slots, slots)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (2, 6, 4, 3)).astype(np.float32)
    env.step(slots, actions[0])
    other.load(env.state())
    first, second = env.step(slots, actions[1]), other.step(slots, actions[1])
    np.testing.assert_array_equal(first.observation.images["top"], second.observation.images["top"])
    np.testing.assert_array_equal(first.rewards, second.rewards)
    np.testing.assert_array_equal(first.valid, second.valid)


def test_chunk_rewards_by_hand_whatever_was_not_executed():
    from platform.envs.base import Observation, StepResult

    none = np.zeros(2, np.bool_)
    result = StepResult(
        observation=Observation({}, np.zeros((2, 0), np.float32), ["", ""]),
        rewards=np.array([[1.0, 2.0, 4.0], [1.0, np.nan, 9.0]], np.float32),
        valid=np.array([[True, True, True], [True, False, False]]),
        terminated=none,
        truncated=none,
        success=none,
    )
    summed = result.chunk_rewards(0.5)
    assert summed.dtype == np.float32
    assert summed.tolist() == [3.0, 1.0]
