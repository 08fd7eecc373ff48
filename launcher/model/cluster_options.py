"""The `cluster` section typed by its backend, and a rule's access to its own backend's options."""

from typing import Protocol, TypeVar

from launcher.model.base_model import Model, default
from launcher.model.job_spec import Trainer


class ClusterOptions(Model):
    """Every key of a `cluster` section. A backend subclasses it."""

    trainer: Trainer | None = default(None, is_required=False)
    """Who trains a recipe that has the choice: published, the closed program of the family's image, or open, the
    trainer of this package in an image of your own or on this machine. null: open on this machine, else published."""


class HasOptions(Protocol):
    """A checked recipe, or a planned job."""

    @property
    def settings(self) -> ClusterOptions:
        """The `cluster` section, typed."""


Options = TypeVar("Options", bound=ClusterOptions)


def options_of(job: HasOptions, kind: type[Options]) -> Options:
    """Return the options of a job of the backend whose options are `kind`.

    Raises:
        TypeError: The job is of another backend.
    """
    if not isinstance(job.settings, kind):
        raise TypeError(f"these are {type(job.settings).__qualname__}, not {kind.__qualname__}")
    return job.settings
