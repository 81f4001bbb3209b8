"""Where a buffer's Reverb server runs, and what it is restarted from: a process of this run, or an address elsewhere."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from buffers.reverb_link import ReverbLink
from buffers.reverb_process import (
    ServerLost,
    ServerProcess,
    hash_checkpoint,
    link_checkpoint,
    verify_checkpoint,
)
from buffers.reverb_tables import TableSpec
from configs.errors import CheckpointError, ConfigError, ReplayError, ReverieError
from configs.replay import ReverbConfig

CLASHES = 4
"""Times that a checkpoint is asked for again."""
SAVED = "saved"
"""Folder of the checkpoints that are kept."""


class ReverbHome:
    """A server that answers, and the checkpoints in ``folder`` (a temporary one by default).

    Each server has a folder of its own below it. ``keep`` checkpoints of the run are kept, and the newest of all.
    """

    def __init__(
        self, tables: list[TableSpec], config: ReverbConfig, *, longest: int, folder: Path | None, keep: int
    ) -> None:
        """ResourceError when no server comes up, ConfigError when one that is there has other tables."""
        self._tables, self._config, self._longest, self._keep = tables, config, longest, keep
        self._temporary = (
            None if folder is not None else tempfile.TemporaryDirectory(prefix="reverie_reverb_")
        )
        self.folder = Path(self._temporary.name) if folder is None and self._temporary else Path(str(folder))
        self._process: ServerProcess | None = None
        self._lasting: list[Path] = []
        self._newest: Path | None = None
        self._checkpointed = time.monotonic()
        self.link = self._connect(None)

    @property
    def pid(self) -> int | None:
        """Of the server's process, if it is ours."""
        return None if self._process is None else self._process.pid

    def _connect(self, checkpoint: Path | None) -> ReverbLink:
        config = self._config
        address = config.address
        if address is None:
            self._process = ServerProcess(
                self._tables, self._new_folder(), port=config.port, checkpoint=checkpoint
            )
            address = f"localhost:{self._process.port}"
        process = self._process
        link = ReverbLink(
            address,
            timeout_s=config.timeout_s,
            chunk=config.chunk,
            longest=self._longest,
            death=lambda: None if process is None else process.death(),
        )
        try:
            self._require_tables(link, address)
        except ReverieError:
            self.close()
            raise
        return link

    def _new_folder(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        taken = [int(path.name) for path in self.folder.iterdir() if path.name.isdigit()]
        return self.folder / f"{max(taken, default=0) + 1}"

    def _require_tables(self, link: ReverbLink, address: str) -> None:
        """A table that was restored keeps its saved size and limiter, whatever is configured: then nobody goes on."""
        infos = link.info()
        for table in self._tables:
            info = infos.get(table.name)
            limits = None if info is None else info.rate_limiter_info
            fits = (
                info is not None
                and limits is not None
                and (info.max_size, info.max_times_sampled) == (table.max_size, table.times_sampled)
                and (limits.min_size_to_sample, limits.samples_per_insert) == (1, 1)
            )
            if not fits:
                found = (
                    "is missing" if info is None else f"has size {info.max_size} and another limiter or use"
                )
                raise ConfigError(
                    f"table {table.name} {found}, wanted is size {table.max_size}",
                    where=f"buffers.reverb.address={address}",
                    remedy="start the server with this run's arguments, from an empty folder or this run's checkpoint",
                )

    def restart(self, reason: ServerLost) -> None:
        """A new server from the newest checkpoint, or empty. ReplayError when the server is not ours."""
        if self._process is None:
            raise ReplayError(
                reason.what,
                where=f"buffers.reverb.address={self._config.address}",
                remedy="start it again from its folder, then resume the run",
            )
        self._process.stop()
        self.link = self._connect(self._newest)

    def due(self) -> bool:
        """Whether the next checkpoint beside the run's is due."""
        return (
            self._process is not None
            and time.monotonic() - self._checkpointed >= self._config.checkpoint_every_s
        )

    def checkpoint(self, *, lasting: bool) -> dict[str, Any]:
        """Have the server write one; what ``load`` needs to find it. ``lasting``: it belongs to one of the run."""
        written = Path(self._checkpoint())
        self._checkpointed = time.monotonic()
        if self._process is None:
            return {"address": self._config.address, "path": str(written)}
        # The server itself keeps its newest only.
        path = self.folder / SAVED / written.name
        link_checkpoint(written, path)
        before, self._newest = self._newest, path
        if lasting:
            self._lasting.append(path)
        for old in [*self._lasting[: -self._keep], *([before] if before not in self._lasting else [])]:
            if old is not None and old != path:
                shutil.rmtree(old, ignore_errors=True)
        self._lasting = self._lasting[-self._keep :]
        if not lasting:
            return {}
        return {"path": str(path.relative_to(self.folder)), "sha256": hash_checkpoint(path)}

    def _checkpoint(self) -> str:
        """Where it is. Two buffers with one server may ask for it at once; then the server deletes what it writes for one as
        older than the other's.
        """
        if self._process is None:
            for _ in range(CLASHES):
                with suppress(ServerLost):
                    return self.link.checkpoint()
        return self.link.checkpoint()

    def _require_items(self, items: dict[str, int]) -> None:
        """A server that was started again from nothing, or from an older checkpoint, would be asked for what it never had."""
        infos = self.link.info()
        for table, wanted in items.items():
            found = infos[table].current_size
            if found < wanted:
                raise CheckpointError(
                    f"table {table} of the server has {found} items, the checkpoint counts {wanted}",
                    where=f"buffers.reverb.address={self._config.address}",
                    remedy="start the server from the folder where it wrote its checkpoints, run.dir of python -m platform.replay",
                )

    def load(self, saved: dict[str, Any], items: dict[str, int]) -> None:
        """Serve what ``saved`` describes, at least so many ``items`` of each table. CheckpointError when it is torn, or was
        of a server elsewhere and is now to be one of this run's, or the other way round.
        """
        elsewhere = "address" in saved
        if elsewhere != (self._process is None):
            raise CheckpointError(
                "the checkpoint's Reverb server ran " + ("elsewhere" if elsewhere else "in the run"),
                where="buffers.reverb.address",
                remedy=f"resume with buffers.reverb.address={saved['address']}"
                if elsewhere
                else "resume without it",
            )
        if elsewhere:
            self._require_items(items)
            return
        path = self.folder / saved["path"]
        verify_checkpoint(path, saved["sha256"])
        assert self._process is not None
        self._process.stop()
        self._newest = path
        # What a later part of the run left is in nobody's way until newer ones come.
        self._lasting = [*sorted(each for each in path.parent.iterdir() if each != path), path]
        self.link = self._connect(path)

    def close(self) -> None:
        """End the server if it is ours."""
        if self._process is not None:
            self._process.stop()
        if self._temporary is not None:
            self._temporary.cleanup()
