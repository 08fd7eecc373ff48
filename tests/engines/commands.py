"""The launcher's commands as processes, forked from one that has imported everything: each starts in milliseconds.

`Popen` and `run` are those of subprocess. A command line of this Python with `main.py` or `-m launcher` is forked;
any other, and one whose options or environment a fork cannot have, is started as subprocess does.
"""

import atexit
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_server import LENGTH, MAIN, RECIPES

SERVER = Path(__file__).with_name("command_server.py")
PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
READ_AT_IMPORT = ("LANG", "LC_", "TERM", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "COLUMNS", "LINES", "PYTHON")
"""Beginnings of the variables that Python and the libraries read before a command has begun."""
READ_LATER = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""The server's environment: that of the tests before any of them changed it."""
AS_THIS_PROCESS = [True, None, None, None, -1]
"""Popen's restore_signals, group, extra groups, user and umask, where nothing is asked for."""


class Popen(subprocess.Popen):
    """A process, as subprocess starts it or forked from the server: a child of this one either way."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *others: Any) -> None:
        words = forkable(args)
        close_fds, pass_fds, cwd, env, _startupinfo, _creationflags, shell, *streams = others[:13]
        *as_whom, start_new_session, process_group = others[13:]
        environment = dict(os.environ if env is None else env)
        is_plain = close_fds and not (executable or preexec_fn or pass_fds or shell)
        is_plain = is_plain and (as_whom, process_group) == (AS_THIS_PROCESS, -1)
        if not words or not is_plain or start_variables(environment) != start_variables(ENVIRONMENT):
            return super()._execute_child(args, executable, preexec_fn, *others)
        folder = os.path.abspath(cwd or os.curdir)
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = streams
        passed = [given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = ask(words, environment, folder, start_new_session, passed)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        return None


def run(args: Any, *, input: Any = None, timeout: float | None = None, check: bool = False, **options: Any):
    """Run a command to its end, as subprocess.run does."""
    if options.pop("capture_output", False):
        options |= {"stdout": PIPE, "stderr": PIPE}
    if input is not None:
        options["stdin"] = PIPE
    with Popen(args, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def forkable(args: Any) -> list[str]:
    """Return the words after this Python of one of the launcher's commands; none of any other command."""
    words = [args] if isinstance(args, str | os.PathLike) else [os.fspath(word) for word in args]
    is_measured = "coverage" in sys.modules  # which sees only processes that leave as Python does
    if not is_measured and words[0] == sys.executable and (words[1] == MAIN or tuple(words[1:3]) == RECIPES):
        return words[1:]
    return []


def start_variables(environment: Any) -> dict[str, str]:
    """Return the variables that matter before a command has begun."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_IMPORT) and name not in READ_LATER
    }


def ask(words: list[str], environment: dict[str, str], folder: str, new_session: bool, streams: list[int]) -> int:
    """Have a command run; return the number of its process."""
    text = json.dumps({"words": words, "environment": environment, "folder": folder, "new_session": new_session})
    server = _server()
    socket.send_fds(server, [LENGTH.pack(len(text))], streams)
    server.sendall(text.encode())
    return LENGTH.unpack(server.recv(LENGTH.size, socket.MSG_WAITALL))[0]


_servers: dict[int, tuple[socket.socket, subprocess.Popen]] = {}


def _server() -> socket.socket:
    """Return the connection to this process's server."""
    if os.getpid() not in _servers:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, str(SERVER), str(theirs.fileno())]
            process = subprocess.Popen(command, cwd="/", env=ENVIRONMENT, pass_fds=[theirs.fileno()])
        _servers[os.getpid()] = ours, process
        atexit.register(_close)
    return _servers[os.getpid()][0]


def _close() -> None:
    if found := _servers.pop(os.getpid(), None):
        found[0].close()
        found[1].wait()
