"""Your own script: the launcher starts it on every rank and leaves the training to it."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.common.names import ENV_CHECKPOINTING
from launcher.model.backend_registry import described
from launcher.model.checkpointing import Content
from launcher.model.config_tree import get
from launcher.model.environment import mlflow_variables
from launcher.model.interface import Entry, Interface, agent_workers
from launcher.model.job_spec import JobSpec
from launcher.model.parallelism.distribution import Distribution
from launcher.model.recipe import CustomTraining
from launcher.model.training_args import BatchArgs, TrainingRecipe, TrainingSection


class TrainingConfig(TrainingSection):
    """Values that the launcher plans with; further keys that the script reads are declared in `extra_keys`."""

    training_args: BatchArgs
    """Batch, learning rate and folder of the checkpoints."""


class Recipe(TrainingRecipe):
    """A recipe that runs the user's own script."""

    training_config: TrainingConfig
    """Values that the launcher plans with and the script reads."""
    training_cfg: CustomTraining
    """The script, its arguments, and the job's name and size."""
    distribution: Distribution | None = None
    """Start by MPI, and SageMaker's model parallel library, for jobs under SageMaker's contract. Default: the
    launcher's own start."""

    @classmethod
    def script_kind(cls, recipe: Mapping[str, Any]) -> str:
        """Return whether the job changes its size."""
        return "elastic_script" if recipe.get("elastic_policy") else "script"

    @property
    def model_parallel_size(self) -> int:
        """Ranks that work on one batch, each with a part of the model."""
        return self.distribution.ranks_per_batch if self.distribution else 1

    def content(self, config: Mapping[str, Any] | None = None, published_model: str = "") -> Content:
        """Return the content assumed for a script: half precision, Adam with master weights."""
        from launcher.checkpointing.architecture import num_parameters  # few compiles need it

        return Content(num_parameters(config) if config else 0, "bfloat16", "adam_fp32_master", "ddp")


def _program(job: JobSpec) -> tuple[str, ...]:
    """Return script or module and its arguments. The path of a script on this machine is made absolute."""
    training = get(job.config, "recipes.training_cfg")
    arguments = (word for argument in training.get("script_args") or () for word in _words(argument))
    if module := training.get("entry_module"):
        return "-m", str(module), *arguments
    script = str(training["entry_script"])
    if not described(job.backend).files.has_containers:
        script = str(Path(job.cwd, Path(script).expanduser()))
    return script, *arguments


def _words(argument: dict[str, Any]) -> Iterator[str]:
    """Yield the words of one argument: its name, and its value unless that is null; a list is several values."""
    for name, value in argument.items():
        yield name
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                yield str(each).lower() if isinstance(each, bool) else str(each)


def _worker_env(job: JobSpec) -> dict[str, str]:
    tiers = job.scales[0].config.get("checkpointing")
    found = {ENV_CHECKPOINTING: json.dumps(tiers)} if tiers else {}
    return found | mlflow_variables(get(job.config, "recipes.training_config.mlflow"))


def _stays(job: JobSpec) -> bool:
    """Return whether the script calls `elastic.run`; one that cannot be read here, or a module, may not."""
    try:
        return bool(_CALL.search(Path(_program(job)[0]).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        return False


_CALL = re.compile(r"^\s*elastic\.run\(", re.MULTILINE)
_WORKERS = agent_workers(_program, takes_config_path=False, env=_worker_env, stays=_stays)
INTERFACES = {None: Interface(roles=(_WORKERS,), takes_config_path=False, entry=Entry.SCRIPT)}
