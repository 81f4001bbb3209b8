"""Several models pretrained side by side, one process each, and what keeps two processes off one model."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from configs.errors import CheckpointError, ReverieError

PARENT = "REVERIE_PRETRAIN_PARENT"
"""Names the process that a child must not outlive."""
LOOK_EVERY_S = 1.0
ORPHANED = 1


class ChildFailed(ReverieError):
    """A model's process has said why on its own line."""

    exit_code = 2


def run_children(
    commands: Mapping[str, Sequence[str]], builds_on: Mapping[str, Sequence[str]], at_once: int
) -> None:
    """Run ``commands`` by model, the first ones first; each starts when those that it builds on are done. The first
    failure ends the others.

    Raises ChildFailed.
    """
    waiting, running, done = list(commands), dict[str, subprocess.Popen[bytes]](), set[str]()
    try:
        while waiting or running:
            ready = [name for name in waiting if not set(builds_on[name]) & (set(commands) - done)]
            for name in ready[: at_once - len(running)]:
                waiting.remove(name)
                running[name] = _start(commands[name])
            time.sleep(0.2)
            for name, child in list(running.items()):
                code = child.poll()
                if code is None:
                    continue
                del running[name]
                if code:
                    raise ChildFailed(f"pretraining {name} ended with status {code}", where=name)
                done.add(name)
    finally:
        for child in running.values():
            child.terminate()
            child.wait()


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "platform.pretrain", *arguments]
    return subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())})


def is_child() -> bool:
    """Whether ``run_children`` started this process."""
    return PARENT in os.environ


def end_with_parent() -> None:
    """In a child: end at once when the parent is gone, even if it was killed and could not say so.

    Checkpoints are renamed into place, so an end at any moment loses only what came after the last one.
    """
    if not is_child():
        return
    parent = int(os.environ[PARENT])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY_S)
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold ``lock`` while the block runs. The kernel drops it with the process, however that ends.

    Raises CheckpointError when another process holds it.
    """
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                "another process is pretraining this model", where=str(lock.parent),
                remedy="wait for it, or choose another out=",
            ) from None  # fmt: skip
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
