"""A network of its own for this process and its descendants: the loopback interface alone. Standard library only.

Ray takes the machine's own address even for nodes of 127.0.0.1; in such a network it has no other.

Source: unshare(2), CLONE_NEWNET and CLONE_NEWUSER; user_namespaces(7); netdevice(7), SIOCSIFFLAGS.
"""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_SET_FLAGS, _IS_UP = 0x8914, 1


def isolate() -> bool:
    """Move this process into a network of its own; return whether the machine allows it.

    A fork tries it first: a process that enters a network and may not use it cannot return. Call it before threads
    start, of which the kernel allows none.
    """
    if (pid := os.fork()) == 0:
        code = 1
        try:
            _enter()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if status:
        return False
    _enter()
    return True


def _enter() -> None:
    """Enter the network, and start its loopback interface. Root needs no user namespace for that, others do."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_NETWORK):
        if libc.unshare(_NEW_USER | _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "unshare refused")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text, encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP))
