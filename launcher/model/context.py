"""Everything a launch takes from outside: read once, then frozen."""

import contextlib
import functools
import getpass
import os
import random
import re
import string
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pydantic

from launcher import VERSION
from launcher.common.paths import CHECKOUT
from launcher.common.problems import fail
from launcher.common.texts import object_text
from launcher.model.work_tree import git_environment

_SUFFIX_LENGTH, _NAME_LENGTH = 5, 41
"""Random characters of a job name, and those of run.name: together the 47 of a RayJob's longest name.

Source: the published launcher's suffix; KubeRay, whose services have the job's name and more within a DNS label. The
published 34 characters of run.name cut off what tells two recipes apart, such as -lora and -fft.
"""
_SHORTEST_COMMIT = 40
"""Characters of a commit's name, in hexadecimal. Source: Git, Hash function transition: SHA-1."""


class LaunchContext(NamedTuple):
    """The values in which launches of the same recipe differ.

    Args:
        cwd: Relative paths start here.
        suffix: Random part of the job's name, lower-case letters and digits.
        created: ISO 8601 in UTC.
        git_revision: Returns the revision of the recipes' checkout; None if installed, or without git. Git is asked
            at the first call, which only a bundle makes, and later calls return the same.
        versions: Version of each package that shapes a bundle.
    """

    cwd: Path
    suffix: str
    created: str
    user: str
    git_revision: Callable[[], str | None]
    versions: Mapping[str, str]

    @classmethod
    def read(cls) -> "LaunchContext":
        """Read the current context of this process."""
        return cls(
            cwd=Path.cwd(),
            suffix=random_suffix(),
            created=current_time(),
            user=current_user(),
            git_revision=functools.cache(lambda: _git_revision(CHECKOUT) if CHECKOUT else None),
            versions={"recipe-launcher": VERSION, "hydra-core": _hydra_version(), "pydantic": pydantic.VERSION},
        )


def current_time() -> str:
    """Return the time in ISO 8601, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def random_suffix() -> str:
    """Return the random part of a job's name."""
    return "".join(random.SystemRandom().choices(string.ascii_lowercase + string.digits, k=_SUFFIX_LENGTH))


def checked_suffix(suffix: str) -> str:
    """Return the random part of a job's name as a program gives it.

    Raises:
        ProblemsFound: It cannot be in the name (E301).
    """
    if not isinstance(suffix, str) or not re.fullmatch(f"[a-z0-9]{{{_SUFFIX_LENGTH}}}", suffix):
        allowed = f"{_SUFFIX_LENGTH} lower-case letters and digits"
        raise fail("E301", "suffix", "cannot end the name of a job", value=object_text(suffix), allowed=allowed)
    return suffix


def checked_time(time: str) -> str:
    """Return the time of a launch as a program gives it, in UTC.

    Raises:
        ProblemsFound: It has another form, or no zone, and cannot be compared with others (E001).
    """
    with contextlib.suppress(ValueError, TypeError):
        given = datetime.fromisoformat(time)
        if given.utcoffset() is not None:
            return given.astimezone(UTC).isoformat()
    allowed = "a text in ISO 8601 with its zone: 2026-01-31T12:00:00+00:00"
    raise fail("E001", "session.clock", "does not return a time", value=object_text(time), allowed=allowed)


@functools.cache
def _hydra_version() -> str:
    """Return Hydra's version as its package states it. Importing it takes 0.2 s, reading its metadata 20 ms."""
    spec = find_spec("hydra")
    found = re.search(r'^__version__ = "(.+)"', Path(spec.origin).read_text(), re.M) if spec and spec.origin else None
    return found[1] if found else ""


def job_name(run_name: str, suffix: str) -> str:
    """Return the name of a job: the start of its recipe's run.name, and the suffix of its launch."""
    return f"{run_name[:_NAME_LENGTH].rstrip('-')}-{suffix}"


def current_user() -> str:
    """Return the name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry in the password database
        return str(os.getuid())


def _git_revision(folder: Path) -> str | None:
    """Return the commit that is checked out, with `-dirty` if a tracked file differs."""
    # `git describe --dirty` gives the same in twice the processor time
    command = ["git", "--no-optional-locks", "-C", str(folder), "status", "--porcelain=v2", "--branch", "-uno"]
    try:
        result = subprocess.run(command, env=git_environment(), capture_output=True, text=True, timeout=5)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    commit, *rest = result.stdout.splitlines() or [""]
    oid = commit.removeprefix("# branch.oid ")
    if len(oid) < _SHORTEST_COMMIT:  # no repository, or no commit in it
        return None
    return oid if all(line.startswith("#") for line in rest) else f"{oid}-dirty"
