"""How the open trainer, `launcher.runtime.finetune`, is started, what it needs to find, and what the first samples
of a job on this machine show before its launch."""

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Iterator

from launcher.common.names import ENTRYPOINT
from launcher.common.problems import Problem
from launcher.model.backend_registry import described
from launcher.model.config_tree import get
from launcher.model.interface import Interface, agent_workers
from launcher.model.job_spec import JobSpec
from launcher.runtime.model_configs import table

_MODEL = "recipes.training_config.model_config.model_name_or_path"
_TRAIN = "recipes.training_config.datasets.train_data.file_path"
_LINES = (".jsonl", ".ndjson", ".json")
_NUM_SAMPLES = 200
"""Samples that are read: few, since every plan of such a job reads them."""
_PACKAGES = ("tokenizers", "jinja2", "numpy", "xxhash")
_VALIDATION = "recipes.training_config.datasets.val_data.file_path"
_ADAPTERS = "recipes.training_config.model_config.lora_checkpoint_file_path"
_HUB_ID = r"[A-Za-z0-9][\w.-]*/[\w.-]+"
_IN_CONTAINER = "/opt/ml/"
_LEAST_SAMPLES = 10
"""Made-up samples of which one is left to evaluate on."""
_SAMPLES_A_MINUTE, _EXCHANGES_A_MINUTE = 240, 960
"""Samples of all steps, and steps times the square of the ranks, of a rehearsal within a minute on two processors.

Source: measured; starting 32 ranks alone takes half a minute.
"""
_REHEARSE = "rehearse=true, for a small random model and made-up samples"


def _program(job: JobSpec) -> tuple[str, ...]:
    if not job.is_rehearsal:
        return ("-m", ENTRYPOINT)
    is_named = bool(get(job.config, _MODEL)) or not job.published_model
    model = () if is_named else ("--model", job.published_model)
    samples = _rehearsal_samples(job)
    bound = ("--rehearsal-samples", str(samples)) if samples < _made_up_samples() else ()
    return ("-m", ENTRYPOINT, "--rehearse", *model, *bound)


def _modules(job: JobSpec) -> tuple[str, ...]:
    """Return what every fine-tuning imports, and the model's code if its architecture is known before the launch."""
    from launcher.runtime.finetune.architectures import KNOWN  # few compiles need it

    found = table().get(job.published_model)
    package = KNOWN[found["model_type"]].package if found else None
    model = (f"transformers.models.{package}.modeling_{package}",) if package else ()
    return ("transformers.modeling_utils", *model, "peft", "launcher.runtime.finetune.trainer")


