"""LIBERO: the same physics as its own package, the same episode whoever runs it, starts and frames as its users expect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.env import EnvConfig
from configs.errors import DataError, EnvError, ResourceError
from configs.libero import LiberoConfig

pytest.importorskip("libero", reason="pip install 'reverie-rl[libero]'")

ONE = LiberoConfig(suite="libero_object", tasks=[0], camera_size=32, kept_tasks=1)
SLOT = np.zeros(1, np.int64)
KEPT: list[Any] = []
"""The package's own environments: under OSMesa, closing one spoils every other picture of its process."""


def seeds(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    from platform.envs import make_env_here

    made = make_env_here(ONE, 1, chunk=4, replan=4)
    yield made
    made.close()


def actions(seed: int, chunk: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (1, chunk, 7)).astype(np.float32)


def test_physics_is_that_of_the_package_bit_for_bit(env: Any) -> None:
    from platform.envs.libero_sim import REST
    from platform.envs.libero_suites import init_states, suite_tasks

    from libero.libero.envs import OffScreenRenderEnv

    task = suite_tasks("libero_object")[0]
    state = init_states(task)[3]
    theirs = OffScreenRenderEnv(
        bddl_file_name=task.problem_file, camera_heights=32, camera_widths=32, camera_names=["agentview"]
    )
    np.random.seed(3)
    theirs.reset()
    theirs.set_init_state(state)
    env.reset(SLOT, seeds(-4))
    for _ in range(10):
        theirs.step(REST)
    np.testing.assert_array_equal(env.simulator(0).get_state(), theirs.get_sim_state())
    chunk = actions(1)
    for action in chunk[0].astype(np.float64):
        seen, *_ = theirs.step(action)
    env.step(SLOT, chunk)
    np.testing.assert_array_equal(env.simulator(0).get_state(), theirs.get_sim_state())
    assert abs(seen["robot0_eef_pos"] - env.simulator(0).proprio()[:3]).max() < 0.01
    KEPT.append(theirs)


def test_with_effects_a_frame_is_the_package_s_turned_by_half_a_turn(env: Any) -> None:
    from platform.envs.libero_sim import LiberoSim
    from platform.envs.libero_suites import suite_tasks

    from libero.libero.envs import OffScreenRenderEnv

    task = suite_tasks("libero_object")[0]
    shown = LiberoSim(task, LiberoConfig(suite="libero_object", camera_size=64, effects=True))
    shown.reset(0, 0)
    theirs = OffScreenRenderEnv(bddl_file_name=task.problem_file, camera_heights=64, camera_widths=64)
    np.random.seed(0)
    theirs.reset()
    theirs.set_init_state(shown.get_state())
    raw = theirs.sim.render(width=64, height=64, camera_name="agentview")
    difference = np.abs(raw[::-1, ::-1].astype(int) - shown.draw()["agentview"])
    assert difference.mean() < 1
    KEPT.append(theirs)
    shown.close()


def test_an_episode_does_not_depend_on_what_was_before_it(env: Any) -> None:
    first = env.reset(SLOT, seeds(-6))
    state = env.simulator(0).get_state()
    after = env.step(SLOT, actions(0))
    env.reset(SLOT, seeds(77))
    env.step(SLOT, actions(5))
    again = env.reset(SLOT, seeds(-6))
    np.testing.assert_array_equal(env.simulator(0).get_state(), state)
    np.testing.assert_array_equal(again.images["agentview"], first.images["agentview"])
    repeated = env.step(SLOT, actions(0))
    np.testing.assert_array_equal(repeated.observation.proprio, after.observation.proprio)
    np.testing.assert_array_equal(
        repeated.observation.images["agentview"], after.observation.images["agentview"]
    )


def test_trial_k_starts_from_init_state_k_and_all_fifty_differ() -> None:
    from platform.envs.libero_sim import LiberoSim
    from platform.envs.libero_suites import init_states, suite_tasks

    task = suite_tasks("libero_object")[0]
    states = init_states(task)
    simulator = LiberoSim(task, LiberoConfig(suite="libero_object", settle_steps=0))
    for trial in (0, 17, 49):
        simulator.reset(trial, trial)
        np.testing.assert_array_equal(simulator.get_state(), states[trial])
    assert len(np.unique(states, axis=0)) == 50
    simulator.close()


def test_sampled_starts_follow_their_seed_and_are_nobody_s_init_state(env: Any) -> None:
    from platform.envs.libero_suites import init_states, suite_tasks

    states = init_states(suite_tasks("libero_object")[0])
    found = []
    for seed in (5, 6, 5):
        env.reset(SLOT, seeds(seed))
        found.append(env.simulator(0).get_state())
    np.testing.assert_array_equal(found[0], found[2])
    assert not np.array_equal(found[0], found[1])
    apart = np.abs(states[:, 1:59] - found[0][1:59]).max(axis=1)
    assert apart.min() > 0.005


def test_arms_of_sampled_starts_are_spread_as_those_of_init_states() -> None:
    from platform.envs.libero_sim import LiberoSim
    from platform.envs.libero_suites import init_states, suite_tasks

    task = suite_tasks("libero_object")[0]
    theirs = np.array([state[1:8] for state in init_states(task)])
    middle = theirs.mean(axis=0)
    assert 0.014 < (theirs - middle).std() < 0.026
    at_once = LiberoSim(task, LiberoConfig(suite="libero_object", settle_steps=0))
    joints, objects = [], []
    for seed in range(12):
        at_once.reset(seed)
        joints.append(at_once.get_state()[1:8])
        objects.append(at_once.get_state()[10:])
    at_once.close()
    # 84 draws of deviation 0.02: its estimate deviates by 0.0015.
    assert 0.014 < (np.array(joints) - middle).std() < 0.026
    assert np.array(objects).std(axis=0).max() > 1e-3
    # Ten env steps later the controller has turned the hand back, whichever way the arm came there.
    settled = LiberoSim(task, LiberoConfig(suite="libero_object"))
    hands = []
    for trial in (None, True):
        seen = []
        for number in range(12):
            settled.reset(number, number if trial else None)
            seen.append(settled.proprio()[:6])
        hands.append(np.array(seen).std(axis=0))
    settled.close()
    # Deviations of twelve deviate by a fifth; a hand that nobody turns back has 25 times this one's in its orientation.
    assert np.all(hands[0] < 3 * hands[1])
    assert np.all(hands[1] < 3 * hands[0])


def test_state_and_load_continue_bit_for_bit(env: Any) -> None:
    env.reset(SLOT, seeds(-2))
    env.step(SLOT, actions(3))
    held = env.state()
    after = env.step(SLOT, actions(4))
    env.reset(SLOT, seeds(9))
    env.load(held)
    again = env.step(SLOT, actions(4))
    np.testing.assert_array_equal(again.observation.proprio, after.observation.proprio)
    np.testing.assert_array_equal(
        again.observation.images["agentview"], after.observation.images["agentview"]
    )


def test_the_expert_s_chunk_does_what_it_foresaw_and_brings_the_object_into_the_basket(env: Any) -> None:
    from platform.experts import make_expert

    env.reset(SLOT, seeds(-1))
    expert = make_expert(env, chunk=env.chunk, replan=env.replan)
    expert.begin(SLOT)
    before = env.simulator(0).get_state()
    result = None
    while result is None or not (result.terminated[0] or result.truncated[0]):
        chunk = expert.chunks(SLOT, lambda _, wanted: wanted)
        if result is None:
            np.testing.assert_array_equal(env.simulator(0).get_state(), before)
        result = env.step(SLOT, chunk)
    assert result.success[0]
    assert result.rewards.sum() == 1


def test_slots_of_two_processes_are_those_of_one(env: Any) -> None:
    from platform.envs import make_env

    grouped = make_env(LiberoConfig(**{**vars(ONE), "processes": 2}), 2, chunk=4, replan=4)
    seen = grouped.reset(np.arange(2), seeds(-1, -2))
    for row, seed in enumerate((-1, -2)):
        alone = env.reset(SLOT, seeds(seed))
        np.testing.assert_array_equal(alone.images["agentview"][0], seen.images["agentview"][row])
        np.testing.assert_array_equal(alone.proprio[0], seen.proprio[row])
    grouped.close()


def test_gymnasium_starts_a_trial_by_its_number() -> None:
    import gymnasium

    single = gymnasium.make(
        "platform.envs.libero:reverie/Libero-v0", suite="libero_object", tasks=[0, 1], camera_size=32
    )
    seen, info = single.reset(options={"task": 1, "trial": 2})
    assert info["task"] == "pick_up_the_cream_cheese_and_place_it_in_the_basket"
    assert single.observation_space.contains(seen)
    seen, reward, terminated, truncated, _ = single.step(np.zeros(7, np.float32))
    assert (reward, terminated, truncated) == (0.0, False, False)
    with pytest.raises(EnvError, match="no task 2"):
        single.reset(options={"task": 2})
    with pytest.raises(DataError, match="has no trial 50"):
        single.reset(options={"trial": 50})
    single.close()


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"suite": "libero_objekt"}, "did you mean libero_object"),
    ({"suite": "libero_object", "tasks": [10]}, "indices from 0 to 9"),
]


