"""Checkpoints of a run.

::

    checkpoints/
      000120/                 policy turns done; renamed into place when complete, hashed in manifest.json
        policy/               config.json, model.safetensors, card.json: all that evaluation needs; the version that
                              evaluated best so far, else the newest
        obs_model/            likewise, the averaged weights
        reward_model/         likewise
        training_state/       every role's and service's state, the runner's counters
        buffers/              B_real and B_img (see ``buffer_files``)
      last -> 000120
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from buffers.backends import BufferName, verify_saved
from configs.errors import CheckpointError

from .buffer_files import load_buffers, save_buffers
from .context import Context
from .models import write_model
from .storage import disk_errors, load_tree, new_folder, read_json, save_tree, verify_folder
from .weights import Arrays

log = logging.getLogger(__name__)
BUFFERS: dict[str, BufferName] = {"b_real": "real", "b_img": "imagined"}
"""Service to the name of the buffer that it is."""
TRAINING_STATE, BUFFER_FILES = "training_state", "buffers"
SERVERS = "replay"
"""Folder beside the checkpoints' own, where the servers of replay buffers keep theirs."""


def write_checkpoint(
    folder: Path,
    step: int,
    states: dict[str, Any],
    models: dict[str, Arrays],
    context: Context,
    *,
    keep: int,
) -> Path:
    """Write ``folder/<step>`` complete or not at all, point ``last`` to it, delete all but the ``keep`` newest.

    Raises ResourceError when the disk refuses; what was there before stays.
    """
    target = folder / f"{step:06d}"
    if target.exists() and not _is_torn(target):
        return target
    buffers = {name: states[name] for name in BUFFERS if name in states}
    others = {name: state for name, state in states.items() if name not in buffers}
    with new_folder(target) as partial:
        for name, arrays in models.items():
            write_model(partial / name, context.describe(name), arrays, {"policy_turns": step})
        for part in (TRAINING_STATE, BUFFER_FILES):
            (partial / part).mkdir()
        save_tree(partial / TRAINING_STATE, "state", others)
        before = complete(folder)
        save_buffers(partial / BUFFER_FILES, buffers, before[-1] / BUFFER_FILES if before else None)
    with disk_errors(folder):
        _point_last(folder, target.name)
        for old in complete(folder)[:-keep]:
            shutil.rmtree(old)
    return target


def _is_torn(target: Path) -> bool:
    """Whether it does not verify; then it is removed: a run that went on from an older one comes by here again."""
    try:
        _verify(target)
    except CheckpointError as error:
        log.warning("a torn checkpoint is written anew: %s", error)
        with disk_errors(target):
            shutil.rmtree(target)
        return True
    return False


def _point_last(folder: Path, name: str) -> None:
    link = folder / ".last"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    os.replace(link, folder / "last")


def complete(folder: Path) -> list[Path]:
    """Checkpoint folders, oldest first: by the number of turns, which may have more digits than the names are padded to."""
    found = (
        [path for path in folder.iterdir() if path.name.isdigit() and path.is_dir()]
        if folder.is_dir()
        else []
    )
    return sorted((path for path in found if not path.is_symlink()), key=lambda path: int(path.name))


def _verify(checkpoint: Path) -> None:
    """CheckpointError unless its files, and what servers of buffers wrote for it elsewhere, are whole."""
    verify_folder(checkpoint)
    states = read_json(checkpoint / BUFFER_FILES / "state.json")
    for service, state in states.items():
        verify_saved(state, BUFFERS[service], checkpoint.parents[1] / SERVERS)


def read_checkpoint(folder: Path) -> tuple[int, dict[str, Any]]:
    """(step, states) of the newest checkpoint that verifies; torn ones are skipped with a warning.

    Raises CheckpointError when there is none.
    """
    candidates = complete(folder)
    for path in reversed(candidates):
        try:
            _verify(path)
        except CheckpointError as error:
            log.warning("skipped a torn checkpoint: %s", error)
            continue
        states = load_tree(path / TRAINING_STATE, "state") | load_buffers(path / BUFFER_FILES)
        return int(path.name), states
    raise CheckpointError(
        "no complete checkpoint" if candidates else "no checkpoint", where=str(folder),
        remedy="start a new run, or give the folder of another run as run.resume",
    )  # fmt: skip
