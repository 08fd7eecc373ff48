"""How well this machine can isolate hosts: probed in the kernel whenever a job starts.

Source: unshare(1), namespaces(7), user_namespaces(7).
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_OWN_PIDS = ("--pid", "--fork", "--kill-child", "--mount-proc")
_JANITOR = 'trap \'\' HUP INT TERM; "$@"; code=$?; rm -rf "$0"; exit $code'
"""Runs the operator, then removes the hosts' folders, however it ended."""

_TRIAL = """
set -e
[ -d /opt ]
mount --make-rprivate /
echo probe > /proc/sys/kernel/hostname
mount --bind /etc/hosts /etc/hosts
"""
_TRIAL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Isolation:
    """A way to isolate hosts.

    Args:
        name: Value of the operator's --isolation.
        words: Words before the operator's command; every process of the job ends with theirs.
        is_private: Whether each host has its own /opt/ml, host name and /etc/hosts.
        note: Message for the user.
    """

    name: str
    words: tuple[str, ...]
    is_private: bool
    note: str

    @property
    def has_own_pids(self) -> bool:
        """Whether the kernel ends every process of the job with its operator."""
        return "--pid" in self.words


FOLDERS = Isolation(
    "folders",
    (),
    False,
    "this kernel does not allow namespaces: each host has a folder instead of /opt/ml, which SM_* and"
    " SAGEMAKER_BASE_DIR name, and words that begin with /opt/ml/ are rewritten; host names do not resolve, and"
    " mounts are replaced by links, which allow writing",
)
"""Always possible."""

_NOTE = "each host has its own /opt/ml, host name and /etc/hosts, through namespaces"
_SHARED = "processes share this machine's process ids"
_ROOT, _USER = ("unshare", "--mount"), ("unshare", "--map-root-user", "--mount")

AS_ROOT = (
    Isolation("root", (*_ROOT, *_OWN_PIDS), True, f"{_NOTE} as root"),
    Isolation("root-shared-pids", _ROOT, True, f"{_NOTE} as root; {_SHARED}"),
)
"""Ways available to root, best first."""

AS_USER = (
    Isolation("user", (*_USER, *_OWN_PIDS), True, f"{_NOTE} as an ordinary user, who is root inside"),
    Isolation("user-shared-pids", _USER, True, f"{_NOTE} as an ordinary user, who is root inside; {_SHARED}"),
)
"""Ways available to an ordinary user if the kernel lets users create namespaces, best first."""


def guarded(isolation: Isolation, hosts_dir: Path, words: Sequence[str]) -> list[str]:
    """Return the start command of an operator: no process of its job outlives it, nor do the hosts' folders."""
    return ["sh", "-c", _JANITOR, str(hosts_dir), *isolation.words, *words]


def probe() -> Isolation:
    """Return the best way that works, tested with a process that changes nothing."""
    candidates = AS_ROOT if os.geteuid() == 0 else AS_USER
    return next(filter(_works, candidates), FOLDERS)


def named(name: str) -> Isolation:
    """Return a way by its name."""
    return next(each for each in (*AS_ROOT, *AS_USER, FOLDERS) if each.name == name)


def _works(isolation: Isolation) -> bool:
    words = (*isolation.words, "unshare", "--mount", "--uts", "sh", "-c", _TRIAL)
    try:
        done = subprocess.run(words, capture_output=True, timeout=_TRIAL_TIMEOUT_S, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
