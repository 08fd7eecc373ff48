"""Loopback ports: ones that are free, and ones on which nothing listens."""

import contextlib
import random
import socket
from collections.abc import Iterator

_RANGE = range(20_000, 32_000)
"""Below the ports that Linux chooses by itself (32768 and up: ip_local_port_range), so that none is given away."""


def free_ports(count: int) -> list[int]:
    """Return ports that nothing uses; only a process that wants this very number can take one before the caller."""
    found = []
    for port in random.SystemRandom().sample(_RANGE, len(_RANGE)):
        if len(found) == count:
            break
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


@contextlib.contextmanager
def closed() -> Iterator[int]:
    """Hold a port on which nothing listens, and which no other process is given until the block ends."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
