"""The request of a bundle: what is sent to the cluster, without the values of secrets, and what is copied there."""

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.backends.ray.options import ray_options
from launcher.bundle.store import json_of
from launcher.common.problems import fail
from launcher.model.environment import plain_variables, secret_variables
from launcher.model.family_registry import interface
from launcher.model.interface import BUNDLE_CONFIGS, CONFIG_MOUNT, Role
from launcher.model.job_spec import Bundle, JobSpec

FILE = "ray/request.json"
CONFIGS = "recipes-configs"
"""Folder of the configurations below the driver's working directory, whose path only its shell knows."""
DIGEST = "bundle_digest"
"""Entry of a job's metadata that identifies its bundle."""
RESOURCES = {"gpu": "GPU", "neuron": "neuron_cores"}
"""Ray's names of accelerators. Source: Ray, Accelerator support."""


class Request(NamedTuple):
    """The parsed request of a bundle."""

    address: str | None
    """URL of the dashboard; None for that of the environment at submission."""
    job: Mapping[str, Any]
    """Arguments of Ray's `submit_job`."""
    secrets: Mapping[str, str]
    """Variable of the job to the variable of the submitting shell that has its value."""
    working_dir: str | None
    """Folder of this machine that is copied beside the configurations."""
    nodes: int
    accelerators: Mapping[str, float]
    """What each of that many nodes must have; empty if the driver alone knows what it starts."""
    is_autoscaled: bool


def of_job(job: JobSpec) -> Request:
    """Return the request of a planned job. Pure."""
    options, family = ray_options(job), interface(job)
    role = family.first
    reserved = {
        name: value
        for name in ("entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_memory", "entrypoint_resources")
        if (value := getattr(options, name)) is not None
    }
    kind = RESOURCES.get(family.accelerator or "") if family.is_ray and not options.command else None
    return Request(
        address=options.address,
        job={
            "submission_id": job.name,
            "entrypoint": _entrypoint(options.command or _program(job, role)),
            "runtime_env": {"env_vars": role.env(job) | plain_variables(job.config)},
            "metadata": {"job_name": job.name, "recipe": job.recipe},
            **reserved,
        },
        secrets={name: str(ref["env"]) for name, ref in secret_variables(job.config).items()},
        working_dir=str(job.cwd / options.working_dir) if options.working_dir else None,
        nodes=job.initial_nodes,
        accelerators={kind: job.nproc_per_node} if kind else {},
        is_autoscaled=options.autoscaled,
    )


def read(bundle: Bundle) -> Request:
    """Return the request of a bundle.

    Raises:
        ProblemsFound: It has none, or a damaged one (E703).
    """
    try:
        return Request(**json_of(bundle, FILE))
    except TypeError as error:
        raise fail("E703", str(bundle.directory), f"{FILE} is damaged: {error}") from error


def _program(job: JobSpec, role: Role) -> tuple[str, ...]:
    words = role.program(job)
    return words if interface(job).is_ray else ("python", "-u", *words)


def _entrypoint(words: tuple[str, ...] | list[str]) -> str:
    """Return the shell command of the driver, whose working directory has the folder of the configurations."""
    configs = f'"$PWD"/{CONFIGS}'
    return " ".join(configs if word in (BUNDLE_CONFIGS, CONFIG_MOUNT) else shlex.quote(word) for word in words)
