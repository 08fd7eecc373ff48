"""Recipe families: one module for each `run.model_type`, and nothing elsewhere names one.

A module has `Recipe`, its typed recipe, and `INTERFACE`, what its training program reads.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from launcher.common.names import CONFIG_DIR
from launcher.model.job_spec import JobSpec

BUNDLE_CONFIGS = f"bundle:{CONFIG_DIR}"
"""A word of a program that stands for the folder of the configurations, wherever the job runs."""


@dataclass(frozen=True, slots=True)
class Interface:
    """How a family's training program is started.

    Args:
        program: Words for `hyperpodrun`, for a job: a script, or `-m` and a module, and its own arguments.
        image_command: The start command of a job's image; empty when the user must give one.
        image_log: File in the container that also receives the output of that command; None for none.
        image_env: The variables that the image reads, for a job.
        worker_env: Variables of every worker, wherever the job runs.
        takes_config_path: Whether the program is told the configuration folder with `--config-path`.
        cuts_uneven_shares: Whether the program cuts an uneven share by `micro_train_batch_size`, rather than taking
            it in one pass unless its size sets that key.
        runs_as_root: Whether the program of the family's published image runs as root.
        accelerator: Kind of accelerator that the program needs, `gpu` or `neuron`; None if it runs without.
    """

    program: Callable[[JobSpec], tuple[str, ...]]
    image_command: Callable[[JobSpec], tuple[str, ...]]
    image_env: Callable[[JobSpec], dict[str, str]]
    worker_env: Callable[[JobSpec], dict[str, str]] = lambda job: {}
    takes_config_path: bool = True
    cuts_uneven_shares: bool = False
    runs_as_root: bool = False
    accelerator: str | None = None
    image_log: str | None = None


def names() -> list[str]:
    """Return every family, sorted. Imports none of them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def interface(model_type: str) -> Interface:
    """Return the interface of a known family."""
    return importlib.import_module(f"launcher.families.{model_type}").INTERFACE