@pytest.mark.parametrize(("fields", "words"), MISTAKES)
def test_a_mistake_tells_its_remedy(fields: dict[str, Any], words: str) -> None:
    from platform.envs import env_spec

    config: EnvConfig = LiberoConfig(**fields)
    with pytest.raises(EnvError, match=words):
        env_spec(config)


def test_more_trials_than_init_states_and_unknown_cameras(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from platform.command import main
    from platform.evaluate import run

    argv = [f"run.dir={tmp_path / 'run'}", "env=libero_object", "evaluation.actor=still"]
    assert main(run, "usage", argv=[*argv, "evaluation.trials=51"]) == 2
    assert main(run, "usage", argv=[*argv, "env.cameras=[overhead]"]) == 2
    first, second = (record.getMessage() for record in caplog.records)
    assert "give at most 50" in first
    assert "agentview" in second
    assert not list(tmp_path.iterdir())


def test_torn_init_states_are_one_line(tmp_path: Path) -> None:
    from dataclasses import replace
    from platform.envs.libero_suites import init_states, suite_tasks

    task = replace(suite_tasks("libero_object")[0], states_file=str(tmp_path / "torn"))
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 not an archive")
    with pytest.raises(DataError, match="cannot read init states"):
        init_states(task)
    with pytest.raises(DataError, match="cannot read init states"):
        init_states(replace(task, states_file=str(tmp_path / "missing")))


def test_init_states_that_torch_saved_are_read_without_running_anything(tmp_path: Path) -> None:
    from dataclasses import replace
    from platform.envs.libero_suites import init_states, suite_tasks

    import torch

    task = replace(suite_tasks("libero_object")[0], states_file=str(tmp_path / "states"))
    torch.save(np.arange(6.0).reshape(2, 3), tmp_path / "states")
    np.testing.assert_array_equal(init_states(task), np.arange(6.0).reshape(2, 3))


def test_without_anything_to_draw_with_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from platform.envs import libero_package

    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv(libero_package.TRIED, raising=False)
    monkeypatch.setattr(libero_package, "_draws", lambda name: False)
    with pytest.raises(ResourceError, match="apt-get install libosmesa6"):
        libero_package.choose_graphics("auto")


def test_a_library_that_does_not_answer_is_told_from_one_that_cannot_draw(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from platform.envs import libero_package

    def hang(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(libero_package.subprocess, "run", hang)
    libero_package._draws.cache_clear()
    assert not libero_package._draws("egl")
    libero_package._draws.cache_clear()
    assert "drawing with egl was tried for 300 s without an answer" in caplog.text


def test_without_libero_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from platform.envs import libero_package

    monkeypatch.setattr(libero_package.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvError, match=r"pip install 'reverie-rl\[libero\]'"):
        libero_package.require_package()


def test_an_evaluation_of_the_expert_and_a_crash_in_one_trial(tmp_path: Path) -> None:
    """The command as a user starts it; a worker that is killed in its first trial makes an error row, the rest is whole."""
    code = (
        "import os\n"
        "from platform.envs import libero_env\n"
        "start = libero_env._Slot.start\n"
        "def crash(slot, task, seed):\n"
        "    if seed == -1: os.kill(os.getpid(), 9)\n"
        "    start(slot, task, seed)\n"
        "libero_env._Slot.start = crash\n"
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    folder = tmp_path / "run"
    command = [
        sys.executable, "-m", "platform.evaluate", "env=libero_object", f"run.dir={folder}", "evaluation.actor=expert",
        "evaluation.tasks=[0]", "evaluation.trials=2", "env.camera_size=32", "policy.chunk=8", "policy.replan=8",
        "policy.bins=33",
    ]  # fmt: skip
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    trials = json.loads((folder / "table.json").read_text())["trials"]
    assert [trial["outcome"] for trial in trials] == ["error", "success"]
    assert "exit code -9" in trials[0]["error"]
    assert (folder / "videos" / "libero_object" / "greedy" / "task_00_trial_01.mp4").is_file()
