"""Starting, watching and ending a Reverb server in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from buffers.reverb_server import READY
from buffers.reverb_tables import TableSpec
from configs.errors import CheckpointError, ReplayError, ResourceError

START_TIMEOUT_S = 180.0
"""TensorFlow alone takes seconds to import, far more on a busy machine."""
_CHUNK = 1 << 20


class ServerProcess:
    """One server; ``folder`` is its own: what a server before left there is removed."""

    def __init__(self, tables: list[TableSpec], folder: Path, *, port: int, checkpoint: Path | None) -> None:
        """From ``checkpoint`` (a folder that Reverb wrote) if given. ResourceError when it does not come up."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if checkpoint is not None:
            link_checkpoint(checkpoint, folder / checkpoint.name)
        # Beside the folder: Reverb deletes what it takes for older checkpoints in it, by name.
        self._log = folder.with_name(f"{folder.name}.log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "buffers.reverb_server", str(folder), str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.port = self._begin(tables)

    def _begin(self, tables: list[TableSpec]) -> int:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([table.to_json() for table in tables]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("ended at once") from None
        lines: list[str] = []
        reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        reader.start()
        reader.join(START_TIMEOUT_S)
        if not lines:
            late = reader.is_alive()
            self.stop()
            raise self._failed(
                f"was not up after {START_TIMEOUT_S:.0f} s" if late else "ended while it started"
            )
        return int(lines[0])

    def _read(self, lines: list[str]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(READY):
                lines.append(line.split()[1])
                return

    def _failed(self, what: str) -> ResourceError:
        said = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return ResourceError(
            f"the Reverb server {what}: {said[-1] if said else 'it said nothing'}",
            where=str(self._log),
            remedy="see there, or use buffers.backend=memory",
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def death(self) -> str | None:
        """How it ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def stop(self) -> None:
        """End it at once; what matters is in checkpoints."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def link_checkpoint(source: Path, target: Path) -> None:
    """The same files under another name, without copying where the disk can."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        try:
            os.link(file, target / file.name)
        except OSError:
            shutil.copyfile(file, target / file.name)


def hash_checkpoint(folder: Path) -> dict[str, str]:
    """SHA-256 of each file."""
    hashes = {}
    for file in sorted(folder.iterdir()):
        digest = hashlib.sha256()
        with file.open("rb") as stream:
            while block := stream.read(_CHUNK):
                digest.update(block)
        hashes[file.name] = digest.hexdigest()
    return hashes


def verify_checkpoint(folder: Path, hashes: dict[str, str]) -> None:
    """CheckpointError unless the files are there as they were written."""
    if not folder.is_dir() or hash_checkpoint(folder) != hashes:
        raise CheckpointError(
            "the Reverb checkpoint is missing or torn",
            where=str(folder),
            remedy="resume from an older checkpoint",
        )


class ServerLost(ReplayError):
    """The server died, or its connection did."""