def _absent_inputs(job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem for each model or data file that a job lacks. A rehearsal needs a known architecture only."""
    if job.is_rehearsal:
        yield from _unknown_architecture(job)
        return
    from launcher.runtime.finetune.data.settings import CHANNELS  # few compiles need it

    backend = described(job.backend)
    if not (model := get(job.config, _MODEL)):
        remedy = f"{_MODEL}=<folder, or org/name on the Hugging Face Hub>; or {_REHEARSE}"
        yield Problem("E116", _MODEL, "is empty: there is no model to train", value="", remedy=remedy)
    elif not _is_found(job, model) and not re.fullmatch(_HUB_ID, model, re.ASCII):
        yield _absent(job, _MODEL, model, "a folder, or org/name on the Hugging Face Hub")
    if not (data := get(job.config, _TRAIN)):
        if not set(backend.files.channels(job.settings)) & set(CHANNELS["train_path"]):
            remedy = f"{_TRAIN}=<file or folder of samples>; or {_REHEARSE}"
            yield Problem("E116", _TRAIN, "is empty: there is no data to train on", value="", remedy=remedy)
    elif not _is_found(job, data):
        yield _absent(job, _TRAIN, data, "a file or folder of samples")
    else:
        yield from _sample_faults(job)
    for key in (_VALIDATION, _ADAPTERS):
        if (path := get(job.config, key)) and not _is_found(job, path):
            yield _absent(job, key, path, "an existing path")


def _unknown_architecture(job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem if the architecture of the small model would be unknown."""
    from launcher.runtime.finetune.architectures import CONFIG_FILE  # few compiles need it

    model = get(job.config, _MODEL) or ""
    has_config = os.path.isfile(job.cwd / model / CONFIG_FILE)
    if not job.published_model and not has_config and (not model or _is_readable(job, model)):
        message = "names no model whose architecture is known, and no folder with a config.json"
        allowed = ", ".join(table())
        yield Problem("E116", _MODEL, message, value=model, allowed=allowed, remedy=f"{_MODEL}=<one of these>")


def _is_readable(job: JobSpec, path: str) -> bool:
    """Return whether this process can read what a job finds under a path; no job reads a name on the Hub."""
    is_elsewhere = path.startswith(_IN_CONTAINER) or not described(job.backend).runs_here
    return not (is_elsewhere and os.path.isabs(path))


def _is_found(job: JobSpec, path: str) -> bool:
    """Return whether a path exists where the job runs, or only that place can know."""
    backend = described(job.backend)
    if not backend.runs_here or path.startswith(_IN_CONTAINER):
        return True
    if backend.files.has_containers and not os.path.isabs(path):
        return False  # its processes start in a folder of their own
    return os.path.exists(job.cwd / path)


def _absent(job: JobSpec, key: str, path: str, allowed: str) -> Problem:
    is_moved = described(job.backend).files.has_containers
    start = "paths are absolute here" if is_moved else "a relative path starts in the folder that you launch from"
    message = f"does not exist on this machine; {start}"
    return Problem("E116", key, message, value=path, allowed=allowed, remedy=f"correct it; or {_REHEARSE}")


def _rehearsal_steps(job: JobSpec) -> tuple[int, int]:
    """Return the steps of a rehearsal, and how many they would be with all samples that are made up."""
    return _steps(job, _rehearsal_samples(job)), _steps(job, _made_up_samples())


def _steps(job: JobSpec, samples: int) -> int:
    """Return the steps of so many made-up samples, split and limited like the recipe's own."""
    from launcher.runtime.finetune.data import split  # few compiles need it

    training = job.scales[0].config["training_config"]
    args, data = training["training_args"], training["datasets"]
    limits = [int(limit) for limit in (data["train_data"]["limit"], args["max_samples"]) if limit]
    trained = split.num_trained(min(samples, *limits), data["train_val_split_ratio"])
    steps: int = math.ceil(trained * args["max_epochs"] / args["train_batch_size"])
    return steps


def _rehearsal_samples(job: JobSpec) -> int:
    """Return how many samples are made up: for no more steps than are asked for, or fit into a minute."""
    most = _made_up_samples()
    steps = _bound(job)
    if not steps or steps >= _steps(job, most):
        return most
    return max((n for n in range(_LEAST_SAMPLES, most) if _steps(job, n) <= steps), default=_LEAST_SAMPLES)


def _bound(job: JobSpec) -> int:
    """Return the steps that a rehearsal is bounded to; 0 for no bound.

    A job that changes its size, or has a scenario, needs its steps for that.
    """
    if job.rehearsal_steps is not None:
        return job.rehearsal_steps
    has_events = bool(getattr(job.settings, "scenario", None) or getattr(job.settings, "events", None))
    if job.elastic or has_events or not described(job.backend).runs_here:
        return 0
    samples: int = job.scales[0].config["training_config"]["training_args"]["train_batch_size"]
    ranks = job.initial_nodes * job.nproc_per_node
    return max(1, min(_SAMPLES_A_MINUTE // samples, _EXCHANGES_A_MINUTE // ranks**2))


def _made_up_samples() -> int:
    from launcher.runtime.finetune.rehearsal_data import NUM_SAMPLES  # few compiles need it

    return NUM_SAMPLES


def _sample_faults(job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem for each fault of the first samples that the job would stop at."""
    from launcher.runtime.finetune.data.errors import DataError  # few compiles need it

    try:
        list(_sample_losses(job))
    except DataError as error:
        remedy = "recipes data shows every sample and what is trained of it"
        for message in error.messages:
            yield Problem("E277", _TRAIN, message, value=get(job.config, _TRAIN), remedy=remedy)


def _sample_losses(job: JobSpec) -> Iterator[str]:
    """Yield a line for each reason why some of the first samples would not be trained.

    Lengths are not known here: the tokenizer alone takes a second to load.

    Raises:
        DataError: The samples, the template or the tokenizer are not usable.
    """
    data, model = get(job.config, _TRAIN), get(job.config, _MODEL)
    if job.is_rehearsal or not described(job.backend).runs_here or not data or not model:
        return
    path, folder = job.cwd / data, job.cwd / model
    is_read = path.suffix.lower() in _LINES and os.path.isfile(path) and os.path.isfile(folder / "tokenizer.json")
    if not is_read or not os.access(path, os.R_OK) or not all(map(importlib.util.find_spec, _PACKAGES)):
        return
    from launcher.runtime.finetune.data.report import first_losses, note
    from launcher.runtime.finetune.data.settings import DataSettings

    settings = DataSettings.of(job.config["recipes"]["training_config"])
    if settings.technique != "sft":
        return
    template = str(job.cwd / settings.template_file) if settings.template_file else ""
    settings = dataclasses.replace(settings, train_path=str(path), template_file=template)
    counts = first_losses(settings, folder, _NUM_SAMPLES)
    for loss in counts.losses:
        shown = dataclasses.replace(loss, example=loss.example.replace(str(path), data))
        yield f"of the first samples, {note(shown, counts)}"


INTERFACE = Interface(
    roles=(agent_workers(_program),),
    cuts_uneven_shares=True,
    accelerator="gpu",
    modules=_modules,
    needs=("peft", "pyarrow", "safetensors", "tokenizers", "transformers"),
    absent_inputs=_absent_inputs,
    data_losses=_sample_losses,
    rehearsal_steps=_rehearsal_steps,
)
