"""Ports that remain reserved for a job until it ends."""

import socket

LOOPBACK = "127.0.0.1"


def reserve_port(address: str = LOOPBACK) -> socket.socket:
    """Return a bound socket, which never listens, that reserves a free port for this process's children.

    Args:
        address: Of an interface of this machine; its family is that of the socket.

    The kernel does not assign the port to processes that ask for any free one, while a server may listen on it by
    number: both sockets set SO_REUSEADDR and only one listens.

    Source: socket(7), SO_REUSEADDR; ip(7), ip_local_port_range.
    """
    family, *_, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    reservation = socket.socket(family, socket.SOCK_STREAM)
    # Set after bind: otherwise the kernel may assign a port that is reserved already.
    reservation.bind(place)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reservation


def port_of(reservation: socket.socket) -> int:
    """Return the port that `reservation` reserves."""
    return int(reservation.getsockname()[1])
