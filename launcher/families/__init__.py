"""Recipe families: one module per `run.model_type`. Adding a family is adding a file.

A module has `Recipe`, its typed recipe, and `INTERFACE`, what its training program reads.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from launcher.specs import JobSpec


@dataclass(frozen=True, slots=True)
class Interface:
    """How a family's training program is started.

    Args:
        program: Words for `hyperpodrun`: a script, or `-m` and a module; the configuration folder follows.
        image_command: The start command of a job's image; empty when the user must give one.
        image_env: The variables that the image reads, for a job.
    """

    program: tuple[str, ...]
    image_command: Callable[[JobSpec], tuple[str, ...]]
    image_env: Callable[[JobSpec], dict[str, str]]


def interface(model_type: str) -> Interface:
    """Return the interface of a known family."""
    return importlib.import_module(f"launcher.families.{model_type}").INTERFACE
