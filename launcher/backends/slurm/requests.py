"""What is given to sbatch: the batch script of one job, or one for an array whose tasks are the jobs of a sweep.

The folder of an array, `.arrays/<name>` beside the bundles, has its script and a link to the bundle of each task. A
login node that is reached by ssh gets a copy of it, beside the copies of the bundles.
Jobs share an array if every option of their headers is the same, except the name. A job with a range of sizes shares
none: its batch script resizes it by its number, and an array's last task has the number of the whole array.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.backends.slurm import run_files
from launcher.backends.slurm.host import DIGITS, place_of
from launcher.backends.slurm.place import Place
from launcher.backends.slurm.rendering import JOB_FILE
from launcher.backends.slurm.run_files import ELASTIC_FILE, ArrayTask
from launcher.backends.slurm.sbatch_options import by_name, header_of
from launcher.bundle import store
from launcher.common import os_errors
from launcher.common.problems import Notice
from launcher.common.templating import render_template
from launcher.model.earlier_jobs import KEY
from launcher.model.job_spec import Bundle

_ARRAYS, _ARRAY_FILE = ".arrays", "array.sh"
_OF_ONE = ("--job-name=", "--output=", "--error=")
"""Options of a header that an array has of its own."""
_PARALLELISM = "array_parallelism"


@dataclass(frozen=True, slots=True)
class Request:
    """One call of sbatch.

    Args:
        name: Of the job or the array in Slurm's queue; it ends in a digest.
        bundles: One, or those of an array's tasks, in their order.
        folder: To submit from.
        file: The batch script's path in the folder.
        text: The batch script.
        config: The composed configuration of the first bundle.
        words: Further options.
    """

    name: str
    bundles: tuple[Bundle, ...]
    folder: Path
    file: str
    text: str
    config: Mapping[str, Any]
    words: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        """Where it is submitted."""
        return place_of(self.config["cluster"])

    @property
    def is_array(self) -> bool:
        """Whether it submits several jobs."""
        return len(self.bundles) > 1

    def job_ids(self, native_id: str) -> dict[Path, str]:
        """Return the id of each job by its bundle's folder, from the one that sbatch printed."""
        folders = [bundle.directory for bundle in self.bundles]
        return {each: f"{native_id}_{task}" if self.is_array else native_id for task, each in enumerate(folders)}

    def prepare(self) -> None:
        """Write what the job, and a later launch that looks for it, needs on disk; E702 if the disk refuses."""
        with os_errors.refusing("E702", "base_results_dir", self.folder):
            for task, bundle in enumerate(self.bundles):
                run_files.jobs_folder(bundle.directory).mkdir(parents=True, exist_ok=True)
                if self.is_array:
                    run_files.note_array_task(bundle.directory, ArrayTask(self.name, task))
            if self.is_array:
                _write(self)

    def discard(self) -> None:
        """Remove what was written for an array that was refused."""
        if self.is_array:
            shutil.rmtree(self.folder, ignore_errors=True)
            for bundle in self.bundles:
                with contextlib.suppress(OSError):
                    run_files.note_array_task(bundle.directory, None)


def request_for(bundles: Sequence[Bundle], words: tuple[str, ...] = ()) -> Request:
    """Return the request of one job, or of jobs that share an array."""
    first, folder, config = bundles[0], bundles[0].directory.resolve(), store.config_of(bundles[0])
    own = f"{config['cluster']['job_name_prefix']}{first.job_name}"
    if len(bundles) == 1:
        name = f"{own}-{first.digest[:DIGITS]}"
        return Request(name, (first,), folder, JOB_FILE, first.files[JOB_FILE], config, words)
    digest = hashlib.sha256("".join(bundle.digest for bundle in bundles).encode()).hexdigest()
    name = f"{own}-array-{digest[:DIGITS]}"
    limit = config["cluster"].get(_PARALLELISM)
    tasks = f"--array=0-{len(bundles) - 1}" + (f"%{limit}" if limit else "")
    text = render_template(
        "slurm/array.sh.j2",
        header=[f"--job-name={name}", *_shared(first), tasks],
        has_error_log="error" in by_name(header_of(first.files[JOB_FILE])),
        count=len(bundles),
        path=JOB_FILE,
    )
    return Request(name, tuple(bundles), folder.parent / _ARRAYS / name, _ARRAY_FILE, text, config, words)


def grouped(bundles: Sequence[Bundle]) -> list[list[Bundle]]:
    """Return bundles by the array that their jobs share, in their order."""
    groups: dict[tuple[object, ...], list[Bundle]] = {}
    for bundle in bundles:
        config = store.config_of(bundle)
        # What a job waits for is looked up beside its bundle.
        after = (str(config[KEY]), bundle.directory.parent) if config.get(KEY) else None
        alone = bundle.directory if ELASTIC_FILE in bundle.files else None
        key = (*_shared(bundle), str(config["cluster"].get(_PARALLELISM)), after, alone, place_of(config["cluster"]))
        groups.setdefault(key, []).append(bundle)
    return list(groups.values())


def notices(bundles: Sequence[Bundle]) -> tuple[Notice, ...]:
    """Return why the jobs of a sweep do not share one array; nothing if they do."""
    groups = grouped(bundles)
    if len(groups) < 2:
        return ()
    limits = f"cluster.{_PARALLELISM} limits each array"
    if all(ELASTIC_FILE in bundle.files for bundle in bundles):
        message = f"these {len(bundles)} jobs share no array, since tasks of an array keep their size; {limits}"
        return (Notice("N176", message),)
    headers = [set(_shared(group[0])) for group in groups]
    names = sorted(by_name(set().union(*headers) - headers[0].intersection(*headers)))
    message = (
        f"these {len(bundles)} jobs become {len(groups)} arrays or single jobs: tasks of an array have the same "
        f"options, but these differ: {', '.join(names) or f'{_PARALLELISM}, {KEY} or ssh'}; {limits}"
    )
    return (Notice("N176", message),)


def _shared(bundle: Bundle) -> list[str]:
    return [option for option in header_of(bundle.files[JOB_FILE]) if not option.startswith(_OF_ONE)]


def _write(request: Request) -> None:
    """Write an array's folder, and remove those of arrays whose bundles were all removed."""
    for other in request.folder.parent.glob("*"):
        links = [path for path in other.glob("*") if path.is_symlink()]
        if links and not any(link.exists() for link in links):
            shutil.rmtree(other, ignore_errors=True)
    request.folder.mkdir(parents=True, exist_ok=True)
    (request.folder / request.file).write_text(request.text, encoding="utf-8")
    for task, bundle in enumerate(request.bundles):
        link = request.folder / str(task)
        link.unlink(missing_ok=True)
        link.symlink_to(bundle.directory.resolve())
