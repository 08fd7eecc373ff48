"""The page as a user starts it: a process of its own, on a folder of results."""

import contextlib
import hmac
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Served(NamedTuple):
    """A server.

    Args:
        url: The address with its token.
    """

    process: subprocess.Popen
    url: str

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return self.url.partition("/jobs")[0]

    @property
    def token(self) -> str:
        return self.url.rpartition("token=")[2]

    @property
    def cookie(self) -> str:
        """The header of a request that is signed in."""
        name = f"recipes-{self.origin.rpartition(':')[2]}"
        return f"{name}={hmac.new(self.token.encode(), name.encode(), 'sha256').hexdigest()}"

    def get(self, path: str, **headers: str) -> bytes:
        """Return what a path answers to a request that is signed in."""
        request = urllib.request.Request(self.origin + path, headers={"cookie": self.cookie, **headers})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.read()

    @property
    def memory_mib(self) -> float:
        """Resident memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    @property
    def cpu_s(self) -> float:
        """Processor seconds of the process."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def served(results: Path, state: Path, *words: str) -> Iterator[Served]:
    """Serve a results folder until the end of the block.

    Args:
        state: Folder of the token.
        words: Further arguments of `recipes ui`.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher", "ui", str(results), "--no-browser", *words],
        cwd=results.parent,
        env={**os.environ, "XDG_STATE_HOME": str(state), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), url
        yield Served(process, url)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
