"""The backends, one line each. A description is loaded by name, and loads the rest of its package on demand."""

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from launcher.model.backend import Backend, BackendDescription
from launcher.model.capabilities import Clusters

if TYPE_CHECKING:
    from launcher.model.checked_recipe import CheckedRecipe
    from launcher.model.job_spec import JobSpec

_PACKAGES = {
    "local": "launcher.backends.local",
    "contract": "launcher.backends.sagemaker_local",
    "k8s": "launcher.backends.kubernetes",
    "slurm": "launcher.backends.slurm",
    "ray": "launcher.backends.ray",
    "sm_jobs": "launcher.backends.sagemaker",
}
"""Package of each backend, by the name that plans and job records have."""


def names() -> tuple[str, ...]:
    """Return the names of the backends."""
    return tuple(_PACKAGES)


@cache
def described(name: str) -> BackendDescription[Any]:
    """Return the description of a backend."""
    description: BackendDescription[Any] = importlib.import_module(f"{_PACKAGES[name]}.description").DESCRIPTION
    return description


def is_serverless(job: "JobSpec | CheckedRecipe") -> bool:
    """Return whether the service chooses the instances of a job, so that those of its plan are not billed."""
    instances = described(job.backend).instances
    return instances is not None and instances.chosen_by_service(job.settings)


def descriptions() -> tuple[BackendDescription[Any], ...]:
    """Return the description of every backend."""
    return tuple(map(described, _PACKAGES))


def load_backend(name: str) -> Backend:
    """Return the part of a backend that runs jobs.

    Raises:
        LookupError: It only describes itself; rule E901 refuses its jobs before.
    """
    backend = described(name).load()
    if backend is None:
        raise LookupError(f"cluster={described(name).choice} launches no jobs yet")
    return backend


def clusters() -> Clusters:
    """Return the clusters of the backend that has any, for commands that name no job."""
    return next(found for each in descriptions() if (found := each.clusters()))


def name_of(choice: str) -> str:
    """Return the name of the backend that a choice of `cluster` selects; the choice itself if there is none."""
    if choice in _PACKAGES and described(choice).choice == choice:
        return choice  # without loading the descriptions of others
    return next((each.name for each in descriptions() if each.choice == choice), choice)


def choices(has_trait: Callable[[BackendDescription[Any]], bool]) -> str:
    """Return the choices of `cluster` whose backends have a trait, as a user types them."""
    return ", ".join(f"cluster={each.choice}" for each in descriptions() if has_trait(each))
