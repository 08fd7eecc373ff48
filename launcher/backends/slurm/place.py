"""Where Slurm's commands run and the job's files are, and answers about the cluster there, which hold for a while."""

import functools
import os
import pwd
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launcher.backends.slurm import programs
from launcher.backends.slurm.programs import Answer, fields
from launcher.backends.slurm.run_files import Wanted
from launcher.common import os_errors
from launcher.common.names import RUN_DIR
from launcher.common.paths import CHECKOUT, HOME, PACKAGE
from launcher.model.job_spec import Bundle
from launcher.runtime.durable import write_text

_LAUNCHER = f"{RUN_DIR}/launcher"
"""In the folder of a request: a folder from which Python imports an installed launcher, and nothing beside it."""


class Place:
    """Where a job is submitted and followed: this machine, a login node whose file system the nodes share.

    A subclass is another machine. A method that fails raises ProblemsFound.
    """

    poll_s = 0.2
    """Seconds between two looks at a job's files."""

    @property
    def user(self) -> str:
        """Name of the user whose jobs are submitted there; here, without a name, the number."""
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return str(os.getuid())

    def run(
        self, *words: str, folder: str | None = None, env: Mapping[str, str] | None = None, text: str = ""
    ) -> Answer:
        """Run a command of Slurm there as `programs.run` does, in a folder that `send` returned."""
        return programs.run(*words, folder=Path(folder) if folder else None, env=env, text=text)

    def send(self, bundle: Bundle) -> str:
        """Make a bundle's files, and its code, available to the job; return its folder there."""
        return str(bundle.directory.resolve())

    def send_array(self, folder: Path, bundles: Sequence[Bundle]) -> str:
        """Do the same for the folder of an array, which has a link to the bundle of each task; those were sent."""
        return str(folder)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables with which the nodes find a Python and this launcher.

        Args:
            folder: That of the request. An installed launcher gets a link there: `cluster.python` may be of another
                environment, which must not import from the folder of this one's packages.
        """
        home = HOME
        if CHECKOUT is None:
            home = str(folder / _LAUNCHER)
            with os_errors.refusing("E702", "base_results_dir", folder):
                link = folder / _LAUNCHER / PACKAGE.name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(PACKAGE)
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        return {"RECIPES_PYTHON": sys.executable, "RECIPES_PYTHONPATH": path}

    def fetch(self, bundle_dir: Path, files: Wanted) -> None:
        """Bring files that a job has written up to date in the bundle's run folder."""

    def put(self, bundle_dir: Path, name: str, text: str) -> None:
        """Replace a file in the run folder, where the job reads it, atomically."""
        write_text(bundle_dir / RUN_DIR / name, text)

    def remove(self, bundle_dir: Path, names: Sequence[str]) -> None:
        """Remove files of an earlier job of the bundle from the run folder, if they exist."""
        for name in names:
            (bundle_dir / RUN_DIR / name).unlink(missing_ok=True)


HERE = Place()
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
    return settings(RECENT.ask(place, *CONFIG).out).get(key, "").lower()


@functools.lru_cache(maxsize=8)
def settings(text: str) -> Mapping[str, str]:
    """Return the configuration that `scontrol show config` shows."""
    parts = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in parts if equals}


@functools.lru_cache(maxsize=8)
def records(text: str) -> Sequence[Mapping[str, str]]:
    """Return what `scontrol --oneliner` shows, each line as its fields."""
    return [fields(line) for line in text.splitlines()]


def is_accounted(place: Place) -> bool:
    """Return whether a cluster has accounts."""
    return "slurmdbd" in configured("AccountingStorageType", place)


def grows_in_place(growth: str | None, place: Place = HERE) -> bool:
    """Return whether a running job gets more nodes: as `cluster.growth` says, or as the cluster at a place allows.

    Source: salloc(1), --dependency=expand; slurm.conf(5), permit_job_expansion; an expansion needs accounting by
    slurmdbd, seen with Slurm 22.05.
    """
    if growth:
        return growth == "in_place"
    return is_accounted(place) and "permit_job_expansion" in configured("SchedulerParameters", place)
