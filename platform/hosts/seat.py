"""What of its machine a process of a run may take."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from configs.errors import ConfigError

OWN_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Seat:
    """Cores, threads and patience of one process."""

    threads: int | None = None
    """Of torch; None where a process does not compute with it."""
    niceness: int = 0
    """Added to what the process has."""
    learner_cores: int = 0
    """Cores that are kept for the policy learner; 0: all share all."""
    learns: bool = False
    """Whether this process is the policy learner, or a rank of it."""

    def take(self) -> None:
        """For this process, with all the threads that it has or will have. ConfigError where the cores do not suffice."""
        os.nice(self.niceness)
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        if self.learner_cores:
            self._keep_to(self.cores(usable_cores()))

    def cores(self, usable: list[int]) -> list[int]:
        """The first ones are the learner's, the others everybody else's. ConfigError where nobody else had any."""
        check_learner_cores(self.learner_cores, usable)
        return usable[: self.learner_cores] if self.learns else usable[self.learner_cores :]

    def _keep_to(self, cores: list[int]) -> None:
        for task in OWN_TASKS.iterdir():
            # A thread may end between the look and the call.
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)


def usable_cores() -> list[int]:
    """Numbers of the cores that this process may use; empty where the system does not tell (it then cannot bind either)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def check_learner_cores(wanted: int, usable: list[int]) -> None:
    """Raise ConfigError where that many cores for the policy learner would leave none to the others."""
    if wanted and wanted >= len(usable):
        have = f"has {len(usable)}" if usable else "cannot bind processes to cores"
        raise ConfigError(
            f"the policy learner is to have {wanted} cores of its own, and this machine {have}",
            where=f"host.learner_cores={wanted}",
            remedy=f"set it to at most {len(usable) - 1}" if len(usable) > 1 else "set it to 0",
        )
