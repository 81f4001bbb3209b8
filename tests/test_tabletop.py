"""The tabletop's worlds: starts, physics, success, picture, expert."""

from __future__ import annotations

from platform.envs.decision import start_keys
from platform.envs.expert import expert_actions
from platform.envs.tabletop_tasks import ABSENT, PALETTE, TASK_NAMES, all_instructions, distance, pad_half
from platform.envs.tabletop_world import TabletopWorlds

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.env import TabletopConfig
from configs.errors import DataError, EnvError

ALL = ["reach", "push", "pick_place"]


def worlds_of(tasks: list[str], seeds: list[int], **fields: object) -> TabletopWorlds:
    worlds = TabletopWorlds(TabletopConfig(tasks=tasks, **fields), len(seeds))
    worlds.reset(np.arange(len(seeds)), start_keys(np.array(seeds)))
    return worlds


def act(worlds: TabletopWorlds, dx: float, dy: float, grip: float):
    rows = np.arange(worlds.count)
    return worlds.step(rows, np.tile(np.array([[dx, dy, grip]], np.float32), (worlds.count, 1)))


def one_world(task: str, gripper, target, pad=(ABSENT, ABSENT), others=(), opening: float = 1.0, **fields):
    worlds = worlds_of([task], [0], blocks=1 + len(others), **fields)
    worlds.gripper[0], worlds.pad[0], worlds.opening[0] = gripper, pad, opening
    worlds.blocks[0] = np.array([target, *others], np.float32)
    return worlds


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=9), st.integers(1, 5))
def test_starts_keep_everything_apart_and_away_from_the_goal(seeds, blocks):
    worlds = worlds_of(ALL, seeds, blocks=blocks)
    radius = worlds.config.block_radius
    assert (worlds.blocks >= radius).all()
    assert (worlds.blocks <= 1 - radius).all()
    for first in range(blocks):
        for second in range(first):
            assert (distance(worlds.blocks[:, first], worlds.blocks[:, second]) > 2 * radius).all()
        assert (distance(worlds.blocks[:, first], worlds.pad) > pad_half(worlds.config) + radius).all()
    away = distance(worlds.gripper, worlds.blocks[:, 0])
    reach = worlds.task == TASK_NAMES.index("reach")
    assert (away[reach] >= 0.3).all()
    assert (away > worlds.config.tolerance).all()
    assert ((worlds.pad[:, 0] == ABSENT) == reach).all()
    for colours in worlds.colours:
        assert len(set(colours.tolist())) == blocks


def test_a_start_depends_on_its_seed_alone():
    together = worlds_of(ALL, list(range(20)))
    for seed in range(20):
        alone = worlds_of(ALL, [seed])
        for name in TabletopWorlds.ARRAYS:
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[seed])


def test_many_seeds_cover_every_task_instruction_and_colour():
    worlds = worlds_of(ALL, list(range(600)))
    assert set(worlds.instructions(np.arange(600))) == set(all_instructions(ALL))
    shares = np.bincount(worlds.task, minlength=3) / 600
    assert (np.abs(shares - 1 / 3) < 0.08).all()


def test_blocks_that_do_not_fit_are_an_error():
    with pytest.raises(EnvError, match="do not fit"):
        worlds_of(["pick_place"], [0], blocks=5, block_radius=0.2)


def test_moves_scale_with_the_arm_speed_and_stop_at_the_edge():
    worlds = one_world("reach", (0.5, 0.5), (0.9, 0.1))
    act(worlds, 1, -0.5, -1)
    np.testing.assert_allclose(worlds.gripper[0], [0.53, 0.485], atol=1e-6)
    for _ in range(40):
        act(worlds, -1, 1, -1)
    np.testing.assert_allclose(worlds.gripper[0], [0.04, 0.96], atol=1e-6)


def test_reach_succeeds_within_tolerance_of_the_target_only():
    worlds = one_world("reach", (0.5, 0.5), (0.615, 0.5), others=[(0.4, 0.5)], reach_hold=1)
    assert not act(worlds, 0, 0, -1).terminated[0]
    outcome = act(worlds, 1, 0, -1)
    assert not outcome.terminated[0]
    outcome = act(worlds, 1, 0, -1)
    assert outcome.terminated[0]
    assert outcome.reward[0] == 1


