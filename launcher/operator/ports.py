"""Loopback ports that remain reserved for a job until it ends."""

import socket

LOOPBACK = "127.0.0.1"


def reserve_port() -> socket.socket:
    """Return a bound socket, which never listens, that reserves a free loopback port for this process's children.

    The kernel does not assign the port to processes that ask for any free one, while a server may listen on it by
    number: both sockets set SO_REUSEADDR and only one listens.

    Source: socket(7), SO_REUSEADDR; ip(7), ip_local_port_range.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Set after bind: otherwise the kernel may assign a port that is reserved already.
    reservation.bind((LOOPBACK, 0))
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reservation


def port_of(reservation: socket.socket) -> int:
    """Return the port that `reservation` reserves."""
    return int(reservation.getsockname()[1])
