"""A process that has imported what the launcher's commands import, and forks one process for each command.

    python command_server.py FD        FD is the socket to the process that asks for commands; see commands.py

A fork is a child of the process that asks (CLONE_PARENT), which waits for it and signals it as any other child. It
has the command's arguments, environment, folder and standard streams, and runs the program that `python WORDS…` runs.
Only the command line and the environment that /proc reports are this process's.

Source: clone(2), CLONE_PARENT.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import platform
import runpy
import signal
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LENGTH = struct.Struct("!I")
MAIN = str(ROOT / "main.py")
RECIPES = ("-m", "launcher")
CLONE_PARENT = 0x8000
CLONE = {"x86_64": 56, "aarch64": 220}
"""Number of the system call. Source: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h."""

FURTHER = (
    *("mlflow", "mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.db.utils"),
    *("alembic.command", "sqlalchemy.dialects.sqlite", "hydra.main", "jinja2", "psutil", "rich.traceback"),
    "typer.rich_utils",
)
"""What commands import late, or not always."""


def import_everything() -> None:
    """Import what commands import; neither torch nor matplotlib, which take longer than all the rest."""
    import launcher

    for module in pkgutil.walk_packages(launcher.__path__, "launcher."):
        if not module.name.startswith("launcher.runtime") and not module.name.endswith(("__main__", "picture")):
            importlib.import_module(module.name)
    for name in FURTHER:
        importlib.import_module(name)


def fork() -> int:
    """Fork, and make the fork a child of this process's parent; return its number, 0 in the fork."""
    python, system = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)
    python.PyOS_BeforeFork()
    pid = system.syscall(CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def serve(asking: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return the request in the fork, None when nobody asks any more."""
    while True:
        head, streams, _, _ = socket.recv_fds(asking, LENGTH.size, 3)
        if not head:
            return None
        text = asking.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL)
        pid = fork()
        if pid == 0:
            asking.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return json.loads(text)
        for stream in streams:
            os.close(stream)
        asking.sendall(LENGTH.pack(pid))


def become(request: dict[str, Any]) -> None:
    """Take the arguments, environment, folder and streams of a command."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    words = request["words"]
    of_environment = os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.environ.get("PYTHONPATH") else []
    first = os.getcwd() if tuple(words[:2]) == RECIPES else str(ROOT)
    sys.path[:] = [first, *map(os.path.abspath, of_environment), *sys.path[1:]]
    sys.argv = words[1:] if tuple(words[:2]) == RECIPES else words
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        old = getattr(sys, name)
        binary = open(number, f"{mode}b", closefd=False, buffering=0 if is_unbuffered and mode == "w" else -1)  # noqa: SIM115
        new = type(old)(
            binary,
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=is_unbuffered,
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def leave_at_once(code: object) -> None:
    """End as the interpreter does, but free no object; return if the exit code or the output needs more."""
    if code is None or isinstance(code, int):
        threading._shutdown()
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit((code or 0) & 0xFF)


def main() -> None:
    """Serve until the other end is closed; in a fork, run the command and end as it does."""
    asking = socket.socket(fileno=int(sys.argv[1]))
    # No threads, which a fork would lack: mlflow imports numpy, and pandas, which imports pyarrow.
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    import_everything()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    gc.set_threshold(700, 10, 10)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has none of the other threads"
    try:
        request = serve(asking)
    except KeyboardInterrupt:  # of the terminal's: whoever asks has had it too
        request = None
    if request is None:
        return
    become(request)
    try:
        if tuple(request["words"][:2]) == RECIPES:
            runpy.run_module("launcher", run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(MAIN, run_name="__main__")
    except SystemExit as leaving:
        leave_at_once(leaving.code)
        raise


if __name__ == "__main__":
    main()
