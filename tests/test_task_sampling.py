"""Tasks that fail come more often."""

from __future__ import annotations

from platform.envs import make_env
from platform.task_sampling import MEMORY, TaskSampler

import numpy as np

from configs.env import TabletopConfig

TASKS = ("reach", "push", "pick_place")


def test_probabilities_by_hand() -> None:
    sampler = TaskSampler(TASKS)
    np.testing.assert_allclose(sampler.probabilities(), [1 / 3, 1 / 3, 1 / 3])
    for task, success in [
        ("push", False),
        ("push", False),
        ("push", True),
        ("reach", True),
        ("pick_place", False),
    ]:
        sampler.record(task, success=success)
    # One more than the failures: 1, 3, 2 of 6.
    np.testing.assert_allclose(sampler.probabilities(), [1 / 6, 3 / 6, 2 / 6])


def test_only_recent_failures_count() -> None:
    sampler = TaskSampler(TASKS)
    for _ in range(3 * MEMORY):
        sampler.record("reach", success=False)
    assert sampler.probabilities()[0] == (1 + MEMORY) / (3 + MEMORY)
    for _ in range(MEMORY):
        sampler.record("reach", success=True)
    np.testing.assert_allclose(sampler.probabilities(), 1 / 3)


def test_choices_follow_the_probabilities_and_depend_on_seed_and_outcomes_alone() -> None:
    sampler, twin = TaskSampler(TASKS), TaskSampler(TASKS)
    for _ in range(4):
        sampler.record("push", success=False)
    seeds = np.arange(3000)
    chosen = sampler.choose(seeds)
    counts = np.array([chosen.count(task) for task in TASKS])
    # Binomial with n = 3000: five deviations are 5 * sqrt(3000 * 5/7 * 2/7) = 124.
    assert np.abs(counts - 3000 * np.array([1, 5, 1]) / 7).max() < 124
    twin.load(sampler.state())
    assert twin.choose(seeds[::-1])[::-1] == chosen


def test_the_tabletop_starts_the_task_that_was_chosen() -> None:
    config = TabletopConfig(tasks=["reach", "push", "pick_place"])
    env, twin = (make_env(config, 6, chunk=4, replan=4) for _ in range(2))
    slots, seeds = np.arange(6), np.arange(6) + 40
    chosen = ["push", "reach", "pick_place", "pick_place", "reach", "push"]
    first = env.reset(slots, seeds, chosen)
    assert env.tasks(slots) == chosen
    np.testing.assert_array_equal(twin.reset(slots, seeds, chosen).images["top"], first.images["top"])
    drawn = twin.reset(slots, seeds)
    kept = twin.reset(slots, seeds, twin.tasks(slots))
    np.testing.assert_array_equal(drawn.images["top"], kept.images["top"])
    assert drawn.instructions == kept.instructions
