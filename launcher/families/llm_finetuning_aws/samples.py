"""What the first samples of a job on this machine show before its launch: faults, and what would not be trained."""

import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from launcher.common.problems import Problem
from launcher.model.backend_registry import described
from launcher.model.config_tree import get
from launcher.model.job_spec import JobSpec

MODEL = "recipes.training_config.model_config.model_name_or_path"
TRAIN = "recipes.training_config.datasets.train_data.file_path"
_LINES = (".jsonl", ".ndjson", ".json")
_NUM_SAMPLES = 200
"""Samples that are read: few, since every plan of such a job reads them."""
_PACKAGES = ("tokenizers", "jinja2", "numpy", "xxhash")


def faults(job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem for each fault of the first samples that the job would stop at."""
    from launcher.runtime.finetune.data.errors import DataError  # few compiles need it

    try:
        list(losses(job))
    except DataError as error:
        remedy = "recipes data shows every sample and what is trained of it"
        for message in error.messages:
            yield Problem("E277", TRAIN, message, value=get(job.config, TRAIN), remedy=remedy)


def losses(job: JobSpec) -> Iterator[str]:
    """Yield a line for each reason why some of the first samples would not be trained.

    Lengths are not known here: the tokenizer alone takes a second to load.

    Raises:
        DataError: The samples, the template or the tokenizer are not usable.
    """
    data, model = get(job.config, TRAIN), get(job.config, MODEL)
    if job.is_rehearsal or not described(job.backend).runs_here or not data or not model:
        return
    path, folder = job.cwd / data, job.cwd / model
    is_read = path.suffix.lower() in _LINES and os.path.isfile(path) and os.path.isfile(folder / "tokenizer.json")
    if is_read and os.access(path, os.R_OK) and all(map(importlib.util.find_spec, _PACKAGES)):
        yield from _lines(job, path, folder)


def _lines(job: JobSpec, path: Path, folder: Path) -> Iterator[str]:
    from launcher.runtime.finetune.data.report import first_losses, note
    from launcher.runtime.finetune.data.settings import DataSettings

    settings = DataSettings.of(job.config["recipes"]["training_config"])
    if settings.technique != "sft":
        return
    template = str(job.cwd / settings.template_file) if settings.template_file else ""
    settings = dataclasses.replace(settings, train_path=str(path), template_file=template)
    counts = first_losses(settings, folder, _NUM_SAMPLES)
    for loss in counts.losses:
        shown = dataclasses.replace(loss, example=loss.example.replace(str(path), get(job.config, TRAIN)))
        yield f"of the first samples, {note(shown, counts)}"
