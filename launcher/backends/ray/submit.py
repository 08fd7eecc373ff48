"""Submits a bundle's job once: copies its configurations and code to the cluster, then sends the request.

A rehearsal starts the same driver on this machine.
"""

import functools
import json
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from launcher.backends.ray.client import Cluster
from launcher.backends.ray.options import ray_options
from launcher.backends.ray.request import CONFIGS, DIGEST, Request, read
from launcher.bundle.store import config_of
from launcher.common import os_errors, variables
from launcher.common.names import RUN_DIR
from launcher.common.problems import Notice, Problem, ProblemsFound, fail, raise_any
from launcher.common.suggestions import did_you_mean
from launcher.model.config_tree import get
from launcher.model.environment import unset_secrets
from launcher.model.following import STAYS_RECORDED, in_doubt
from launcher.model.job_spec import Bundle, JobSpec
from launcher.model.ray_job import GPU, Driver, RayJob
from launcher.runtime.durable import write_text

_CLEARED = "ray-cleared.json"
"""File of a job's run folder: submission ids of its ended jobs, which Ray takes no second time."""
_IGNORED = (".gitignore", ".rayignore")
"""Files that name what Ray's client does not copy. Source: Ray, Handling dependencies: working_dir."""
_IN_DOUBT = "may have started: Ray did not answer the request"


def job_id(bundle: Bundle) -> str:
    """Return the submission id of a bundle's job: its name, with a number after earlier ones were cleared."""
    cleared = cleared_ids(bundle.directory)
    return f"{bundle.job_name}-{len(cleared) + 1}" if cleared else bundle.job_name


def cleared_ids(folder: Path) -> list[str]:
    """Return the submission ids of a bundle's jobs that have ended and do not keep it from being launched."""
    try:
        found: list[str] = json.loads((folder / RUN_DIR / _CLEARED).read_text(encoding="utf-8"))
        return found
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise fail("E711", str(folder / RUN_DIR / _CLEARED), f"is damaged: {error!r}") from error


def clear(folder: Path, job: str) -> None:
    """Note that an ended job does not keep its bundle from being launched.

    Raises:
        ProblemsFound: The disk refuses.
    """
    path = folder / RUN_DIR / _CLEARED
    cleared = cleared_ids(folder)
    if job in cleared:
        return
    with os_errors.refusing("E702", str(path), folder):
        path.parent.mkdir(exist_ok=True)
        write_text(path, json.dumps([*cleared, job]) + "\n")


def submit(cluster: Cluster, bundle: Bundle) -> tuple[bool, tuple[Notice, ...]]:
    """Start a bundle's job unless it exists; return whether it is new, and what the user should know.

    Raises:
        ProblemsFound: Every reason why it was not submitted.
    """
    job = job_id(bundle)
    if _exists(cluster, job, bundle):
        return False, ()
    request = read(bundle)
    problems, notices = refusals(cluster, bundle, request)
    raise_any(problems)
    try:
        _send(cluster, bundle, request, job)
    except ProblemsFound as error:
        try:
            if _exists(cluster, job, bundle):  # the answer was lost, not the request
                return True, notices
        except ProblemsFound:
            doubt = in_doubt(bundle.directory, _IN_DOUBT, job)
            raise ProblemsFound((*error.problems, doubt), f"the job may exist; {STAYS_RECORDED}") from error
        raise
    return True, notices


def _exists(cluster: Cluster, job: str, bundle: Bundle) -> bool:
    """Return whether the cluster has a bundle's job.

    Raises:
        ProblemsFound: Another job has its submission id.
    """
    found = cluster.find(job)
    if found and (found.metadata or {}).get(DIGEST) != bundle.digest:
        message, remedy = "the cluster has another job of that name", "launch the recipe again; names have a suffix"
        raise fail("E827", "recipes.run.name", message, value=job, remedy=remedy)
    return found is not None


def _send(cluster: Cluster, bundle: Bundle, request: Request, job: str) -> None:
    arguments = {
        **request.job,
        "submission_id": job,
        "runtime_env": {**request.job["runtime_env"], "env_vars": _environment(request)},
        "metadata": {**request.job["metadata"], DIGEST: bundle.digest},
    }
    with tempfile.TemporaryDirectory(prefix="recipes-ray-") as scratch:
        folder = Path(scratch, "job")
        try:
            gather(bundle, request, folder)
        except (OSError, shutil.Error) as error:
            message = f"cannot be copied: {error}"
            raise fail("E826", "cluster.working_dir", message, value=request.working_dir) from error
        cluster.submit(arguments, folder)


def _environment(request: Request) -> dict[str, str]:
    """Return the variables of a job, secrets with their values, which the environment of this process has."""
    values = {name: variables.current()[source] for name, source in request.secrets.items()}
    return {**values, **request.job["runtime_env"]["env_vars"]}


