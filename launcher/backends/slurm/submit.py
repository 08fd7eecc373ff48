"""Submits a bundle's job once: its name has the bundle's digest, by which a later launch finds it."""

import contextlib
import json
from pathlib import Path

from launcher.backends.slurm import code, preflight, queue, run_files
from launcher.backends.slurm.place import Place
from launcher.backends.slurm.queue import Seen, queue_of
from launcher.backends.slurm.rendering import JOB_FILE
from launcher.bundle.render import MANIFEST
from launcher.common import yaml_io
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


def existing(bundle_dir: Path, name: str, place: Place) -> Seen | None:
    """Return the job of a name that a launch of a bundle has submitted; None if there is none.

    Jobs that were cleared do not count.
    """
    return queue.chosen(queue.named(name, place), run_files.cleared(bundle_dir))


def submit(bundle: Bundle, place: Place) -> tuple[str, bool]:
    """Submit a bundle's job unless it exists; return its id, and whether it is new.

    Raises:
        ProblemsFound: Every reason why it was not submitted.
    """
    name, config = name_of(bundle), yaml_io.load(bundle.files["recipe.yaml"])
    if job := existing(bundle.directory, name, place):
        return job.job_id, False
    if problems := preflight.problems(bundle, name, place):
        raise ProblemsFound(problems)
    if source := code.of_bundle(bundle):
        code.place(source, bundle.directory.resolve())
    folder = place.send(bundle, has_code=source is not None)
    env = {**place.environment(), **preflight.secret_values(config)}
    try:
        answer = place.run("sbatch", "--parsable", f"--job-name={name}", JOB_FILE, folder=folder, env=env)
    except ProblemsFound as error:  # Slurm may have the job, although its answer was lost
        return _found_again(bundle, name, place, error), True
    finally:
        queue_of(place).forget()
    job_id = answer.out.strip().partition(";")[0]
    if answer.code == 0 and job_id.isdigit():
        return job_id, True
    if answer.is_unreachable and (job := existing(bundle.directory, name, place)):
        return job.job_id, True  # the controller has it, although its answer was lost
    raise ProblemsFound((preflight.refusal(answer, config),))


def _found_again(bundle: Bundle, name: str, place: Place, lost: ProblemsFound) -> str:
    """Return the id of a job whose submission was not answered.

    Raises:
        ProblemsFound: It is not found; the next launch looks for it again.
    """
    with contextlib.suppress(ProblemsFound):
        if job := existing(bundle.directory, name, place):
            return job.job_id
    outcome = f"whether Slurm has the job is not known: recipes launch {bundle.directory.name} finds or submits it"
    raise ProblemsFound(lost.problems, outcome) from lost
