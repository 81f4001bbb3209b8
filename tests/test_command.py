"""The frame of every command: flags, exit codes, one-line errors, the process's environment."""

import errno
import os
import subprocess
import sys
from platform.command import ENVIRONMENT, Run, main

import pytest

from configs.errors import ConfigError, RoleFailure
from configs.schema import TrainConfig


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, os.environ.get(name, "1"))


def raises(error: BaseException) -> Run:
    def run(argv: list[str]) -> int:
        raise error

    return run


def test_arguments_and_exit_code_pass_through() -> None:
    seen: list[list[str]] = []

    def run(argv: list[str]) -> int:
        seen.append(argv)
        return 7

    assert main(run, "usage", argv=["real", "a=1"]) == 7
    assert seen == [["real", "a=1"]]


def test_help_shows_usage_and_keys_without_running(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(raises(AssertionError()), "usage: this", config=TrainConfig, argv=["real", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: this\n")
    assert "algorithm.gamma=0.99" in out


def test_dry_run_replaces_the_run() -> None:
    assert (
        main(raises(AssertionError()), "usage", dry_run=lambda argv: len(argv), argv=["--dry-run", "a=1"])
        == 1
    )


@pytest.mark.parametrize("flags", [["--frob"], ["--dry-run"]])
def test_unknown_flag_is_an_error(flags: list[str], caplog: pytest.LogCaptureFixture) -> None:
    assert main(raises(AssertionError()), "usage", argv=flags) == 2
    assert f"unknown flag {flags[0]}" in caplog.text


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("a is wrong", where="b", remedy="c"), 2, "a is wrong (b): c"),
        (RoleFailure("learner died"), 3, "learner died"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/x"),
            2,
            "No space left on device (/x): free some space",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            2,
            "Permission denied (/x): give yourself",
        ),
    ],
)
def test_expected_failures_are_one_line(
    error: BaseException, code: int, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(raises(error), "usage", argv=[]) == code
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(line)


@pytest.mark.parametrize("bug", [FileNotFoundError(errno.ENOENT, "gone"), ValueError("bug")])
def test_a_bug_keeps_its_traceback(bug: Exception) -> None:
    with pytest.raises(type(bug)):
        main(raises(bug), "usage", argv=[])


def test_a_mistake_on_the_command_line_is_one_line_on_stderr() -> None:
    command = [sys.executable, "-m", "platform.train", "rael"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: mode=rael does not fit: did you mean real? allowed: one of real, imagined, real+imagined"
    ]


def test_a_command_gives_its_process_and_children_the_environment() -> None:
    script = (
        "import os, subprocess, sys\n"
        "from platform.command import ENVIRONMENT, prepare_environment\n"
        "prepare_environment()\n"
        "child = 'import os, sys; sys.stdout.write(os.environ[\"OMP_NUM_THREADS\"])'\n"
        "assert all(name in os.environ for name in ENVIRONMENT)\n"
        "subprocess.run([sys.executable, '-c', child], check=True)\n"
    )
    bare = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    for given, expected in [({}, "1"), ({"OMP_NUM_THREADS": "3"}, "3")]:
        done = subprocess.run(
            [sys.executable, "-c", script], env={**bare, **given}, capture_output=True, text=True, check=True
        )
        assert done.stdout == expected


def test_a_command_starts_over_once_with_the_allocator_settings() -> None:
    """What the kernel says the process was started with, not ``os.environ``, is what the C library has read."""
    bare = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    script = (
        "import sys, types\n"
        "from platform.command import prepare_environment\n"
        "sys.modules['__main__'].__spec__ = types.SimpleNamespace(name='platform.train')\n"
        "sys.stderr.write('started ')\n"
        "prepare_environment()\n"
        "sys.stdout.write(open('/proc/self/environ').read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=bare, capture_output=True, text=True, check=True
    )
    assert done.stderr == "started started "
    assert {f"{name}={value}" for name, value in ENVIRONMENT.items()} <= set(done.stdout.split("\0"))
