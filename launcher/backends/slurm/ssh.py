"""Runs commands on a login node, by OpenSSH's own client with the user's configuration, keys and agent.

What runs is data: the login shell gets one constant line, which starts bash; a script, its words and variables
come on standard input. So nothing is quoted for a shell, and nothing secret is in a list of arguments.
"""

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from launcher.backends.slurm.programs import KEPT, PREFIXES
from launcher.common.problems import ProblemsFound, fail
from launcher.common.templating import render_template

ENV_CONFIG = "RECIPES_SSH_CONFIG"
"""Environment variable of the launch: a configuration file of OpenSSH that replaces the user's own."""
_KEY = "cluster.ssh"
_BOOTSTRAP = """exec bash -lc 'IFS= read -r -d "" script; eval "$script"'"""
"""Understood by every login shell. A login shell's files put Slurm's commands on the path."""
_OPTIONS = (
    *("BatchMode=yes", "ClearAllForwardings=yes", "ConnectTimeout=20"),
    *("ServerAliveInterval=15", "ServerAliveCountMax=3"),
)
"""No questions, no ports for other uses, and a lost connection is noticed within a minute. Source: ssh_config(5)."""
_KEPT_S = 60
"""Seconds for which a connection is kept for the next command."""
RSYNC = ("-s", "--recursive", "--times", "--omit-dir-times", "--from0", "--files-from=-")
"""Options of every copy: names pass no shell, and only folders and regular files are copied. Source: rsync(1)."""
_COPY_S = 600.0
_TRY = "ssh {name} true must work without a question"
_CAUSES = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "E456",
        "ask whether the host was replaced, then: ssh-keygen -R {name}",
    ),
    ("Host key verification failed", "E456", "connect once by hand to compare and accept the host's key: ssh {name}"),
    ("Permission denied", "E456", f"load your key (ssh-add), or name it in ~/.ssh/config: {_TRY}"),
    ("Too many authentication failures", "E456", "name one key in ~/.ssh/config: IdentityFile, IdentitiesOnly=yes"),
    ("Could not resolve hostname", "E455", "correct the name, or describe the host in ~/.ssh/config"),
    (
        "no matching",
        "E456",
        "let ~/.ssh/config allow what the host offers: HostKeyAlgorithms, KexAlgorithms, Ciphers",
    ),
    ("Bad owner or permissions", "E456", "chmod 600 ~/.ssh/config, which only you may write"),
    ("Bad configuration option", "E456", "correct the option in the configuration that the message names"),
    ("account is", "E456", "ask the administrator of {name}: your account there admits no login"),
    ("expired", "E456", "renew your password or account: ssh {name}"),
    ("Connection refused", "E455", f"the host runs no ssh server at this port: compare Port, {_TRY}"),
    ("timed out", "E455", f"compare name, VPN and firewall, then try again: {_TRY}"),
    ("No route to host", "E455", f"compare name, VPN and firewall, then try again: {_TRY}"),
    ("Network is unreachable", "E455", f"connect this machine to a network: {_TRY}"),
    ("Connection reset", "E455", f"the host ended the connection; try again: {_TRY}"),
    ("Connection closed", "E455", f"the host ended the connection; try again: {_TRY}"),
    ("too long for Unix domain socket", "E455", "shorten ControlPath in ~/.ssh/config"),
)
"""Part of a message of ssh, the code of its Problem, and its remedy. Source: OpenSSH 9.2, its messages."""
_PARTIAL = (23, 24)
"""Exit codes of rsync for files that it could not read, or that are gone. Source: rsync(1), Exit values."""


@dataclass(frozen=True, slots=True)
class Session:
    """The exit code of a command on the other machine, its standard output and its standard error."""

    code: int
    out: bytes
    error: str


class Login(NamedTuple):
    """Name and home folder of the user at a login node."""

    user: str
    home: str


