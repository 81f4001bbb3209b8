"""Serve the replay buffers of a run from this machine: python -m platform.replay {real,imagined,real+imagined} [key=value ...]

Takes the arguments of the run that is to use them, which itself gets buffers.backend=reverb and
buffers.reverb.address=<this machine>:<port>. buffers.reverb.port says where to listen (8000 unless given); tables and
checkpoints lie in run.dir (outputs/replay unless given), and the newest checkpoint there is loaded at the start.

Reverb asks nobody who they are and listens on every interface: keep the port behind a firewall.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

from buffers.backends import stored_spec
from buffers.reverb_server import serve
from buffers.reverb_tables import table_specs
from configs.errors import ResourceError
from configs.loader import load_config
from configs.schema import TrainConfig
from configs.system import BuffersConfig

from .command import main
from .context import make_context
from .plan import memory_bytes

log = logging.getLogger("reverie.replay")

DEFAULT_PORT = 8000
DEFAULT_FOLDER = "outputs/replay"


def run(argv: list[str]) -> int:
    """Serve until interrupted."""
    config = load_config(TrainConfig, argv)
    spec = make_context(config, seed=0, device="cpu").record_spec
    _check_memory(config.buffers)
    tables = [
        *table_specs(spec, config.buffers.real, name="real", modelled=True),
        *table_specs(stored_spec(spec, "imagined"), config.buffers.imagined, name="imagined", modelled=False),
    ]
    ends = {signal.SIGINT, signal.SIGTERM}
    # Before the server's threads are made: they inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    folder = Path(config.run.dir or DEFAULT_FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    server = serve(tables, str(folder), config.buffers.reverb.port or DEFAULT_PORT)
    log.info("serving %d tables on port %d, checkpoints in %s", len(tables), server.port, folder)
    try:
        signal.sigwait(ends)
    finally:
        server.stop()
    return 0


def _check_memory(buffers: BuffersConfig) -> None:
    """ResourceError where full tables would not fit into this machine."""
    held, there = buffers.real.max_bytes + buffers.imagined.max_bytes, memory_bytes()
    if held > there:
        raise ResourceError(
            f"the tables may take {held / 1e9:.1f} GB, the machine has {there / 1e9:.1f} GB", where="buffers",
            remedy="lower buffers.real.max_bytes and buffers.imagined.max_bytes, here and in the run",
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(run, __doc__, config=TrainConfig))
