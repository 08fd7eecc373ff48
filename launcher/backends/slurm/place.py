"""Where Slurm's commands run and the job's files are: on this machine, or on a host that is reached by ssh.

Answers about the cluster there, such as its partitions, hold for a while.
"""

import functools
import os
import pwd
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import launcher
from launcher.backends.slurm import programs
from launcher.backends.slurm.programs import Answer, fields
from launcher.backends.slurm.run_files import Wanted
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
        """Return the bundle's own folder."""
        return str(bundle.directory.resolve())

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
_FRESH_S = 30.0
"""Age up to which an answer about partitions and accounts counts: a sweep submits many jobs."""
CONFIG = ("scontrol", "show", "config")


class Recent:
    """Remembers answers. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[tuple[Place, str | None, tuple[str, ...]], tuple[float, Answer]] = {}

    def ask(self, place: Place, *words: str) -> Answer:
        """Return the answer of a command at a place that is at most _FRESH_S old."""
        key = (place, os.environ.get("SLURM_CONF"), words)  # a process may use several clusters
        with self._lock:
            asked_s, answer = self._answers.get(key, (0.0, None))
        if answer and time.monotonic() - asked_s <= _FRESH_S:
            return answer
        answer = place.run(*words)
        if not answer.code:
            with self._lock:
                self._answers[key] = (time.monotonic(), answer)
        return answer

    def ask_all(self, place: Place, *commands: tuple[str, ...]) -> list[Answer]:
        """Return the answers of several commands, which run at the same time."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda words: self.ask(place, *words), commands))


RECENT = Recent()


def configured(key: str, place: Place) -> str:
    """Return a value of Slurm's configuration, in lower case; "" if unknown."""
    return _settings(RECENT.ask(place, *CONFIG).out).get(key, "").lower()


@functools.lru_cache(maxsize=8)
def _settings(text: str) -> Mapping[str, str]:
    parts = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in parts if equals}


@functools.lru_cache(maxsize=8)
def records(text: str) -> Sequence[Mapping[str, str]]:
    """Return what `scontrol --oneliner` shows, each line as its fields."""
    return [fields(line) for line in text.splitlines()]


def grows_in_place(growth: str | None, place: Place = HERE) -> bool:
    """Return whether a running job gets more nodes: as `cluster.growth` says, or as the cluster at a place allows.

    Source: salloc(1), --dependency=expand; slurm.conf(5), permit_job_expansion; an expansion needs accounting by
    slurmdbd, seen with Slurm 22.05.
    """
    if growth:
        return growth == "in_place"
    is_accounted = "slurmdbd" in configured("AccountingStorageType", place)
    return is_accounted and "permit_job_expansion" in configured("SchedulerParameters", place)
