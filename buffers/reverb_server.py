"""The process of a Reverb server: python -m buffers.reverb_server <folder> <port>, its tables as JSON on the first line
of its standard input.

It loads the newest checkpoint in the folder, writes ``port <number>`` on standard output when it serves, and ends when
its standard input does: so it never outlives whoever started it, however that ended.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from buffers.reverb_package import load_reverb
from buffers.reverb_tables import TableSpec

READY = "port"


def serve(tables: list[TableSpec], folder: str, port: int) -> Any:
    """A running server with its checkpoints in ``folder``; 0 takes a free port."""
    reverb = load_reverb()
    from reverb.platform.default.checkpointers import DefaultCheckpointer

    return reverb.Server(
        [_table(reverb, table) for table in tables],
        port=port or None,
        checkpointer=DefaultCheckpointer(folder),
    )


def _table(reverb: Any, spec: TableSpec) -> Any:
    selectors = {
        "oldest": reverb.selectors.Fifo,
        "highest": reverb.selectors.MaxHeap,
        "uniform": reverb.selectors.Uniform,
        "weighted": lambda: reverb.selectors.Prioritized(spec.exponent),
    }
    # Pace is kept by the buffer, which can say who waits for what; a table lets everything through.
    return reverb.Table(
        spec.name,
        selectors[spec.order](),
        reverb.selectors.Fifo(),
        spec.max_size,
        reverb.rate_limiters.MinSize(1),
        spec.times_sampled,
    )


def main(argv: list[str]) -> None:
    """See the module."""
    folder, port = argv
    tables = [TableSpec(**data) for data in json.loads(sys.stdin.readline())]
    server = serve(tables, folder, int(port))
    sys.stdout.write(f"{READY} {server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
