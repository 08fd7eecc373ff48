"""What a job reads: samples with the columns of its technique, its model, its image and its secrets."""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from launcher.common import variables
from launcher.common.names import BUILTIN_DATA
from launcher.common.problems import Problem
from launcher.common.texts import first_of
from launcher.model import aws_regions, family_registry
from launcher.model.backend_registry import described
from launcher.model.config_tree import get
from launcher.model.environment import notified, secret_references, unset_secrets
from launcher.model.finding import Answer, Question, ok, unknown, warning
from launcher.model.interface import OpenRecipe
from launcher.model.job_spec import OPEN, JobSpec
from launcher.pipeline import Prepared

DATA, MODEL, IMAGE, SECRETS = "data", "model", "image", "secrets"
_SAMPLES = 200
_HUB_S = 10.0
_IN_CONTAINER = "/opt/ml/"
_CONFIG = "config.json"
_TEXT = "training_config.datasets.train_data.file_path"
_SERVER_FAILS = 500
_LATER = (408, 429)
"""Statuses of the Hub by which it does not answer: failures of the server, timeouts, too many requests."""


def questions(prepared: Prepared) -> Iterator[Question]:
    """Yield the questions about what a job reads."""
    job = prepared.job
    given = family_registry.open_recipe(job.recipe_tree)
    if job.is_rehearsal:
        yield Question(DATA, lambda: [ok(DATA, "samples are made up, as is the model: a rehearsal")])
    elif given:
        training: Mapping[str, Any] = given.trained(job.scales[0].config)["training_config"]
        yield Question(DATA, partial(_data, job, given, training))
        yield Question(MODEL, partial(_model, job, given, training))
    elif (text := get(job.recipe_tree, _TEXT)) and not text.startswith(BUILTIN_DATA):
        yield Question(DATA, lambda: [_text(job, text)])
    if job.image and not described(job.backend).runs_here:
        yield Question(IMAGE, partial(_image, job, job.image))
    if _read_here(job) or notified(job.config):
        yield Question(SECRETS, partial(_variables, job))


def is_here(job: JobSpec, path: str) -> bool:
    """Return whether the job finds under a path what this machine has there."""
    backend = described(job.backend)
    if path.startswith(_IN_CONTAINER) or "://" in path:
        return False
    return backend.files.are_shared(job.settings) or (backend.runs_here and os.path.isabs(path))


def _text(job: JobSpec, path: str) -> Answer:
    """Return whether the text that a recipe's own trainer learns exists."""
    if not is_here(job, path):
        return unknown(DATA, f"{path} is read where the job runs, which this machine does not see")
    if os.access(job.cwd / path, os.R_OK):
        return ok(DATA, f"{path} is readable")
    message = "does not exist or is not readable"
    return Problem("E116", f"recipes.{_TEXT}", message, value=path, remedy="correct the path")


