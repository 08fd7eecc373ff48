"""Files of a wrong kind in place of those of a checkpoint."""

import contextlib
import os
import socket
from pathlib import Path

from launcher.runtime.durable import delete

KINDS = ("file", "folder", "pipe", "socket", "loop", "link to nothing", "link to a device")


def of_kind(kind: str, path: Path) -> None:
    """Put a file of a wrong kind in place of a file or a folder."""
    if os.path.lexists(path):
        delete(path)
    if kind == "file":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(path.parent):
            listener.bind(path.name)
    else:
        path.symlink_to({"loop": path.name, "link to nothing": "absent", "link to a device": "/dev/zero"}[kind])
