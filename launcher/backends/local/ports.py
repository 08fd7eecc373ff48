"""Loopback ports that stay a job's own until it ends."""

import socket

LOOPBACK = "127.0.0.1"


def reserve_port() -> socket.socket:
    """Return a bound, never listening socket that keeps a free loopback port for this process's children.

    The kernel gives the port to nobody who asks for any free one, while a server that names it may
    listen on it: both sockets set SO_REUSEADDR and only one listens.

    Source: socket(7), SO_REUSEADDR; ip(7), ip_local_port_range.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Set after bind: a socket that sets it before may be given a port that is reserved already.
    reservation.bind((LOOPBACK, 0))
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reservation


def port_of(reservation: socket.socket) -> int:
    """Return the port that `reservation` keeps."""
    return int(reservation.getsockname()[1])
