"""Evaluation of open-weight models by the closed program of SageMaker's image: on a benchmark, or by a judge.

Source: the published evaluation recipes; their pods: CONFIG_FILE_PATH names the recipe, without a command.
"""

from collections.abc import Mapping
from typing import Any

from launcher.families.evaluation.recipe import JUDGE, Recipe
from launcher.model.interface import WORKERS, Entry, Interface, Role
from launcher.model.job_spec import JobSpec, Trainer

__all__ = ["Recipe", "interfaces"]

_CHANNELS = {"model": "run.model_name_or_path", "data": "run.data_s3_path"}
"""Channel of a training job to the key that names its folder. Source: the published launcher's request."""


def interfaces(recipe: Mapping[str, Any]) -> Mapping[Trainer | None, Interface]:
    """Return how the program is started. A judge answers from a service, so its recipe needs no accelerator."""
    return {None: _INTERFACE._replace(accelerator=None) if JUDGE in recipe else _INTERFACE}


def _image_env(job: JobSpec) -> dict[str, str]:
    return {"INSTANCE_TYPE": job.resources.instance_type} if job.resources.instance_type else {}


_INTERFACE = Interface(
    roles=(Role(WORKERS, image_env=_image_env),),
    takes_config_path=False,
    runs_as_root=True,
    accelerator="gpu",
    entry=Entry.IMAGE,
    config_variable="CONFIG_FILE_PATH",
    channels=_CHANNELS,
)
