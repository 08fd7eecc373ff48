"""Writes prepared data: once per digest, complete or not at all, with memory that does not depend on the samples."""

import fcntl
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy
import numpy.typing

from launcher.common import os_errors
from launcher.runtime import durable
from launcher.runtime.checksums import of_json
from launcher.runtime.finetune.data import prepared, split
from launcher.runtime.finetune.data.encoding import Encoded, Encoder
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.fingerprints import fingerprints
from launcher.runtime.finetune.data.losses import WANTED, Counts
from launcher.runtime.finetune.data.prepared import TRAIN, VALIDATION, Prepared
from launcher.runtime.finetune.data.report import note, notes, steps_of
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.sources import Source, open_source
from launcher.runtime.finetune.data.tokenization import ModelTokenizer, open_tokenizer
from launcher.runtime.finetune.data.workers import encoded_chunks

_logger = logging.getLogger(__name__)

STEPS_FILE = "sample-{number:02}.json"
NUM_STEPS_FILES = 20


def prepare(settings: DataSettings, tokenizer_folder: Path, folder: Path) -> Prepared:
    """Write the tokens of a recipe's data into a folder below `folder`, or read what an earlier call wrote.

    Call it in one process; the others then call `prepared.load` with the result's `folder`.

    Args:
        tokenizer_folder: A model's folder, or a tokenizer's, as `save_pretrained` writes it.
        folder: Holds one folder per digest.

    Raises:
        DataError: Data, template or tokenizer are not usable, or the disk is full: nothing is left behind. Or more is
            lost of them than the recipe allows: the arrays then stay for another start that allows more.
    """
    if not settings.train_path:
        raise DataError("no training data: set datasets.train_data.file_path to a file or folder of samples")
    tokenizer = open_tokenizer(tokenizer_folder, settings)
    sources = {TRAIN: open_source(settings.train_path, "train")}
    if settings.validation_path:
        sources[VALIDATION] = open_source(settings.validation_path, "validation")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        digest = _digest(settings, tokenizer, sources, folder)
        target = folder / digest
        with _exclusive(folder, digest):
            if not (target / prepared.SUMMARY).is_file():
                _write(settings, Encoder(settings, tokenizer), sources, target)
    except OSError as error:
        message, remedy = os_errors.described(error, error.filename or folder)
        remedies = " or ".join(filter(None, (remedy, "set datasets.data_dir to another folder")))
        raise DataError(f"the prepared data cannot be written: {message}; {remedies}") from error
    found = prepared.load(target)
    counts = found.counts
    if counts.lost_share <= settings.max_lost_share:
        return found
    lines = [note(loss, counts) for loss in counts.losses if loss.reason not in WANTED]
    raise DataError(
        f"{settings.train_path}: {counts.lost_share:.3g} of the samples, or of the assistant's turns, would not be "
        f"trained; max_lost_share allows {settings.max_lost_share:g}. {'. '.join(lines)}. Mend the data, or "
        f"set max_lost_share={math.ceil(counts.lost_share * 100) / 100:g} in the recipe's section of data."
    )


def _digest(settings: DataSettings, tokenizer: ModelTokenizer, sources: dict[str, Source], folder: Path) -> str:
    """Return what identifies the arrays: content of files and tokenizer, and settings; no paths."""
    chosen = replace(settings, train_path="", validation_path="", template_file="", data_dir="", max_lost_share=1.0)
    files = {name: fingerprints(source.files, folder) for name, source in sources.items()}
    identity = [prepared.FORMAT, files, tokenizer.content, asdict(chosen)]
    return of_json(identity)


