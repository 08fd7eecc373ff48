"""Submits a bundle's job once: its name has the bundle's digest, by which a later launch finds it."""

import json
import os
import sys
from pathlib import Path

import launcher
from launcher.backends.slurm import preflight, programs, queue, run_files
from launcher.backends.slurm.queue import QUEUE, Seen
from launcher.backends.slurm.rendering import JOB_FILE
from launcher.bundle.render import MANIFEST
from launcher.common import os_errors, yaml_io
from launcher.common.names import RUN_DIR
from launcher.common.problems import ProblemsFound, fail
from launcher.model.job_spec import Bundle

_DIGITS = 12
"""Digits of the digest in a job's name."""


def name_of(bundle: Bundle) -> str:
    """Return the name of a bundle's job in Slurm's queue."""
    prefix = yaml_io.load(bundle.files["recipe.yaml"])["cluster"]["job_name_prefix"]
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
    name, folder = name_of(bundle), bundle.directory.resolve()
    if job := existing(folder, name):
        return job.job_id, False
    if problems := preflight.problems(bundle, name):
        raise ProblemsFound(problems)
    try:
        (folder / RUN_DIR / "slurm").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise os_errors.refused("E702", "base_results_dir", error, folder) from error
    answer = programs.run("sbatch", "--parsable", f"--job-name={name}", JOB_FILE, folder=folder, env=_environment())
    QUEUE.forget()
    job_id = answer.out.strip().partition(";")[0]
    if answer.code == 0 and job_id.isdigit():
        return job_id, True
    if answer.is_unreachable and (job := existing(folder, name)):
        return job.job_id, True  # the controller has it, although its answer was lost
    raise ProblemsFound((preflight.refusal(answer, yaml_io.load(bundle.files["recipe.yaml"])),))


def _environment() -> dict[str, str]:
    """Return the variables with which the nodes find this Python and, in a checkout, this launcher."""
    home = str(Path(launcher.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    return {"RECIPES_PYTHON": sys.executable, "RECIPES_PYTHONPATH": path}
