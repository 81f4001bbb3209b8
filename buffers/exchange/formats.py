"""Which format a folder of episodes is in, and what opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from buffers.dataset import INDEX
from buffers.exchange.lerobot import LeRobotSource, is_export, is_lerobot
from buffers.exchange.libero import LiberoSource, is_libero
from buffers.exchange.source import Choices, Source
from configs.errors import DataError


@dataclass(frozen=True)
class Format:
    """One kind of folder."""

    recognises: Callable[[Path], bool]
    open: Callable[[Path, Choices], Source] | None
    """None where the folder holds records of ours, which need no choices."""


def _is_ours(folder: Path) -> bool:
    return (folder / INDEX).is_file()


OURS, EXPORT, LEROBOT, LIBERO = "reverie", "reverie export", "lerobot", "libero"
FORMATS: dict[str, Format] = {
    OURS: Format(_is_ours, None),
    EXPORT: Format(is_export, None),
    LEROBOT: Format(is_lerobot, LeRobotSource),
    LIBERO: Format(is_libero, LiberoSource),
}
"""The first that recognises a folder has it."""


def detect(folder: Path) -> str:
    """Name of the format. DataError when it is none of them."""
    if not folder.exists():
        raise DataError("no such folder", where=str(folder), remedy="write one with python -m platform.demos")
    for name, kind in FORMATS.items():
        if kind.recognises(folder):
            return name
    raise DataError(
        f"no {INDEX}, meta/info.json or *.hdf5 in it", where=str(folder),
        remedy="give a dataset of python -m platform.demos, of LeRobot or of LIBERO",
    )  # fmt: skip


def open_source(folder: Path, choices: Choices) -> Source:
    """Another program's dataset; DataError when it is ours, or torn."""
    opens = FORMATS[detect(folder)].open
    assert opens is not None, f"{folder} holds records"
    return opens(folder, choices)
