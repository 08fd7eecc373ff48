"""Writes prepared data: once per digest, complete or not at all, with memory that does not depend on the samples."""

import fcntl
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from launcher.common import os_errors
from launcher.runtime import durable
from launcher.runtime.checksums import checksum
from launcher.runtime.finetune.data import prepared
from launcher.runtime.finetune.data.encoding import Encoder
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.fingerprints import fingerprints
from launcher.runtime.finetune.data.losses import WANTED
from launcher.runtime.finetune.data.prepared import Prepared
from launcher.runtime.finetune.data.report import note, notes
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.sources import Source, open_source
from launcher.runtime.finetune.data.tokenization import ModelTokenizer, open_tokenizer
from launcher.runtime.finetune.data.writing import Writer

_logger = logging.getLogger(__name__)


def prepare(
    settings: DataSettings, tokenizer_folder: Path, folder: Path, progress: Callable[[int], None] | None = None
) -> Prepared:
    """Write the tokens of a recipe's data into a folder below `folder`, or read them if they are there already.

    Call it in one process; the others then call `prepared.load` with the result's `folder`.

    Args:
        settings: Of the recipe.
        tokenizer_folder: A model's folder, or a tokenizer's, as `save_pretrained` writes it.
        folder: Holds one folder per digest.
        progress: Is called with the number of samples read so far, chunk after chunk, while data are written.

    Raises:
        DataError: Data, template or tokenizer are not usable, or the disk is full: nothing is left behind. Or more is
            lost of them than the recipe allows: the arrays then stay for another start that allows more.
    """
    if not settings.train_path:
        raise DataError("no training data: set datasets.train_data.file_path to a file or folder of samples")
    tokenizer = open_tokenizer(tokenizer_folder, settings)
    sources = _sources(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        digest = _digest(settings, tokenizer, sources, folder)
        target = folder / digest
        with _exclusive(folder, digest):
            if not (target / prepared.SUMMARY).is_file():
                _write(settings, Encoder(settings, tokenizer), sources, target, progress)
    except OSError as error:
        message, remedy = os_errors.described(error, error.filename or folder)
        remedies = " or ".join(filter(None, (remedy, "set datasets.data_dir to another folder")))
        raise DataError(f"the prepared data cannot be written: {message}; {remedies}") from error
    found = prepared.load(target)
    _check_losses(settings, found)
    return found


def _check_losses(settings: DataSettings, found: Prepared) -> None:
    """Refuse data of which more is lost than the recipe allows."""
    counts = found.counts
    if counts.lost_share <= settings.max_lost_share:
        return
    lines = [note(loss, counts) for loss in counts.losses if loss.reason not in WANTED]
    raise DataError(
        f"{settings.train_path}: {counts.lost_share:.3g} of the samples, or of the assistant's turns, would not be "
        f"trained; datasets.max_lost_share allows {settings.max_lost_share:g}. {'. '.join(lines)}. Mend the data, or "
        f"set ++recipes.training_config.datasets.max_lost_share={math.ceil(counts.lost_share * 100) / 100:g}."
    )


def _sources(settings: DataSettings) -> dict[str, Source]:
    found = {"train": open_source(settings.train_path, "train")}
    if settings.validation_path:
        found["validation"] = open_source(settings.validation_path, "validation")
    return found


def _digest(settings: DataSettings, tokenizer: ModelTokenizer, sources: dict[str, Source], folder: Path) -> str:
    """Return what identifies the arrays: content of files and tokenizer, and settings; no paths."""
    chosen = replace(settings, train_path="", validation_path="", template_file="", data_dir="", max_lost_share=1.0)
    files = {name: fingerprints(source.files, folder) for name, source in sources.items()}
    identity = [prepared.FORMAT, files, tokenizer.content, asdict(chosen)]
    return checksum(json.dumps(identity, sort_keys=True).encode()).hex()


@contextmanager
def _exclusive(folder: Path, digest: str) -> Iterator[None]:
    """Hold the lock of a digest: of two jobs that share a folder, one prepares and the other waits for it."""
    with (folder / f".{digest}.lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            _logger.warning("%s has no locks (%s): two jobs must not prepare the same data at once", folder, error)
        yield


def _write(
    settings: DataSettings,
    encoder: Encoder,
    sources: dict[str, Source],
    target: Path,
    progress: Callable[[int], None] | None,
) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed; its lock is free
    shutil.rmtree(target, ignore_errors=True)
    partial.mkdir()
    try:
        writer = Writer(settings, encoder, partial, progress)
        writer.write(sources)
        counts = writer.tally.counts()
        summary = {
            "digest": target.name,
            "technique": settings.technique,
            "counts": asdict(counts),
            "notes": notes(settings, encoder.tokenizer, counts),
        }
        durable.write_text(partial / prepared.SUMMARY, json.dumps(summary, indent=2) + "\n")
        partial.rename(target)
        durable.sync(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
