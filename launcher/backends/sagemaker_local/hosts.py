"""The hosts of one attempt: started, watched and terminated together."""

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from launcher.backends.sagemaker_local.channels import Feed
from launcher.backends.sagemaker_local.optml import Host
from launcher.common.paths import TEMPLATES
from launcher.model import following

_SCRIPT = TEMPLATES / "contract" / "host.sh"
_KILL_TIMEOUT_S = 15.0
_KILL_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Ended:
    """A host whose program has ended.

    Args:
        code: Exit status, 128 + N if signal N ended it.
        is_lost: Whether something other than the launcher killed it, as when an instance is lost.
    """

    host: Host
    code: int
    is_lost: bool


@dataclass(slots=True)
class Fleet:
    """The programs of an attempt.

    Args:
        lock: The job's lock, which every program inherits.
    """

    log_dir: Path
    attempt: int
    lock: IO[bytes]
    running: dict[str, tuple[Host, subprocess.Popen[bytes]]] = field(default_factory=dict)

    def start(self, host: Host, words: Sequence[str], environment: Mapping[str, str], feeds: Sequence[Feed]) -> None:
        """Start a host's program.

        Raises:
            OSError: It does not exist. With namespaces the host's shell reports that instead, and exits with 127.
        """
        # The program must end with this process; if this is process 1, the kernel ends it.
        guard = () if os.getpid() == 1 else ("setpriv", "--pdeathsig", "KILL")
        self.log_dir.mkdir(exist_ok=True)
        with (self.log_dir / f"{host.name}-{self.attempt:02}.log").open("wb") as log:
            process = subprocess.Popen(
                [*guard, *(_private(host, words, feeds) if host.is_private else words)],
                env=environment,
                cwd="/" if host.is_private else _linked(host, feeds),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self.lock.fileno(),),
            )
        self.running[host.name] = (host, process)

    def collect(self) -> list[Ended]:
        """Return the hosts whose programs have ended since the last call, and forget them."""
        ended = []
        for name, (host, process) in list(self.running.items()):
            if (code := process.poll()) is not None:
                del self.running[name]
                ended.append(Ended(host, code if code >= 0 else 128 - code, code == -signal.SIGKILL))
        return ended

    def terminate(self) -> None:
        """Send every program the signal that stops a container's first process."""
        for _, process in self.running.values():
            process.send_signal(signal.SIGTERM)


def kill_all() -> None:
    """Kill every process of the job except this one, its operator, and return when they have ended."""
    if os.getpid() != 1:
        # Without a PID namespace, a job's processes are the descendants of its operator.
        from launcher.operator.processes import kill_descendants

        kill_descendants()
        return

    def is_alone() -> bool:
        try:
            os.kill(-1, signal.SIGKILL)  # every process of this PID namespace
        except ProcessLookupError:
            return True
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # until it is reaped, a process counts as one
                pass
        return False

    following.until(is_alone, _KILL_TIMEOUT_S, _KILL_POLL_S)


def _private(host: Host, words: Sequence[str], feeds: Sequence[Feed]) -> list[str]:
    """Return the arguments that start a program inside its host's namespaces."""
    mounts = [("rw" if each.is_writable else "ro", str(each.folder), each.name) for each in feeds if each.folder]
    script = ["sh", str(_SCRIPT), host.name, str(host.folder), *itertools.chain.from_iterable(mounts)]
    return ["unshare", "--mount", "--uts", *script, "--", *words]


def _linked(host: Host, feeds: Sequence[Feed]) -> Path:
    """Create links in place of mounts; return the folder the program starts in."""
    for feed in feeds:
        if feed.folder:
            place = host.data_dir / feed.name
            place.rmdir()
            place.symlink_to(feed.folder)
    return host.real("/opt/ml/code")
