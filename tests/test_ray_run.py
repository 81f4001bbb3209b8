"""The running system on Ray: it works, it stops when asked, it ends when a part of it dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.run_helper import FAST, assert_same_training, summary, write_demos

MARK = "REVERIE_TEST_MARK"
LONG_S = 180


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demos(tmp_path_factory.mktemp("data") / "demos")


class Run:
    """``python -m platform.train`` with a mark in the environment of everything that it starts."""

    def __init__(self, folder: Path, mode: str, *overrides: str) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        command = [sys.executable, "-m", "platform.train", mode, *FAST, f"run.dir={folder}", *overrides]
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, MARK: self._mark, "PYTHONPATH": path},
        )  # fmt: skip

    def processes(self) -> dict[int, str]:
        """Process id to title of everything that carries the mark."""
        found = {}
        wanted = f"{MARK}={self._mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def turns(self) -> int:
        """Policy turns that the log tells of."""
        log = self.folder / "log.txt"
        text = log.read_text() if log.is_file() else ""
        return max((int(number) for number in re.findall(r"turn (\d+)/", text)), default=0)

    def process_of(self, part: str) -> int:
        """Id of the newest process of a role or service, as the log tells."""
        return int(re.findall(rf"\b{part} is process (\d+)", (self.folder / "log.txt").read_text())[-1])

    def wait_for_turns(self, turns: int) -> None:
        """Until the log tells of that many policy turns."""
        self.wait(lambda: self.turns() >= turns, f"turn {turns}")

    def wait_for_checkpoints(self) -> None:
        """A turn is told before its checkpoint is written; of two the runner knows the first."""
        self.wait(lambda: len(list(self.folder.glob("checkpoints/0*"))) >= 2, "second checkpoint")

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        """Until then, or until the run has ended."""
        deadline = time.monotonic() + LONG_S
        while not reached():
            assert self.process.poll() is None, self.process.communicate()
            if time.monotonic() > deadline:
                os.killpg(self.process.pid, signal.SIGTERM)
                pytest.fail(f"no {what} within {LONG_S} s")
            time.sleep(0.2)

    def end(self) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) once it is over; nothing that it started is left."""
        out, err = self.process.communicate(timeout=LONG_S)
        deadline = time.monotonic() + 20
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert self.processes() == {}
        return self.process.returncode, out, err


def test_a_run_on_ray_learns_in_both_worlds_and_leaves_nothing_behind(demos: Path, tmp_path: Path) -> None:
    run = Run(
        tmp_path / "run", "real+imagined", f"data={demos}", "run.stop.updates=8", "evaluation.every=3",
        "evaluation.quality_every=3", "world_model.obs_model.every=2", "world_model.reward_model.every=2",
    )  # fmt: skip
    code, out, err = run.end()
    assert code == 0, err
    result = summary(tmp_path / "run")
    assert result["updates"]["policy"] == 7, "in the first turn the critic warms up alone"
    assert result["updates"]["obs_model"] > 0
    assert result["updates"]["reward_model"] > 0
    assert result["real_steps"]["online"] + result["real_steps"]["warm_up"] > 0
    assert result["imagined_steps"] > 0
    assert 0 <= result["lag"]["mean"] <= result["lag"]["max"]
    assert "greedy success" in out
    for name in ("curves.png", "film.png", "film.mp4", "quality.json"):
        assert (tmp_path / "run" / "media" / name).stat().st_size > 0
    for part in ("policy", "obs_model", "reward_model", "training_state", "buffers"):
        assert (tmp_path / "run" / "checkpoints" / "last" / part).is_dir()


def test_an_interrupt_leaves_a_checkpoint_that_resumes(demos: Path, tmp_path: Path) -> None:
    from platform.checkpoint import read_checkpoint

    long = ("run.stop.updates=100000", f"data={demos}")
    run = Run(tmp_path / "run", "real+imagined", *long)
    run.wait_for_turns(3)
    os.killpg(run.process.pid, signal.SIGINT)
    code, _, err = run.end()
    assert code == 130, err
    step, states = read_checkpoint(tmp_path / "run" / "checkpoints")
    assert step == states["policy_learner"]["turns"] >= 3
    assert summary(tmp_path / "run")["interrupted"]

    again = Run(
        tmp_path / "other", "real+imagined", f"run.resume={tmp_path / 'run'}", f"run.stop.updates={step + 2}"
    )
    code, _, err = again.end()
    assert code == 0, err
    resumed, states = read_checkpoint(tmp_path / "run" / "checkpoints")
    assert resumed == step + 2
    assert states["policy_learner"]["version"] >= step + 2
    assert not (tmp_path / "other").exists()


def test_on_policy_training_is_that_of_the_serial_host(tmp_path: Path) -> None:
    from platform.checkpoint import read_checkpoint

    paced = ("real", "sync=on_policy", "run.stop.updates=3", "algorithm.critic_warm_up=0")
    spread = ("rollout.workers=2", "rollout.envs=3", "inference.replicas=2")
    runs = {"serial": ("host=serial",), "ray": spread}
    states = {}
    for name, where in runs.items():
        code, _, err = Run(tmp_path / name, *paced, *where).end()
        assert code == 0, err
        _, states[name] = read_checkpoint(tmp_path / name / "checkpoints")
    assert_same_training(states["serial"], states["ray"], 3)


TWO_RANKS = ("learner.ranks=2", "algorithm.micro_batch=16")


def test_two_ranks_learn_and_resume(tmp_path: Path) -> None:
    from platform.checkpoint import read_checkpoint

    code, _, err = Run(tmp_path / "run", "real", *TWO_RANKS, "run.stop.updates=3").end()
    assert code == 0, err
    _, states = read_checkpoint(tmp_path / "run" / "checkpoints")
    assert "policy_learner_1" not in states, "rank 0 speaks for all"
    again = Run(
        tmp_path / "other", "real", f"run.resume={tmp_path / 'run'}", *TWO_RANKS, "run.stop.updates=5"
    )
    code, _, err = again.end()
    assert code == 0, err
    _, states = read_checkpoint(tmp_path / "run" / "checkpoints")
    assert states["policy_learner"]["turns"] == 5
    assert states["policy_learner"]["actor"]["skipped"] == 0


@pytest.mark.parametrize("victim", ["rollout_0", "policy_learner", "policy_learner_1"])
def test_a_killed_role_ends_the_run_by_name(tmp_path: Path, victim: str) -> None:
    ranks = TWO_RANKS if victim == "policy_learner_1" else ()
    run = Run(
        tmp_path / "run",
        "real",
        "run.stop.updates=100000",
        "run.checkpoint_every=1",
        "host.restarts=0",
        *ranks,
    )
    run.wait_for_checkpoints()
    os.kill(run.process_of(victim), signal.SIGKILL)
    code, _, err = run.end()
    assert code == 3, err
    last = err.strip().splitlines()[-1]
    assert f"the process of {victim} died" in last
    assert f"run.resume={tmp_path / 'run'} goes on from policy turn" in last


def test_a_failing_role_ends_the_run_with_its_first_exception_on_the_last_line(tmp_path: Path) -> None:
    run = Run(
        tmp_path / "run", "real", "env=gymnasium", "env.id=tests.crashing_env:Crash-v0", "env.camera_size=32",
        "evaluation.trials=1", "evaluation.envs=1", "env.max_episode_steps=8", "run.stop.updates=100000",
    )  # fmt: skip
    code, _, err = run.end()
    assert code == 3, err
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: rollout_0 failed: RoleFailure: tests.crashing_env:Crash-v0 failed in slot")
    assert "RuntimeError: the simulator fell over" in last
