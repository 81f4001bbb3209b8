"""LIBERO's HDF5 demonstrations: which observation goes with which action, which way up, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from buffers.exchange.libero import LiberoSource
from buffers.exchange.source import Choices
from configs.errors import DataError
from tests.exchange_helper import write_libero


@pytest.mark.parametrize("after", [True, False])
def test_each_action_lies_between_the_observations_before_and_after_it(tmp_path, after):
    write_libero(tmp_path / "put_demo.hdf5", [6, 12], after=after)
    source = LiberoSource(tmp_path, Choices())
    assert (source.contents.episodes, source.contents.env_steps, source.contents.longest) == (2, 16, 11)
    assert source.contents.cameras == {"agentview": (8, 8), "wrist": (8, 8)}
    assert (source.contents.proprio_dim, source.contents.action_dim, source.contents.fps) == (8, 7, 20)
    for found, length in zip(source.trajectories(), [6, 12], strict=True):
        # Action j takes the arm from j to j + 1.
        np.testing.assert_allclose(found.actions[:, 0] * 100, found.proprio[:-1, 0], atol=1e-4)
        assert found.proprio[:, 0].tolist() == [step + after for step in range(length)]
        assert found.rewards.tolist() == [0] * (length - 2) + [1]
        assert (found.instruction, found.task) == ("put the bowl on the plate", "put")
        assert found.success is found.terminated is True


@pytest.mark.parametrize(("convention", "lit"), [("opengl", (7, 7)), ("opencv", (0, 7))])
def test_pictures_are_turned_as_their_convention_says(tmp_path, convention, lit):
    path = write_libero(tmp_path / "put.hdf5", [3], convention=convention)
    (found,) = LiberoSource(path, Choices()).trajectories()
    for frames in found.images.values():
        assert [tuple(place) for place in np.argwhere(frames[0, ..., 0] == 200)] == [lit]


def test_cameras_and_size_are_the_users(tmp_path):
    path = write_libero(tmp_path / "put.hdf5", [3])
    (found,) = LiberoSource(path, Choices(cameras={"hand": "wrist"}, camera_size=4)).trajectories()
    assert {name: frames.shape for name, frames in found.images.items()} == {"hand": (3, 4, 4, 3)}


def _remove(name: str) -> Any:
    def edit(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file[name]

    return edit


def _cut(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        rows = file["data/demo_0/obs/ee_states"][:2]
        del file["data/demo_0/obs/ee_states"]
        file["data/demo_0/obs/ee_states"] = rows


def _attribute(name: str, value: str) -> Any:
    def edit(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            file["data"].attrs[name] = value

    return edit


BREAKAGES: dict[str, tuple[Any, str]] = {
    "torn": (lambda p: p.write_bytes(p.read_bytes()[:500]), "no HDF5 file, or torn"),
    "no demonstrations": (_remove("data/demo_0"), "no data/demo_0"),
    "no actions": (_remove("data/demo_0/actions"), "actions is missing"),
    "no proprio": (_remove("data/demo_0/obs/ee_states"), "obs/ee_states is missing"),
    "other lengths": (_cut, "obs/ee_states has 2 rows for 5 actions"),
    "no instruction": (_attribute("problem_info", "{}"), "does not say its instruction"),
    "unknown convention": (_attribute("macros_image_convention", "sideways"), "stored as 'sideways'"),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_file_is_refused_in_one_line(tmp_path, name):
    damage, message = BREAKAGES[name]
    path = write_libero(tmp_path / "put.hdf5", [5])
    damage(path)
    with pytest.raises(DataError, match=message) as caught:
        list(LiberoSource(tmp_path, Choices()).trajectories())
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
