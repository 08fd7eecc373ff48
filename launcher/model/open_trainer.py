"""How the open trainer, `launcher.runtime.finetune`, is started for a family's recipes, what it needs to find, and
what the first samples of a job on this machine show before its launch."""

import dataclasses
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from launcher.common.names import ENTRYPOINT
from launcher.common.problems import Problem
from launcher.model.backend_registry import described
from launcher.model.config_tree import get
from launcher.model.interface import Interface, OpenRecipe, agent_workers
from launcher.model.job_spec import JobSpec
from launcher.runtime.model_configs import is_on_hub, table

_MODEL = "model_config.model_name_or_path"
_TRAIN = "datasets.train_data.file_path"
_VALIDATION = "datasets.val_data.file_path"
_ADAPTERS = "model_config.lora_checkpoint_file_path"
_LINES = (".jsonl", ".ndjson", ".json")
_NUM_SAMPLES = 200
"""Samples that are read: few, since every plan of such a job reads them."""
_PACKAGES = ("tokenizers", "jinja2", "numpy", "xxhash")
_IN_CONTAINER = "/opt/ml/"
_LEAST_SAMPLES = 10
"""Made-up samples of which one is left to evaluate on."""
_SAMPLES_A_MINUTE, _EXCHANGES_A_MINUTE = 240, 960
"""Samples of all steps, and steps times the square of the ranks, of a rehearsal within a minute on two processors.

Source: measured; starting 32 ranks alone takes half a minute.
"""
_REHEARSE = "rehearse=true, for a small random model and made-up samples"


def interface(given: OpenRecipe) -> Interface:
    """Return how the open trainer is started for the recipes of a family."""
    return Interface(
        roles=(agent_workers(partial(_program, given)),),
        cuts_uneven_shares=True,
        accelerator="gpu",
        open_recipe=given,
        modules=_modules,
        needs=("peft", "pyarrow", "safetensors", "tokenizers", "transformers"),
        absent_inputs=partial(_absent_inputs, given),
        data_losses=partial(_sample_losses, given),
        rehearsal_steps=partial(_rehearsal_steps, given),
    )


def _training(given: OpenRecipe, job: JobSpec) -> Mapping[str, Any]:
    """Return what the trainer reads of the recipe, at the first size."""
    found: Mapping[str, Any] = given.trained(job.scales[0].config)["training_config"]
    return found


def _program(given: OpenRecipe, job: JobSpec) -> tuple[str, ...]:
    if not job.is_rehearsal:
        return ("-m", ENTRYPOINT)
    is_named = bool(get(job.recipe_tree, given.model)) or not job.published_model
    model = () if is_named else ("--model", job.published_model)
    samples = _rehearsal_samples(given, job)
    bound = ("--rehearsal-samples", str(samples)) if samples < _made_up_samples() else ()
    return ("-m", ENTRYPOINT, "--rehearse", *model, *bound)


def _modules(job: JobSpec) -> tuple[str, ...]:
    """Return what every fine-tuning imports, and the model's code if its architecture is known before the launch."""
    from launcher.runtime.finetune.architectures import KNOWN  # few compiles need it

    architecture = KNOWN.get(table().get(job.published_model, {}).get("model_type", ""))
    package = architecture.package if architecture else None
    model = (f"transformers.models.{package}.modeling_{package}",) if package else ()
    return ("transformers.modeling_utils", *model, "peft", "launcher.runtime.finetune.trainer")