@contextmanager
def _exclusive(folder: Path, digest: str) -> Iterator[None]:
    """Hold the lock of a digest: of two jobs that share a folder, one prepares and the other waits for it."""
    with (folder / f".{digest}.lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            _logger.warning("%s has no locks (%s): two jobs must not prepare the same data at once", folder, error)
        yield


def _write(settings: DataSettings, encoder: Encoder, sources: dict[str, Source], target: Path) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed; its lock is free
    shutil.rmtree(target, ignore_errors=True)
    partial.mkdir()
    try:
        counts = _Writer(settings, encoder, partial).write(sources)
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


class _Writer:
    """Writes the arrays of training and validation samples into a folder, and counts the samples."""

    def __init__(self, settings: DataSettings, encoder: Encoder, folder: Path):
        self._settings, self._encoder, self._folder = settings, encoder, folder
        self._counts = Counts.of_losses(0, ())

    def write(self, sources: dict[str, Source]) -> Counts:
        """Write all samples of the sources `train` and, if there is one, `validation`."""
        settings = self._settings
        if settings.saves_steps:
            self._write_steps(sources[TRAIN])
        limit = settings.most(settings.train_limit)
        self._write_source(sources[TRAIN], limit, TRAIN, settings.train_path, splits=settings.splits)
        if VALIDATION in sources:
            most = settings.most(settings.validation_limit)
            self._write_source(sources[VALIDATION], most, VALIDATION, settings.validation_path)
        return self._counts

    def _write_source(self, source: Source, limit: int, part: str, path: str, *, splits: bool = False) -> None:
        """Write the samples of a source as one part; if it `splits`, the others than those of training apart."""
        settings = self._settings
        is_pairs = settings.technique == "dpo"
        total = source.count(limit) if splits else 0
        with ExitStack() as stack:
            arrays = stack.enter_context(_part(self._folder / part, is_pairs=is_pairs))
            others = stack.enter_context(_part(self._folder / VALIDATION, is_pairs=is_pairs)) if splits else None
            for found in encoded_chunks(self._encoder, source, limit):
                self._counts = self._counts.plus(found.counts())
                if others is None:
                    arrays.append(found)
                else:
                    chosen = split.is_trained(found.positions, total, settings.split_ratio, settings.split_seed)
                    arrays.append(found, chosen)
                    others.append(found, ~chosen)
        if not arrays.num_samples:
            why = ", ".join(f"{number} dropped: {reason}" for reason, number in self._counts.dropped.items())
            raise DataError(f"{path}: no {part} sample to use ({why or 'it holds none, or the limit is 0'})")
        if others is not None and not others.num_samples:
            shutil.rmtree(self._folder / VALIDATION)

    def _write_steps(self, source: Source) -> None:
        first = next(iter(source.chunks(NUM_STEPS_FILES)), None)
        for number, tree in enumerate(steps_of(self._encoder, first) if first else ()):
            path = self._folder / STEPS_FILE.format(number=number)
            path.write_text(json.dumps(tree, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


_Append = Callable[[numpy.typing.NDArray[Any]], None]


class _Part:
    """The arrays of one part, open for appending; `trained` is None for pairs."""

    def __init__(self, ids: _Append, offsets: _Append, targets: _Append, trained: _Append | None):
        self._ids, self._offsets, self._targets, self._trained = ids, offsets, targets, trained
        self.num_samples = 0
        self._end = 0

    def append(self, found: Encoded, chosen: numpy.typing.NDArray[numpy.bool_] | None = None) -> None:
        """Write the samples of a chunk, or those for which `chosen`, shape `(n,)`, is true."""
        ids, trained, lengths, targets = found.ids, found.trained, found.lengths, found.targets
        if chosen is not None:
            tokens = numpy.repeat(chosen, lengths.sum(axis=1))
            ids, lengths, targets = ids[tokens], lengths[chosen], targets[chosen]
            trained = None if trained is None else trained[tokens]
        ends = self._end + numpy.cumsum(lengths)
        self._ids(ids)
        self._offsets(ends)
        self._targets(targets)
        if self._trained is not None and trained is not None:
            self._trained(trained)
        self._end = int(ends[-1]) if len(ends) else self._end
        self.num_samples += len(lengths)


@contextmanager
def _part(folder: Path, *, is_pairs: bool) -> Iterator[_Part]:
    folder.mkdir()
    with ExitStack() as stack:

        def new(name: str, dtype: str, columns: tuple[int, ...] = ()) -> _Append:
            return stack.enter_context(_array_file(folder / f"{name}.npy", dtype, columns))

        offsets = new("offsets", "int64")
        offsets(numpy.zeros(1, numpy.int64))
        targets = new("targets", "int32", (2,) if is_pairs else ())
        yield _Part(new("ids", "uint32"), offsets, targets, None if is_pairs else new("trained", "uint8"))


@contextmanager
def _array_file(path: Path, dtype: str, columns: tuple[int, ...]) -> Iterator[_Append]:
    """Yield the function that appends rows, shape `(n, *columns)`, to a new `.npy` file; sync it at the end."""
    kind, rows = numpy.dtype(dtype), 0

    def write_header() -> None:
        # numpy reserves the digits of a growing axis, so that the header keeps its length.
        header = {"descr": numpy.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (rows, *columns)}
        numpy.lib.format.write_array_header_1_0(file, header)

    def append(values: numpy.typing.NDArray[Any]) -> None:
        nonlocal rows
        file.write(numpy.ascontiguousarray(values, kind).data)
        rows += len(values)

    with path.open("xb") as file:
        write_header()
        yield append
        file.seek(0)
        write_header()
        file.flush()
        os.fsync(file.fileno())
