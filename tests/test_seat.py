"""Cores, threads and patience of a run's processes."""

from __future__ import annotations

import subprocess
import sys
from platform.hosts.seat import Seat, check_learner_cores

import pytest

from configs.errors import ConfigError

LOOK = """
import os, threading, time
from platform.hosts.seat import Seat
usable, nice = sorted(os.sched_getaffinity(0)), os.nice(0)
early = threading.Thread(target=time.sleep, args=(60,), daemon=True)
early.start()
Seat(threads=1, niceness=3, learner_cores=1, learns={learns}).take()
late = threading.Thread(target=time.sleep, args=(60,), daemon=True)
late.start()
import torch
of = [sorted(os.sched_getaffinity(thread.native_id)) for thread in (threading.main_thread(), early, late)]
assert of == [usable[:1] if {learns} else usable[1:]] * 3, of
assert (os.nice(0) - nice, torch.get_num_threads()) == (3, 1)
"""


@pytest.mark.parametrize("learns", [True, False])
def test_every_thread_of_a_process_keeps_to_its_cores(learns: bool) -> None:
    """Those that were there before, and those that come later."""
    subprocess.run([sys.executable, "-c", LOOK.format(learns=learns)], check=True, timeout=60)


def test_cores_are_parted() -> None:
    """Nobody shares the learner's."""
    usable = [0, 2, 3, 7]
    assert Seat(learner_cores=3, learns=True).cores(usable) == [0, 2, 3]
    assert Seat(learner_cores=3).cores(usable) == [7]


def test_somebody_else_needs_a_core_too() -> None:
    """One line, with what would do; nothing to say where nothing is asked."""
    check_learner_cores(0, [])
    check_learner_cores(1, [4, 5])
    with pytest.raises(ConfigError, match=r"2 cores of its own.*has 2 \(host.learner_cores=2\): .*at most 1"):
        check_learner_cores(2, [4, 5])
    with pytest.raises(ConfigError, match=r"cannot bind.*set it to 0"):
        check_learner_cores(1, [])
