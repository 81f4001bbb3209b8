"""Whether somebody listens where a Reverb server is said to be: Reverb itself would try for long, and not say why."""

from __future__ import annotations

import socket

from configs.errors import ResourceError

CONNECT_TIMEOUT_S = 5.0


def require_listener(address: str) -> None:
    """ResourceError when nothing listens at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ResourceError(
            f"no Reverb server listens there: {error}",
            where=f"buffers.reverb.address={address}",
            remedy="start it with python -m platform.replay and this run's arguments, or correct the address",
        ) from error