def _data(job: JobSpec, given: OpenRecipe, training: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield whether the first samples have the columns of the technique."""
    from launcher.runtime.finetune.data.errors import DataError
    from launcher.runtime.finetune.data.settings import DataSettings

    try:
        settings = DataSettings.of(training)
    except DataError as error:
        yield from (Problem("E277", f"recipes.{given.train}", message) for message in error.messages)
        return
    if not settings.train_path:
        yield unknown(DATA, f"recipes.{given.train} names no file; a channel or the image has the samples")
    parts = ((given.train, settings.train_path), (given.validation, settings.validation_path))
    for key, path in parts:
        if path and is_here(job, path):
            yield from _samples(job, f"recipes.{key}", path, settings)
        elif path:
            remedy = f"recipes data FILE --recipe {job.recipe} shows what is trained of a copy"
            yield unknown(DATA, f"{path} is read where the job runs, which this machine does not see", remedy)


def _samples(job: JobSpec, key: str, path: str, settings: Any) -> Iterator[Answer]:
    from launcher.runtime.finetune.data.conversations import pair_sample, sft_sample
    from launcher.runtime.finetune.data.errors import DataError
    from launcher.runtime.finetune.data.sources import Record, open_source

    def read(record: Record) -> object:
        if settings.technique == "dpo":
            return pair_sample(record, settings.chain)
        return sft_sample(record, settings.pretrain_mode)

    kind, number = ("preference pairs" if settings.technique == "dpo" else "conversations"), 0
    try:
        source = open_source(str(job.cwd / path), "validation" if "val" in key.rpartition(".")[0] else "train")
        for chunk in source.chunks(_SAMPLES):
            number += len(chunk.each(read))
    except DataError as error:
        remedy = f"recipes data {path} --recipe {job.recipe}"
        for message in error.messages:
            if job.trainer == OPEN:
                yield Problem("E277", key, message, value=path, remedy=remedy)
            else:
                yield warning(DATA, f"{message}; the image's own program may read other forms", remedy)
        return
    if number:
        yield ok(DATA, f"{path}: the first {number} samples are {kind}")
    else:
        yield Problem("E277", key, "has no sample", value=path, remedy="name a file with samples")


def _model(job: JobSpec, given: OpenRecipe, training: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield whether the model's folder is complete, or the Hub gives its files to this user."""
    from launcher.runtime.model_configs import is_on_hub

    key, name = f"recipes.{given.model}", str(get(training, "model_config.model_name_or_path") or "")
    if not name:
        yield unknown(MODEL, f"{key} is empty: the image has its own model")
    elif is_here(job, name) and (job.cwd / name).is_dir():
        yield from _folder(key, name, job.cwd / name)
    elif is_on_hub(name):
        yield from _on_hub(job, key, name, get(training, "model_config.model_revision") or None)
    else:
        yield unknown(MODEL, f"{name} is read where the job runs, which this machine does not see")


def _folder(key: str, name: str, folder: Path) -> Iterator[Answer]:
    from launcher.runtime.finetune.architectures import ModelUnknown, read_config
    from launcher.runtime.finetune.weight_files import WeightsInvalid, saved_tensors

    try:
        config, tensors = read_config(folder), saved_tensors(folder)
        if not (folder / "tokenizer.json").is_file():
            yield Problem(
                "E116", key, "the folder has no tokenizer.json", value=name, remedy="copy the tokenizer too"
            )
        else:
            kind = config.get("model_type", "model of unknown type")
            yield ok(MODEL, f"{name}: {kind}, {len(tensors)} tensors, and its tokenizer")
    except (ModelUnknown, WeightsInvalid, OSError) as error:
        yield Problem("E116", key, str(error), value=name, remedy="copy the complete folder of the saved model")


def _on_hub(job: JobSpec, key: str, name: str, revision: str | None) -> Iterator[Answer]:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.errors import HTTPError as NotReached  # type: ignore[attr-defined]  # of its client

    at = f"{name}@{revision}" if revision else name
    try:
        known = get_hf_file_metadata(hf_hub_url(name, _CONFIG, revision=revision), timeout=_HUB_S)
        yield ok(MODEL, f"{at}: the Hub gives it to you, commit {(known.commit_hash or 'unknown')[:12]}")
    except (HfHubHTTPError, HFValidationError) as error:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
        if isinstance(error, HfHubHTTPError) and (not status or status >= _SERVER_FAILS or status in _LATER):
            yield unknown(MODEL, f"{at}: the Hub does not answer: {type(error).__name__}")
        elif described(job.backend).files.are_shared(job.settings):
            remedy = "correct the name or the revision, or give a token of a user who has access: HF_TOKEN"
            yield Problem("E116", key, f"the Hub refuses it: {type(error).__name__}", value=at, remedy=remedy)
        else:
            yield warning(MODEL, f"{at}: the Hub refuses it to this machine: {type(error).__name__}", "HF_TOKEN=…")
    except (OSError, NotReached) as error:
        cached = try_to_load_from_cache(name, _CONFIG, revision=revision)
        if isinstance(cached, str) and described(job.backend).runs_here:
            yield ok(MODEL, f"{at}: the Hub is not reachable; this machine's cache has it")
        else:
            remedy = "connect this machine to the Hub, or set HF_ENDPOINT"
            yield unknown(MODEL, f"{at}: the Hub is not reachable from here: {type(error).__name__}", remedy)


def _image(job: JobSpec, image: str) -> Iterator[Answer]:
    """Yield whether an image is fixed, and in the region of the job. A cluster's nodes pull it with their rights."""
    name = image.rpartition("/")[2]
    region, own = aws_regions.of_image(image), described(job.backend).region(job.settings)
    if region and own and region != own:
        remedy = f"container=<the image in {own}>"
        yield warning(
            IMAGE, f"its registry is in {region}, and the job in {own}: each node pulls it from there", remedy
        )
    if image.startswith("/"):
        yield from _image_file(job, image)
    elif "@" in image:
        yield ok(IMAGE, f"{image} is fixed by its digest")
    elif ":" not in name or name.endswith(":latest"):
        message = f"{image} has no fixed tag: a restarted node may pull another image"
        yield warning(IMAGE, message, "container=<name>:<tag>, or <name>@sha256:<digest>")
    else:
        yield ok(IMAGE, f"{image}; its registry is asked by the nodes, with their own rights")


def _image_file(job: JobSpec, image: str) -> Iterator[Answer]:
    if not is_here(job, image):
        yield unknown(IMAGE, f"{image} is read where the job runs, which this machine does not see")
    elif os.access(image, os.R_OK):
        yield ok(IMAGE, f"{image} is readable")
    else:
        yield Problem(
            "E116", "container", "does not exist or is not readable", value=image, remedy="correct the path"
        )


def _read_here(job: JobSpec) -> set[str]:
    """Return the variables of this process's environment from which the job gets its secrets."""
    if "env" not in described(job.backend).secrets.sources:
        return set()
    return {ref["env"] for _, _, ref in secret_references(job.config) if ref.get("env")}


def _variables(job: JobSpec) -> Iterator[Answer]:
    """Yield the secrets, and the addresses of messages, that this process's environment lacks."""
    secrets, addresses = _read_here(job), notified(job.config)
    lacking = [*unset_secrets(job.config)] if secrets else []
    yield from lacking
    unset = [name for name in addresses if not variables.current().get(name)]
    for name in unset:
        message = f"notify: {name} is not set in this environment; no message is sent to it"
        yield warning(SECRETS, message, f"export {name}=… before the launch")
    if not lacking and not unset:
        yield ok(SECRETS, f"set in this environment: {first_of(sorted({*secrets, *addresses}), 5)}")
