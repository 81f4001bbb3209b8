"""LIBERO's demonstrations: one HDF5 file per task, a group per episode.

::

    data                      attributes problem_info (JSON with language_instruction), macros_image_convention
    data/demo_<i>/actions     [N, 7] in [-1, 1], gripper last
                  rewards     [N]; dones [N]
                  states      [N, S] of MuJoCo before each action: time, joint positions, ...
                  obs/agentview_rgb, eye_in_hand_rgb    [N, H, W, 3]
                  obs/ee_states [N, 6] position and axis-angle, gripper_states [N, 2], joint_states [N, 7]

Source: ``scripts/create_dataset.py`` of Lifelong-Robot-Learning/LIBERO. It steps the simulator and *then* records: its
observation ``j`` is the one after action ``j``. Files that others recorded anew hold the one before. The simulator's states
are from before each action in both, so the arm's joints tell which it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.exchange.packages import exchange_package
from buffers.exchange.source import Cameras, Choices, Contents, outcome
from buffers.exchange.trajectory import Trajectory
from configs.errors import DataError

CAMERAS = {"agentview": "agentview_rgb", "wrist": "eye_in_hand_rgb"}
"""Our name to the file's."""
PROPRIO = ("ee_states", "gripper_states")
JOINTS = slice(1, 8)
"""The arm's joints in a flattened MuJoCo state, after the time."""
TURNS: dict[str, tuple[slice, slice]] = {
    "opengl": (slice(None, None, -1), slice(None, None, -1)),
    "opencv": (slice(None), slice(None, None, -1)),
}
"""By how the file's images lie: what turns them to what policies for LIBERO see, upright pictures mirrored as everybody's."""
FPS = 20.0


def is_libero(folder: Path) -> bool:
    """Whether ``folder`` is an HDF5 file or a folder with some."""
    return bool(_files(folder))


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder] if folder.suffix in (".hdf5", ".h5") else []
    return sorted(path for path in folder.glob("*.hdf5") if path.is_file())


@dataclass(frozen=True)
class _Header:
    """What is known of an episode before its frames are read."""

    where: str
    steps: int
    sizes: dict[str, tuple[int, int]]
    proprio_dim: int
    action_dim: int
    instruction: str


