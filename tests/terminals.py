"""A real terminal for tests."""

import os
import pty
import sys

from conftest import ROOT


def on_a_terminal(*words, **variables):
    """Run a command line on a terminal of 80 columns; return all that it wrote there."""
    return python_on_a_terminal("-m", "launcher", *words, **variables)


def python_on_a_terminal(*arguments, **variables):
    """Run Python on a terminal of 80 columns; return all that it wrote there."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "50", "PYTHONPATH": str(ROOT), **variables}
        os.execv(sys.executable, [sys.executable, *arguments])
    written = b""
    try:
        while part := os.read(terminal, 65536):
            written += part
    except OSError:  # the terminal is gone with its last process
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    return written.decode()
