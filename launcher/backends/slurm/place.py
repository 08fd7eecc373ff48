"""Where Slurm's commands run and the job's files are: on this machine, or on a host that is reached by ssh."""

import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import launcher
from launcher.backends.slurm import programs
from launcher.backends.slurm.programs import Answer
from launcher.backends.slurm.written import Wanted
from launcher.common import os_errors
from launcher.common.names import RUN_DIR
from launcher.model.job_spec import Bundle
from launcher.runtime.durable import write_text

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

    def send_array(self, folder: Path, bundles: Sequence[Bundle]) -> str:
        """Make the folder of an array available to its tasks, whose bundles were sent, and return it there.

        Args:
            folder: The folder, with files and a link to the bundle of each task.
            bundles: The bundles, in the order of the tasks.
        """

    def environment(self) -> dict[str, str]:
        """Return the variables with which the nodes find a Python and this launcher."""

    def fetch(self, bundle_dir: Path, files: Wanted) -> None:
        """Bring files that a job has written up to date in the bundle's run folder.

        Args:
            bundle_dir: The bundle's folder.
            files: The files.
        """

    def replace(self, bundle_dir: Path, name: str, text: str) -> None:
        """Replace a file in the job's own run folder, where the job reads it, atomically.

        Args:
            bundle_dir: The bundle's folder.
            name: Name of the file.
            text: Its content.
        """

    def remove(self, bundle_dir: Path, names: Sequence[str]) -> None:
        """Remove files of an earlier job of the bundle from the run folder, if they exist.

        Args:
            bundle_dir: The bundle's folder.
            names: Names of the files.
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

    def send_array(self, folder: Path, bundles: Sequence[Bundle]) -> str:
        """Return the folder itself."""
        return str(folder)

    def environment(self) -> dict[str, str]:
        """Return the variables with which the nodes find this Python and, in a checkout, this launcher."""
        path = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
        return {"RECIPES_PYTHON": sys.executable, "RECIPES_PYTHONPATH": path}

    def fetch(self, bundle_dir: Path, files: Wanted) -> None:
        """Do nothing: the file system is shared."""

    def replace(self, bundle_dir: Path, name: str, text: str) -> None:
        """Replace a file in the run folder atomically."""
        write_text(bundle_dir / RUN_DIR / name, text)

    def remove(self, bundle_dir: Path, names: Sequence[str]) -> None:
        """Remove files of an earlier job from the run folder."""
        for name in names:
            (bundle_dir / RUN_DIR / name).unlink(missing_ok=True)


HERE = ThisMachine()