class LiberoSource:
    """A folder of LIBERO's HDF5 files, or one of them."""

    def __init__(self, folder: Path, choices: Choices) -> None:
        """DataError when a file is torn or no demonstration of LIBERO's."""
        self._h5py, self._choices = exchange_package("h5py"), choices
        self._paths = _files(folder)
        found = [header for path in self._paths for header in self._headers(path)]
        for header in found[1:]:
            if header.sizes != found[0].sizes:
                raise DataError(
                    f"cameras are {header.sizes}, before they were {found[0].sizes}", where=header.where,
                    remedy="give files of one kind",
                )  # fmt: skip
        self._cameras = Cameras(found[0].sizes, choices, where=folder)
        self.contents = Contents(
            format="libero",
            episodes=len(found),
            env_steps=sum(header.steps for header in found),
            cameras=self._cameras.sizes,
            proprio_dim=found[0].proprio_dim,
            action_dim=found[0].action_dim,
            instructions=tuple(dict.fromkeys(header.instruction for header in found)),
            longest=max(header.steps for header in found),
            fps=FPS,
        )

    def _headers(self, path: Path) -> Iterator[_Header]:
        with self._open(path) as file:
            instruction = self._instruction(file, path)
            for name in _demos(file):
                demo, where = file["data"][name], f"{name} of {path}"
                self._require(demo, where)
                shapes = {
                    camera: demo["obs"][key].shape for camera, key in CAMERAS.items() if key in demo["obs"]
                }
                yield _Header(
                    where=where,
                    steps=len(demo["actions"]) - 1,
                    sizes={camera: (int(shape[1]), int(shape[2])) for camera, shape in shapes.items()},
                    proprio_dim=sum(int(demo["obs"][key].shape[1]) for key in PROPRIO),
                    action_dim=int(demo["actions"].shape[1]),
                    instruction=instruction,
                )

    def _open(self, path: Path) -> Any:
        try:
            file = self._h5py.File(path, "r")
        except OSError as error:
            raise DataError(
                f"{path.name} is no HDF5 file, or torn ({error})", where=str(path.parent), remedy="copy or download it again"
            ) from error  # fmt: skip
        if "data" not in file or not _demos(file):
            file.close()
            raise DataError(
                f"{path.name} has no data/demo_0", where=str(path.parent), remedy="give LIBERO's own demonstrations"
            )  # fmt: skip
        return file

    @staticmethod
    def _instruction(file: Any, path: Path) -> str:
        try:
            text = json.loads(file["data"].attrs["problem_info"])["language_instruction"]
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(
                f"{path.name} does not say its instruction (problem_info)", where=str(path.parent),
                remedy="give LIBERO's own demonstrations",
            ) from error  # fmt: skip
        # Some files hold it as a list of characters, some in quotes of its own.
        return "".join(text).strip().strip('"')

    @staticmethod
    def _require(demo: Any, where: str) -> None:
        wanted = {"actions", "rewards"} - set(demo)
        wanted |= {f"obs/{key}" for key in PROPRIO if f"obs/{key}" not in demo}
        if not any(f"obs/{key}" in demo for key in CAMERAS.values()):
            wanted.add("obs/agentview_rgb")
        if wanted:
            raise DataError(
                f"{sorted(wanted)[0]} is missing", where=where, remedy="give LIBERO's own demonstrations"
            )
        count = len(demo["actions"])
        for key in demo["obs"]:
            if len(demo["obs"][key]) != count:
                raise DataError(
                    f"obs/{key} has {len(demo['obs'][key])} rows for {count} actions", where=where,
                    remedy="copy or download the file again",
                )  # fmt: skip

    @staticmethod
    def _observed_after(demo: Any) -> bool:
        """Whether observation ``j`` was taken after action ``j``."""
        if "states" not in demo or "joint_states" not in demo["obs"] or len(demo["actions"]) < 2:
            return False
        before, seen = demo["states"][:, JOINTS], demo["obs"]["joint_states"][()]
        same, later = np.abs(seen - before), np.abs(seen[:-1] - before[1:])
        return float(np.median(later)) < float(np.median(same))

    def actions(self) -> Iterator[NDArray[np.float32]]:
        """``[n, D]`` of every episode."""
        for path in self._paths:
            with self._open(path) as file:
                yield from (file["data"][name]["actions"][()].astype(np.float32) for name in _demos(file))

    def trajectories(self) -> Iterator[Trajectory]:
        """Every episode, file by file."""
        for path in self._paths:
            with self._open(path) as file:
                turn = _turn(file, path)
                instruction = self._instruction(file, path)
                for name in _demos(file):
                    yield self._trajectory(file["data"][name], turn, instruction, path, f"{name} of {path}")

    def _trajectory(
        self, demo: Any, turn: tuple[slice, slice], instruction: str, path: Path, where: str
    ) -> Trajectory:
        after = self._observed_after(demo)
        actions, rewards = demo["actions"][()].astype(np.float32), demo["rewards"][()].astype(np.float32)
        success = outcome(bool(rewards.max(initial=0) > 0), self._choices)
        # Either way the last observation closes the episode, and as many actions lie between observations.
        kept = slice(1, None) if after else slice(None, -1)
        earned = rewards[kept].copy()
        if not after and len(earned):
            earned[-1] += rewards[-1]
        images = {
            ours: self._upright(demo["obs"][CAMERAS[name]][()], turn) for ours, name in self._cameras.theirs.items()
        }  # fmt: skip
        return Trajectory(
            images=images,
            proprio=np.concatenate([demo["obs"][key][()] for key in PROPRIO], axis=1).astype(np.float32),
            actions=actions[kept],
            rewards=earned,
            instruction=instruction,
            task=path.stem.removesuffix("_demo"),
            success=success,
            terminated=bool(success),
            where=where,
        )

    def _upright(self, frames: NDArray[np.uint8], turn: tuple[slice, slice]) -> NDArray[np.uint8]:
        return np.stack([self._cameras.fit(np.ascontiguousarray(frame[turn])) for frame in frames])


def _demos(file: Any) -> list[str]:
    """Names of the episodes in the order of their numbers."""
    numbered = {name: re.fullmatch(r"demo_(\d+)", name) for name in file["data"]}
    return sorted((name for name, found in numbered.items() if found), key=lambda name: int(name[5:]))


def _turn(file: Any, path: Path) -> tuple[slice, slice]:
    convention = str(file["data"].attrs.get("macros_image_convention", "opengl"))
    if convention not in TURNS:
        raise DataError(
            f"images are stored as {convention!r}",
            where=str(path),
            remedy=f"one of {', '.join(TURNS)} is read",
        )
    return TURNS[convention]