def _absent_inputs(given: OpenRecipe, job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem for each model or data file that a job lacks. A rehearsal needs a known architecture only."""
    if job.is_rehearsal:
        yield from _unknown_architecture(given, job)
        return
    training, model_key = _training(given, job), f"recipes.{given.model}"
    if not (model := get(training, _MODEL)):
        remedy = f"{model_key}=<folder, or org/name on the Hugging Face Hub>; or {_REHEARSE}"
        yield Problem("E116", model_key, "is empty: there is no model to train", value="", remedy=remedy)
    elif not _is_found(job, model) and not is_on_hub(model):
        yield _absent(job, model_key, model, "a folder, or org/name on the Hugging Face Hub")
    yield from _absent_samples(given, job, training)
    for key, path in ((given.validation, get(training, _VALIDATION)), (given.adapters, get(training, _ADAPTERS))):
        if path and not _is_found(job, path):
            yield _absent(job, f"recipes.{key}", path, "an existing path")


def _absent_samples(given: OpenRecipe, job: JobSpec, training: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a Problem for each fault of the training samples."""
    from launcher.runtime.finetune.data.settings import CHANNELS  # few compiles need it

    key, data = f"recipes.{given.train}", get(training, _TRAIN)
    if not data:
        if not set(described(job.backend).files.channels(job.settings)) & set(CHANNELS["train_path"]):
            remedy = f"{key}=<file or folder of samples>; or {_REHEARSE}"
            yield Problem("E116", key, "is empty: there is no data to train on", value="", remedy=remedy)
    elif not _is_found(job, data):
        yield _absent(job, key, data, "a file or folder of samples")
    else:
        yield from _sample_faults(given, job)


def _unknown_architecture(given: OpenRecipe, job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem if the architecture of the small model would be unknown."""
    from launcher.runtime.finetune.architectures import CONFIG_FILE, trainable  # few compiles need it

    key, model = f"recipes.{given.model}", get(job.recipe_tree, given.model) or ""
    has_config = os.path.isfile(job.cwd / model / CONFIG_FILE)
    is_known = job.published_model in trainable()
    if not is_known and not has_config and (job.published_model or not model or _is_readable(job, model)):
        message = "names no model whose architecture is known, and no folder with a config.json"
        allowed = ", ".join(trainable())
        yield Problem("E116", key, message, value=model, allowed=allowed, remedy=f"{key}=<one of these>")


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


def _rehearsal_steps(given: OpenRecipe, job: JobSpec) -> tuple[int, int]:
    """Return the steps of a rehearsal, and how many they would be with all samples that are made up."""
    training = _training(given, job)
    return _steps(training, _rehearsal_samples(given, job)), _steps(training, _made_up_samples())


def _steps(training: Mapping[str, Any], samples: int) -> int:
    """Return the steps of so many made-up samples, split and limited like the recipe's own."""
    from launcher.runtime.finetune.data import split  # few compiles need it

    args, data = training["training_args"], training["datasets"]
    limits = [int(limit) for limit in (data["train_data"]["limit"], args["max_samples"]) if limit]
    trained = split.num_trained(min(samples, *limits), data["train_val_split_ratio"])
    steps: int = math.ceil(trained * args["max_epochs"] / args["train_batch_size"])
    return steps


def _rehearsal_samples(given: OpenRecipe, job: JobSpec) -> int:
    """Return how many samples are made up: for no more steps than are asked for, or fit into a minute."""
    most, training = _made_up_samples(), _training(given, job)
    steps = _bound(job, training["training_args"]["train_batch_size"])
    if not steps or steps >= _steps(training, most):
        return most
    return max((n for n in range(_LEAST_SAMPLES, most) if _steps(training, n) <= steps), default=_LEAST_SAMPLES)


def _bound(job: JobSpec, samples: int) -> int:
    """Return the steps, of so many `samples` each, that a rehearsal is bounded to; 0 for no bound.

    A job that changes its size, or has a scenario, needs its steps for that.
    """
    if job.rehearsal_steps is not None:
        return job.rehearsal_steps
    has_events = bool(getattr(job.settings, "scenario", None) or getattr(job.settings, "events", None))
    if job.elastic or has_events or not described(job.backend).runs_here:
        return 0
    ranks = job.initial_nodes * job.nproc_per_node
    return max(1, min(_SAMPLES_A_MINUTE // samples, _EXCHANGES_A_MINUTE // ranks**2))


def _made_up_samples() -> int:
    from launcher.runtime.finetune.rehearsal_data import NUM_SAMPLES  # few compiles need it

    return NUM_SAMPLES


def _sample_faults(given: OpenRecipe, job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem for each fault of the first samples that the job would stop at."""
    from launcher.runtime.finetune.data.errors import DataError  # few compiles need it

    try:
        list(_sample_losses(given, job))
    except DataError as error:
        remedy = "recipes data shows every sample and what is trained of it"
        for message in error.messages:
            value = get(job.recipe_tree, given.train)
            yield Problem("E277", f"recipes.{given.train}", message, value=value, remedy=remedy)


def _sample_losses(given: OpenRecipe, job: JobSpec) -> Iterator[str]:
    """Yield a line for each reason why some of the first samples would not be trained.

    Lengths are not known here: the tokenizer alone takes a second to load.

    Raises:
        DataError: The samples, the template or the tokenizer are not usable.
    """
    training = _training(given, job)
    data, model = get(training, _TRAIN), get(training, _MODEL)
    if job.is_rehearsal or not described(job.backend).runs_here or not data or not model:
        return
    path, folder = job.cwd / data, job.cwd / model
    is_read = path.suffix.lower() in _LINES and os.path.isfile(path) and os.path.isfile(folder / "tokenizer.json")
    if not is_read or not os.access(path, os.R_OK) or not all(map(importlib.util.find_spec, _PACKAGES)):
        return
    from launcher.runtime.finetune.data.report import first_losses, note
    from launcher.runtime.finetune.data.settings import DataSettings

    settings = DataSettings.of(training)
    if settings.technique != "sft":
        return
    template = str(job.cwd / settings.template_file) if settings.template_file else ""
    settings = dataclasses.replace(settings, train_path=str(path), template_file=template)
    counts = first_losses(settings, folder, _NUM_SAMPLES)
    for loss in counts.losses:
        shown = dataclasses.replace(loss, example=loss.example.replace(str(path), data))
        yield f"of the first samples, {note(shown, counts)}"
