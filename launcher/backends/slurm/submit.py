"""Submits a bundle's job once: its name has the bundle's digest, by which a later launch finds it."""

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import launcher
from launcher.backends.slurm import preflight, programs, queue, run_files
from launcher.backends.slurm.queue import QUEUE, Seen
from launcher.backends.slurm.rendering import JOB_FILE
from launcher.bundle.render import MANIFEST
from launcher.common import os_errors, yaml_io
from launcher.common.names import RUN_DIR
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.model.job_spec import Bundle

_DIGITS = 12
"""Digits of the digest in a job's name."""
_MARK = "submitted"
"""File that shows that a launch of the bundle has called sbatch; without it there is no job to look for."""
_PATIENCE_S = 120.0
"""Time limit for a controller that restarts to answer whether it has a job; its own commands wait for 10 to 20 s."""


def name_of(bundle: Bundle, config: Mapping[str, Any]) -> str:
    """Return the name of a bundle's job in Slurm's queue, for its resolved configuration."""
    prefix = config["cluster"]["job_name_prefix"]
    return f"{prefix}{bundle.job_name}-{bundle.digest[:_DIGITS]}"


def name_in(bundle_dir: Path, prefix: str) -> str:
    """Return the same for a bundle's folder."""
    try:
        manifest = json.loads((bundle_dir / MANIFEST).read_text(encoding="utf-8"))
        return f"{prefix}{manifest['job_name']}-{manifest['digest'][:_DIGITS]}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise fail("E703", str(bundle_dir), f"is not a bundle directory: {error}") from error


def existing(bundle_dir: Path, name: str) -> Seen | None:
    """Return the job of a name that a launch of a bundle has submitted; None if there is none.

    Jobs that were cleared do not count.
    """
    return queue.chosen(queue.named(name), run_files.cleared(bundle_dir))


def submit(bundle: Bundle) -> tuple[str, bool]:
    """Submit a bundle's job unless it exists; return its id, and whether it is new.

    Raises:
        ProblemsFound: Every reason why it was not submitted.
    """
    config = yaml_io.load(bundle.files["recipe.yaml"])
    name, folder = name_of(bundle, config), bundle.directory.resolve()
    with _alone(folder):
        is_first = not any((folder / RUN_DIR / "slurm").iterdir())
        if not is_first and (job := existing(folder, name)):
            return job.job_id, False
        if problems := preflight.problems(bundle, config, name):
            raise ProblemsFound(problems)
        return _submitted(config, name, folder), True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Make the bundle's folder of jobs, and let no other launch of the bundle submit within the block.

    Raises:
        ProblemsFound: The disk refuses (E702).
    """
    jobs = folder / RUN_DIR / "slurm"
    try:
        jobs.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(jobs, os.O_RDONLY)
    except OSError as error:
        raise os_errors.refused("E702", "base_results_dir", error, folder) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _submitted(config: Mapping[str, Any], name: str, folder: Path) -> str:
    """Submit the job and return its id.

    Raises:
        ProblemsFound: It was refused, or the controller does not answer whether it has the job (E352).
    """
    try:
        (folder / RUN_DIR / "slurm" / _MARK).touch()
    except OSError as error:
        raise os_errors.refused("E702", "base_results_dir", error, folder) from error
    words = ("sbatch", "--parsable", f"--job-name={name}", JOB_FILE)
    answer = programs.run(*words, folder=folder, env=_environment())
    QUEUE.forget()
    job_id = answer.out.strip().partition(";")[0]
    if answer.code == 0 and job_id.isdigit():
        return job_id
    if answer.is_unreachable and (job := _in_doubt(folder, name)):
        return job.job_id  # the controller has it, although its answer was lost
    raise ProblemsFound((preflight.refusal(answer, config),))


def _in_doubt(folder: Path, name: str) -> Seen | None:
    """Return the job of a submission whose answer was lost; None if the controller does not have it.

    Raises:
        ProblemsFound: The controller does not answer (E352).
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return existing(folder, name)
        except ProblemsFound as error:
            if time.monotonic() > deadline:
                message = "may have been submitted: the controller broke off, and has not answered since"
                problem = Problem("E352", "job", message, value=name, remedy="launch it again; it is submitted once")
                raise ProblemsFound((problem, *error.problems), "the job may be in Slurm's queue") from error
        time.sleep(queue.POLL_S)


def _environment() -> dict[str, str]:
    """Return the variables with which the nodes find this Python and, in a checkout, this launcher."""
    home = str(Path(launcher.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    return {"RECIPES_PYTHON": sys.executable, "RECIPES_PYTHONPATH": path}