def test_reach_must_be_held_without_a_break():
    worlds = one_world("reach", (0.5, 0.5), (0.57, 0.5), reach_hold=3)
    # Within 0.08 after each of: here, here, out, back, here, here.
    moves = [0, 0, -1, 1, 0, 0]
    ended = [bool(act(worlds, move, 0, -1).terminated[0]) for move in moves]
    assert ended == [False, False, False, False, False, True]


def test_time_limit_truncates_and_success_at_the_limit_terminates():
    worlds = one_world("reach", (0.5, 0.5), (0.9, 0.9), max_episode_steps=3)
    outcomes = [act(worlds, 0, 0, -1) for _ in range(3)]
    assert [bool(o.truncated[0]) for o in outcomes] == [False, False, True]
    worlds = one_world("reach", (0.5, 0.5), (0.6, 0.5), max_episode_steps=1, reach_hold=1)
    outcome = act(worlds, 1, 0, -1)
    assert outcome.terminated[0]
    assert not outcome.truncated[0]


def test_pick_carry_and_place():
    worlds = one_world("pick_place", (0.5, 0.5), (0.53, 0.5), pad=(0.5, 0.7), others=[(0.2, 0.2)])
    act(worlds, 0, 0, 1)
    assert worlds.held[0] == -1
    act(worlds, 0, 0, 1)
    assert worlds.held[0] == 0
    for _ in range(6):
        outcome = act(worlds, 0, 1, 1)
        np.testing.assert_array_equal(worlds.blocks[0, 0], worlds.gripper[0])
        assert not outcome.terminated[0], "a held block does not rest on the pad"
    assert not act(worlds, 0, 0, -1).terminated[0], "one opening command does not drop it"
    assert act(worlds, 0, 0, -1).terminated[0]
    np.testing.assert_allclose(worlds.blocks[0, 0], [0.5, 0.68], atol=1e-5)


def test_closing_out_of_tolerance_or_closed_all_along_holds_nothing():
    worlds = one_world("pick_place", (0.5, 0.5), (0.6, 0.5), pad=(0.5, 0.8))
    act(worlds, 0, 0, 1)
    act(worlds, 0, 0, 1)
    assert worlds.held[0] == -1
    for _ in range(3):
        act(worlds, 1, 0, 1)
    assert worlds.held[0] == -1
    np.testing.assert_allclose(worlds.blocks[0, 0], [0.6, 0.5], atol=1e-6)


def test_closing_takes_the_nearest_block():
    worlds = one_world("pick_place", (0.5, 0.5), (0.43, 0.5), pad=(0.5, 0.8), others=[(0.55, 0.5)])
    act(worlds, 0, 0, 1)
    act(worlds, 0, 0, 1)
    assert worlds.held[0] == 1


def test_a_lowered_pusher_pushes_and_a_raised_one_passes_over():
    raised = one_world("push", (0.3, 0.5), (0.5, 0.5), pad=(0.8, 0.5))
    lowered = one_world("push", (0.3, 0.5), (0.5, 0.5), pad=(0.8, 0.5), opening=0.0)
    for _ in range(8):
        act(raised, 1, 0, -1)
        act(lowered, 1, 0, 1)
    np.testing.assert_allclose(raised.blocks[0, 0], [0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(lowered.blocks[0, 0], [0.54 + 0.115, 0.5], atol=2e-3)
    assert lowered.held[0] == -1


def test_a_pushed_block_pushes_the_next_and_the_edge_stops_all():
    worlds = one_world("push", (0.3, 0.5), (0.5, 0.5), pad=(0.5, 0.2), others=[(0.66, 0.5)], opening=0.0)
    for _ in range(40):
        act(worlds, 1, 0, 1)
        x = [worlds.gripper[0, 0], *worlds.blocks[0, :, 0]]
        assert x == sorted(x)
        assert worlds.blocks.max() <= 1 - worlds.config.block_radius + 1e-6
    assert worlds.blocks[0, 1, 0] > 0.92
    assert distance(worlds.blocks[0, 0], worlds.blocks[0, 1]) > 0.12
    assert distance(worlds.gripper[0], worlds.blocks[0, 0]) > 0.1


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000))
def test_pushing_about_stays_on_the_table_and_never_flings(seed):
    worlds = worlds_of(["push"], [seed] * 4, blocks=5, max_episode_steps=1000)
    rng = np.random.default_rng(seed)
    rows = np.arange(4)
    for _ in range(60):
        before = worlds.blocks.copy()
        target = worlds.blocks[rows, rng.integers(5, size=4)] - worlds.gripper
        actions = np.concatenate([target * 30, rng.uniform(-0.3, 1, (4, 1))], axis=1).astype(np.float32)
        worlds.step(rows, actions)
        assert np.abs(worlds.blocks - before).max() <= 2 * worlds.config.arm_speed + 1e-6
        assert worlds.blocks.min() >= worlds.config.block_radius - 1e-6
        assert worlds.blocks.max() <= 1 - worlds.config.block_radius + 1e-6
        assert worlds.proprio(rows).min() >= 0
        assert worlds.proprio(rows).max() <= 1


