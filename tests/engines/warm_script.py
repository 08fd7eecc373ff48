"""A process that has imported torch, and forks the workers whose program is a script of the tests.

    python warm_script.py NAME        NAME is its abstract socket; a worker that requests a fork names its script

A user's own script starts cold: a job of many restarts spends most of its time on the import of torch. Tests that
start such a job to see something else run `forked` in place of the script.
"""

import contextlib
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
from background import await_true

from launcher.common import names
from launcher.runtime import entrypoint, warm
from launcher.runtime.warm_client import answers

FORKED = """\
import os, sys
from launcher.runtime import warm_client
os.environ[{variable!r}] = {name!r}
sys.argv = [{script!r}]
warm_client.run_warm()
sys.exit("the warm process of the tests has ended")
"""
ROOT = Path(__file__).resolve().parents[2]


class WarmScript:
    """A running warm process."""

    def __init__(self, name: str, process: subprocess.Popen):
        self.name, self._process = name, process

    def forked(self, script: Path) -> str:
        """Return the text of a program that runs a script in a fork of this process."""
        return FORKED.format(variable=names.ENV_WARM_SOCKET, name=self.name, script=str(script))

    def assert_alone(self) -> None:
        """Wait until no fork runs: those of a job's last workers end with it."""
        assert self._process.poll() is None
        await_true(lambda: not psutil.Process(self._process.pid).children(), "the end of the forks", timeout_s=120)


@contextlib.contextmanager
def running(name: str, **environment: str) -> Iterator[WarmScript]:
    """Run a warm process until the block ends."""
    name = f"{name}-{os.getpid()}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    process = subprocess.Popen([sys.executable, __file__, name], env=environment)
    try:
        await_true(lambda: process.poll() is not None or answers(name), "the imports")
        yield WarmScript(name, process)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    entrypoint.train = lambda: runpy.run_path(sys.argv[0], run_name="__main__")
    warm.main()
