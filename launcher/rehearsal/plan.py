"""From a bundle to its rehearsal: the Ray cluster to start, and the check to make there, or the program to run."""

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from launcher.bundle.manifest import MANIFEST
from launcher.bundle.store import config_of
from launcher.common import yaml_io
from launcher.common.problems import Problem, fail, raise_any
from launcher.model.backend_registry import choices, described
from launcher.model.family_registry import interface
from launcher.model.job_spec import Bundle, Trainer
from launcher.model.ray_job import RayJob, ResourceCheck

NODE_MIB = 400
"""Main memory of one simulated node; 320 to 350 MiB seen with Ray 2.60."""
_NEEDED = ("ray", "psutil")
_COMMAND = "recipes rehearse"


class Rehearsal(NamedTuple):
    """A job whose rehearsal can start. Its program runs if there is no check."""

    job_name: str
    job: RayJob
    check: ResourceCheck | None


class _Started(NamedTuple):
    recipe_tree: Mapping[str, Any]
    trainer: Trainer | None


def rehearsal_of(bundle: Bundle, backend: str) -> Rehearsal:
    """Return the rehearsal of a bundle's job.

    Raises:
        ProblemsFound: This machine cannot rehearse it, or its job does not run under Ray.
    """
    raise_any(_unfit_machine())
    programs = described(backend).programs
    job = programs.ray_job(bundle) if programs.has_ray else None
    if job is None:
        message = f"this job does not run under Ray on cluster={described(backend).choice}"
        remedy = "other recipes are rehearsed by cluster=local (docs/rehearsal.md)"
        allowed = f"a job with a Ray cluster: {choices(lambda each: each.programs.has_ray)}"
        raise fail("E426", _COMMAND, message, value=bundle.job_name, allowed=allowed, remedy=remedy)
    raise_any(_too_large(job))
    started = _Started(config_of(bundle)["recipes"], json.loads(bundle.files[MANIFEST])["trainer"])
    make_check = interface(started).resource_check
    configs = {name: yaml_io.load(text) for name, text in bundle.configs.items()}
    check = make_check(configs, job.words) if make_check else None
    if check is None and job.driver is None:
        message = "only the image has its program, and what that reserves is unknown"
        raise fail("E426", _COMMAND, message, value=bundle.job_name, allowed="cluster=ray, with a script of your own")
    return Rehearsal(bundle.job_name, job, check)


def _unfit_machine() -> Iterator[Problem]:
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        message = f"a rehearsal starts a real Ray cluster here, but this Python has no {', '.join(missing)}"
        yield Problem("E427", _COMMAND, message, remedy="pip install '.[ray]'")
    if sys.platform != "linux":
        message = "a rehearsal needs Linux, whose kernel ends the processes of a Ray cluster with it"
        yield Problem("E427", _COMMAND, message, value=sys.platform)


def _too_large(job: RayJob) -> Iterator[Problem]:
    import psutil

    free_mib = psutil.virtual_memory().available >> 20
    if (most := free_mib // NODE_MIB) < len(job.nodes):
        message = f"each simulated node takes {NODE_MIB} MiB, and {free_mib} MiB are free on this machine"
        allowed = f"at most {most} nodes, the head included"
        yield Problem("E428", _COMMAND, message, value=f"{len(job.nodes)} nodes", allowed=allowed)