@pytest.mark.parametrize(("task", "least"), [("reach", 0.98), ("push", 0.9), ("pick_place", 0.95)])
def test_the_expert_succeeds(task, least):
    worlds = worlds_of([task], list(range(1000, 1128)))
    running = np.arange(128)
    success = np.zeros(128, bool)
    while len(running):
        outcome = worlds.step(running, expert_actions(worlds, running))
        success[running] |= outcome.terminated
        running = running[~(outcome.terminated | outcome.truncated)]
    assert success.mean() >= least


def test_a_held_block_looks_unlike_one_under_a_closed_gripper():
    closed = one_world("pick_place", (0.5, 0.5), (0.5, 0.5), pad=(0.2, 0.8), opening=0.0)
    held = one_world("pick_place", (0.5, 0.5), (0.5, 0.5), pad=(0.2, 0.8), opening=0.0)
    held.held[0] = 0
    differs = np.abs(closed.draw(np.arange(1)).astype(int) - held.draw(np.arange(1)))[0].max(axis=-1) > 60
    assert differs.sum() >= 12


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("task", ALL)
def test_the_picture_shows_the_opening_and_sub_pixel_moves(size, task):
    pad = (ABSENT, ABSENT) if task == "reach" else (0.2, 0.8)
    pictures = [
        one_world(task, (0.5, 0.5), (0.8, 0.3), pad=pad, opening=opening, camera_size=size).draw(np.arange(1))
        for opening in (0.0, 0.5, 1.0)
    ]
    for picture in pictures:
        assert picture.shape == (1, size, size, 3)
        assert picture.dtype == np.uint8
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert (np.abs(pictures[first].astype(int) - pictures[second]).max(axis=-1) > 40).sum() >= 4
    moved = one_world(task, (0.5 + 0.2 / size, 0.5), (0.8, 0.3), pad=pad, camera_size=size).draw(np.arange(1))
    assert np.abs(moved.astype(int) - pictures[2]).max() >= 10


def test_blocks_show_their_own_colour_at_their_place():
    worlds = worlds_of(["reach"], list(range(64)), blocks=5, camera_size=64)
    frames = worlds.draw(np.arange(64))
    palette = np.array(list(PALETTE.values()))
    for row in range(64):
        for block in range(5):
            if distance(worlds.blocks[row, block], worlds.gripper[row]) > 0.25:
                x, y = (worlds.blocks[row, block] * 64).astype(int)
                np.testing.assert_array_equal(frames[row, y, x], palette[worlds.colours[row, block]])


def test_a_world_is_drawn_the_same_alone_and_in_a_batch():
    worlds = worlds_of(ALL, list(range(24)), blocks=5)
    worlds.held[::3] = 1
    together = worlds.draw(np.arange(24))
    for row in range(24):
        np.testing.assert_array_equal(worlds.draw(np.array([row]))[0], together[row])


def test_state_and_load_continue_bit_for_bit():
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (20, 6, 3)).astype(np.float32)
    rows = np.arange(6)
    worlds, other = worlds_of(ALL, list(range(6))), worlds_of(ALL, list(range(50, 56)))
    for action in actions[:10]:
        worlds.step(rows, action)
    other.load(worlds.state())
    for action in actions[10:]:
        worlds.step(rows, action)
        other.step(rows, action)
        np.testing.assert_array_equal(worlds.draw(rows), other.draw(rows))
    for name in TabletopWorlds.ARRAYS:
        np.testing.assert_array_equal(getattr(worlds, name), getattr(other, name))


def test_state_of_another_shape_is_refused():
    with pytest.raises(DataError, match="gripper"):
        worlds_of(ALL, [0, 1]).load(worlds_of(ALL, [0]).state())
