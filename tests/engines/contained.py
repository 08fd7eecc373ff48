"""A program as a container starts it: as process 1, where this machine allows namespaces of processes."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

TIMEOUT_S = 240.0
_NEW_NAMESPACE = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")


class Contained:
    """A program that runs in a folder, and all below it: they end with the block.

    Args:
        work: The folder; what the program prints is in its file `log`.
        words: The program and its arguments.
        environment: Its variables.
    """

    def __init__(self, work: Path, words: Sequence[str | os.PathLike[str]], environment: Mapping[str, str]):
        self.work = work
        self.is_process_one = _is_allowed()
        with (work / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*(_NEW_NAMESPACE if self.is_process_one else ()), *words],
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.below(), self.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def below(self) -> list[psutil.Process]:
        """Return the processes below the one that was started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def main_process(self) -> psutil.Process:
        """Return process 1."""
        one = psutil.Process(self.process.pid)
        return one.children()[0] if self.is_process_one else one

    def log(self) -> str:
        return (self.work / "log").read_text(errors="replace")

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds, for as long as the program runs."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def wait(self) -> int:
        """Return the program's exit status."""
        return self.process.wait(TIMEOUT_S)


def _is_allowed() -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run([*_NEW_NAMESPACE, "true"], capture_output=True, timeout=200).returncode == 0
    return False
