"""Prints why a job failed: its first error, the cause and the remedy."""

from typing import TYPE_CHECKING

from launcher.common import console

if TYPE_CHECKING:
    from pathlib import Path

    from launcher import Failure


def of(folder: "Path") -> "Failure | None":
    """Return why the job of a folder failed; None unless it has, and if nothing shows why."""
    from launcher.api.job import Job
    from launcher.common.problems import ProblemsFound

    try:
        return Job(folder).failure
    except ProblemsFound:  # the command has its answer without
        return None


def show(failure: "Failure | None", *, stderr: bool = False) -> None:
    """Print the lines of a failure; nothing if there is none."""
    for heading, text in failure.lines() if failure else ():
        console.say(f"{heading:<11} {text}", stderr=stderr)
