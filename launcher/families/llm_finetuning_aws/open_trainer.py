"""How the open trainer, `launcher.runtime.finetune`, is started, and what it needs to find."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

from launcher.common.names import ENTRYPOINT
from launcher.common.problems import Problem
from launcher.model.backend_registry import described
from launcher.model.config_tree import get
from launcher.model.interface import Interface, runtime_workers
from launcher.model.job_spec import JobSpec
from launcher.runtime.model_configs import known_beginning, table

_MODEL = "recipes.training_config.model_config.model_name_or_path"
_TRAIN = "recipes.training_config.datasets.train_data.file_path"
_VALIDATION = "recipes.training_config.datasets.val_data.file_path"
_ADAPTERS = "recipes.training_config.model_config.lora_checkpoint_file_path"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_IN_CONTAINER = "/opt/ml/"
CONFIG_FILE = "config.json"
_CHANNELS = ("train", "training")
"""Channels whose folder is the training data where the recipe names no file."""
_REHEARSE = "rehearse=true, for a small random model and made-up samples"


def _program(job: JobSpec) -> tuple[str, ...]:
    return ("-m", ENTRYPOINT, *(("--rehearse",) if job.is_rehearsal else ()))


def _absent_inputs(job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem for each model or data file that a job lacks. A rehearsal needs a known architecture only."""
    if job.is_rehearsal:
        yield from _unknown_architecture(job)
        return
    backend = described(job.backend)
    if not (model := get(job.config, _MODEL)):
        remedy = f"{_MODEL}=<folder, or org/name on the Hugging Face Hub>; or {_REHEARSE}"
        yield Problem("E116", _MODEL, "is empty: there is no model to train", value="", remedy=remedy)
    elif not _is_found(job, model) and not _HUB_ID.fullmatch(model):
        yield _absent(_MODEL, model, "a folder, or org/name on the Hugging Face Hub")
    if not (data := get(job.config, _TRAIN)):
        if not set(backend.channels(job.settings)) & set(_CHANNELS):
            remedy = f"{_TRAIN}=<file or folder of samples>; or {_REHEARSE}"
            yield Problem("E116", _TRAIN, "is empty: there is no data to train on", value="", remedy=remedy)
    elif not _is_found(job, data):
        yield _absent(_TRAIN, data, "a file or folder of samples")
    for key in (_VALIDATION, _ADAPTERS):
        if (path := get(job.config, key)) and not _is_found(job, path):
            yield _absent(key, path, "an existing path")


def _unknown_architecture(job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem if nobody can say what the small model should look like."""
    model, name = get(job.config, _MODEL) or "", get(job.config, "recipes.run.name")
    config = job.cwd / Path(model) / CONFIG_FILE
    if known_beginning(model or name) is None and not config.is_file() and (not model or _is_readable(job, model)):
        message = "names no model whose architecture is known, and no folder with a config.json"
        allowed = ", ".join(table())
        yield Problem("E116", _MODEL, message, value=model, allowed=allowed, remedy=f"{_MODEL}=<one of these>")


def _is_readable(job: JobSpec, path: str) -> bool:
    """Return whether this process can read what a job finds under a path; a name on the Hub is not read at all."""
    return described(job.backend).runs_here and not path.startswith(_IN_CONTAINER) or not path.startswith("/")


def _is_found(job: JobSpec, path: str) -> bool:
    """Return whether a path exists where the job runs, or only that place can know."""
    if not described(job.backend).runs_here or path.startswith(_IN_CONTAINER):
        return True
    return (job.cwd / Path(path)).exists()


def _absent(key: str, path: str, allowed: str) -> Problem:
    message = "does not exist on this machine; a relative path starts in the folder that you launch from"
    return Problem("E116", key, message, value=path, allowed=allowed, remedy=f"correct it; or {_REHEARSE}")


def _rehearsal_steps(job: JobSpec) -> int:
    """Return the steps of a rehearsal, whose samples are made up, split and limited like the recipe's own."""
    from launcher.runtime.finetune import rehearsal_data  # few compiles need these
    from launcher.runtime.finetune.data import split

    training = job.scales[0].config["training_config"]
    args, data = training["training_args"], training["datasets"]
    limits = [int(limit) for limit in (data["train_data"]["limit"], args["max_samples"]) if limit]
    trained = split.num_trained(min(rehearsal_data.NUM_SAMPLES, *limits), data["train_val_split_ratio"])
    steps: int = math.ceil(trained * args["max_epochs"] / args["train_batch_size"])
    return steps


INTERFACE = Interface(
    roles=(runtime_workers(_program),),
    cuts_uneven_shares=True,
    accelerator="gpu",
    modules=("transformers.modeling_utils", "peft", "launcher.runtime.finetune.trainer"),
    needs=("peft", "pyarrow", "safetensors", "tokenizers", "transformers"),
    absent_inputs=_absent_inputs,
    rehearsal_steps=_rehearsal_steps,
)
