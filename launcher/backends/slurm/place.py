"""Where Slurm's commands run and the job's files are: on this machine, or on a host that is reached by ssh."""

import os
import pwd
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import launcher
from launcher.backends.slurm import programs
from launcher.backends.slurm.programs import Answer
from launcher.common import os_errors
from launcher.common.names import RUN_DIR
from launcher.model.job_spec import Bundle

PACKAGE = Path(launcher.__file__).resolve().parent
"""The launcher's own package."""


class Place(Protocol):
    """Where a job is submitted and followed. A method that fails raises ProblemsFound."""

    def __hash__(self) -> int:
        """Return the hash of its identity."""

    @property
    def poll_s(self) -> float:
        """Seconds between two looks at a job's files."""

    @property
    def user(self) -> str:
        """Name of the user whose jobs are submitted there."""

    def run(
        self, *words: str, folder: str | None = None, env: Mapping[str, str] | None = None, text: str = ""
    ) -> Answer:
        """Run a command of Slurm there and return its answer; the arguments are those of `programs.run`.

        Args:
            words: The command.
            folder: Its working folder, as `send` returned it.
            env: Further variables.
            text: Its standard input.
        """

    def send(self, bundle: Bundle, *, has_code: bool) -> str:
        """Make a bundle's files available to the job, and return its folder there.

        Args:
            bundle: The bundle, on disk.
            has_code: Whether its run folder has code, which goes with it.
        """

    def environment(self) -> dict[str, str]:
        """Return the variables with which the nodes find a Python and this launcher."""

    def fetch(self, bundle_dir: Path, job_id: str, ranks: tuple[int, ...] | None, processes: int) -> None:
        """Bring the files that a job has written up to date in the bundle's run folder.

        Args:
            bundle_dir: The bundle's folder.
            job_id: The job's id.
            ranks: Ranks whose logs are wanted; None for all.
            processes: Worker processes per node.
        """


class ThisMachine:
    """A login node: Slurm's commands are installed, and the nodes share its file system."""

    poll_s = 0.2

    @property
    def user(self) -> str:
        """Name of this process's user, or its number."""
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return str(os.getuid())

    def run(
        self, *words: str, folder: str | None = None, env: Mapping[str, str] | None = None, text: str = ""
    ) -> Answer:
        """Run a command of Slurm and return its answer."""
        return programs.run(*words, folder=Path(folder) if folder else None, env=env, text=text)

    def send(self, bundle: Bundle, *, has_code: bool) -> str:
        """Return the bundle's own folder, with a folder for what the job writes."""
        folder = bundle.directory.resolve()
        try:
            (folder / RUN_DIR / "slurm").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise os_errors.refused("E702", "base_results_dir", error, folder) from error
        return str(folder)

    def environment(self) -> dict[str, str]:
        """Return the variables with which the nodes find this Python and, in a checkout, this launcher."""
        path = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
        return {"RECIPES_PYTHON": sys.executable, "RECIPES_PYTHONPATH": path}

    def fetch(self, bundle_dir: Path, job_id: str, ranks: tuple[int, ...] | None, processes: int) -> None:
        """Do nothing: the file system is shared."""


HERE = ThisMachine()