def ray_job(bundle: Bundle) -> RayJob:
    """Return the job that a bundle requests, on as many nodes as it was planned for; no cluster is asked.

    Raises:
        ProblemsFound: Its code or a secret of it is not here.
    """
    request = read(bundle)
    raise_any(_absent_parts(bundle, request))
    node = {GPU: int(bundle.plan["nproc_per_node"])}
    command = request.job["entrypoint"]
    source = "recipes.trainer.num_nodes and devices; cluster=ray learns its real nodes when the job is submitted"
    driver = Driver(command, _environment(request), functools.partial(gather, bundle, request))
    return RayJob({}, (node,) * request.nodes, source, tuple(shlex.split(command)), driver)


def gather(bundle: Bundle, request: Request, folder: Path) -> None:
    """Put the code and the configurations of a job into a new folder; links that lead to files become files."""
    if request.working_dir:
        results = bundle.directory.resolve().parent
        own = {results} if results != Path(request.working_dir).resolve() else {bundle.directory.resolve()}

        def left_out(parent: str, names: list[str]) -> set[str]:
            return {name for name in names if name == ".git" or Path(parent, name).resolve() in own}

        shutil.copytree(request.working_dir, folder, ignore=left_out, ignore_dangling_symlinks=True)
        for each in _IGNORED:
            with (folder / each).open("a", encoding="utf-8") as ignored:
                ignored.write(f"\n!/{CONFIGS}\n!/{CONFIGS}/*\n")
    configs = folder / CONFIGS
    configs.mkdir(parents=True)
    for name, text in bundle.configs.items():
        (configs / name).write_text(text, encoding="utf-8")


def refusals(cluster: Cluster, bundle: Bundle, request: Request) -> tuple[tuple[Problem, ...], tuple[Notice, ...]]:
    """Return why a job would be refused, or would wait for ever, and what the user should know."""
    problems, notices = lacks(cluster, request)
    return (*problems, *_absent_parts(bundle, request)), notices


def _absent_parts(bundle: Bundle, request: Request) -> Iterator[Problem]:
    """Yield what this machine lacks of a job: the folder with its code, the values of its secrets."""
    yield from folder_problems(request)
    yield from unset_secrets(config_of(bundle))


def folder_problems(request: Request) -> Iterator[Problem]:
    """Yield a Problem if the folder with the code does not exist, or has one of the configurations' name."""
    if (folder := request.working_dir) is None:
        return
    if not Path(folder).is_dir():
        remedy = "cluster.working_dir=<folder with your code>, such as . for the current one"
        yield Problem("E826", "cluster.working_dir", "is not a folder of this machine", value=folder, remedy=remedy)
    elif Path(folder, CONFIGS).exists():
        message = f"has a {CONFIGS}, the name of the folder with the job's configurations"
        yield Problem("E826", "cluster.working_dir", message, value=folder, remedy="rename it")


def absent_script(job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem if the folder with a job's code lacks the script that the job starts."""
    options, key = ray_options(job), "recipes.training_cfg.entry_script"
    script = get(job.config, key)
    if not script or options.command or options.working_dir is None:
        return
    folder = Path(job.cwd, options.working_dir)
    if not Path(script).is_absolute() and folder.is_dir() and not (folder / script).is_file():
        beside = sorted(path.name for path in (folder / script).parent.glob("*.py"))
        remedy = did_you_mean(Path(script).name, beside) or f"{key.removeprefix('recipes.')}=<path in that folder>"
        yield Problem("E826", key, f"is not in {options.working_dir}", value=script, remedy=remedy)


def lacks(cluster: Cluster, request: Request) -> tuple[tuple[Problem, ...], tuple[Notice, ...]]:
    """Return why a cluster has too few accelerators for a job: as a Problem, or as a notice if it may be wrong."""
    if not request.accelerators:
        return (), ()
    ((kind, each),) = request.accelerators.items()
    wanted = f"{request.nodes} with {each:g} {kind}"
    try:
        nodes = cluster.nodes()
    except ProblemsFound as error:
        reason = error.problems[0].message
        return (), (Notice("N190", f"the job needs nodes: {wanted}; the cluster's own are unknown: {reason}"),)
    found = [node.get(kind, 0) for node in nodes]
    if sum(int(has // each) for has in found) >= request.nodes:
        return (), ()
    has = ", ".join(f"{has:g}" for has in sorted(found, reverse=True)[:8] if has) or "none"
    message = f"the job needs nodes: {wanted}; the cluster's nodes have {has}"
    if request.is_autoscaled:
        return (), (Notice("N190", f"{message}, until it grows"),)
    remedy = "recipes.trainer.num_nodes and devices of the cluster, or cluster.autoscaled=true if it grows"
    return (Problem("E829", "recipes.trainer", message, value=wanted, allowed=has, remedy=remedy),), ()