class Connection:
    """A login node, as OpenSSH's client reaches it. Threads may share it.

    Args:
        name: `user@host`, or a name from the configuration of OpenSSH.
    """

    def __init__(self, name: str):
        self.name = name
        self._has_rsync = True

    @functools.cached_property
    def login(self) -> Login:
        """The user there; `run` names the Problems of a node that is not reached."""
        answer = self.run(("bash", "-c", r'printf "%s\0" "$(id -un)" "$HOME"'))
        user, home = answer.out.decode(errors="surrogateescape").split("\0")[:2]
        return Login(user, home.rstrip("/"))

    def run(
        self,
        words: Iterable[str],
        *,
        folder: str = "",
        env: Mapping[str, str] | None = None,
        data: bytes | IO[bytes] = b"",
        timeout_s: float | None = None,
    ) -> Session:
        """Run a command there and return its answer.

        Args:
            folder: Its working folder; "" for the home folder.
            data: Its standard input.
            timeout_s: None for no limit.

        Raises:
            ProblemsFound: The node is not reached, or the connection was lost (E455), or it refuses the login (E456).
        """
        marker = secrets.token_hex(16)
        pairs = [f"{name}={value}" for name, value in (env or {}).items()]
        words = list(words)
        fields = [
            render_template("slurm/ssh_run.sh.j2", prefixes=PREFIXES, kept=KEPT),
            marker,
            folder,
            str(len(words)),
            *words,
            str(len(pairs)),
            *pairs,
        ]
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
            # Files, not pipes: a connection that is kept keeps its streams.
            asked.write(b"".join(os.fsencode(field) + b"\0" for field in fields))
            if isinstance(data, bytes):
                asked.write(data)
            else:
                shutil.copyfileobj(data, asked)
            asked.seek(0)
            command = [*_client(), *_shared(self.name), "-T", "--", self.name, _BOOTSTRAP]
            try:
                subprocess.run(command, stdin=asked, stdout=out, stderr=error, timeout=timeout_s, check=False)
            except FileNotFoundError as missing:
                message = "OpenSSH's client is not installed on this machine"
                remedy = "install ssh, such as openssh-client"
                raise fail("E455", _KEY, message, value=self.name, remedy=remedy) from missing
            except subprocess.TimeoutExpired as late:
                raise fail("E455", _KEY, f"does not answer after {timeout_s:g} s", value=self.name) from late
            return self._answer(marker, _content(out), _content(error).decode(errors="replace"))

    def rsync(self, options: Iterable[str], folder: str, target: Path, names: bytes) -> bool:
        """Copy files from there by rsync; return whether it did. Without it on either side another way is left.

        Args:
            options: Further options of rsync.
            folder: The folder there from which names start.
            names: Files and folders, each ended by a null character.
        """
        shell = " ".join(f'"{word}"' for word in (*_client(), *_shared(self.name), "-T"))
        words = ["rsync", f"--rsh={shell}", *RSYNC, *options, f"{self.name}:{folder}/", f"{target}/"]
        if self._has_rsync:
            with contextlib.suppress(FileNotFoundError, subprocess.TimeoutExpired):
                # No pipes: a connection that is kept keeps its streams.
                quiet = subprocess.DEVNULL
                done = subprocess.run(words, input=names, stdout=quiet, stderr=quiet, timeout=_COPY_S, check=False)
                # Otherwise it is missing on either side, or it is not known: its exit code for both may be the same.
                self._has_rsync = done.returncode in (0, *_PARTIAL)
                return done.returncode == 0
        return False

    def _answer(self, marker: str, out: bytes, error: str) -> Session:
        """Return what stands between the markers; without the last one the connection was lost."""
        mark = f"\n{marker}\n".encode()
        _, begun, rest = out.partition(mark)
        body, ended, code = rest.rpartition(f"\n{marker} ".encode())
        if not (begun and ended and code.strip().isdigit()):
            raise self._lost(error, is_begun=bool(begun))
        return Session(int(code), body, error.partition(mark.decode())[2])

    def _lost(self, error: str, *, is_begun: bool) -> ProblemsFound:
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        said = "; ".join(lines[-2:]) or "no message"
        if is_begun:
            return fail("E455", _KEY, "the connection was lost", value=self.name, remedy="run the same command again")
        for part, code, remedy in _CAUSES:
            if part in error:
                return fail(code, _KEY, f"ssh: {said}", value=self.name, remedy=remedy.format(name=self.name))
        remedy = f"{_TRY}; the host needs bash".format(name=self.name)
        return fail("E455", _KEY, f"is not reached: {said}", value=self.name, remedy=remedy)


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _client() -> list[str]:
    config = os.environ.get(ENV_CONFIG)
    return ["ssh", *(("-F", config) if config else ()), *(word for each in _OPTIONS for word in ("-o", each))]


@functools.cache
def _shared(name: str) -> tuple[str, ...]:
    """Return the options by which commands share a connection; none if the user's configuration has its own.

    A connection that the user opened with a second factor keeps being used so.
    """
    with contextlib.suppress(OSError):
        shown = subprocess.run(
            [*_client(), "-G", "--", name], capture_output=True, text=True, errors="replace", check=False
        )
        if any(line.startswith("controlpath ") and line != "controlpath none" for line in shown.stdout.splitlines()):
            return ()
    folder = tempfile.mkdtemp(prefix="recipes-ssh-", dir="/tmp")  # short, since the path of a socket is limited
    options = ("ControlMaster=auto", f"ControlPath={folder}/%C", f"ControlPersist={_KEPT_S}")
    atexit.register(_close, name, folder)
    return tuple(word for each in options for word in ("-o", each))


def _close(name: str, folder: str) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        words = [*_client(), "-o", f"ControlPath={folder}/%C", "-O", "exit", "--", name]
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    shutil.rmtree(folder, ignore_errors=True)
