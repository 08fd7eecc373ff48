"""Writes prepared data: once per digest, complete or not at all, with memory that does not depend on the samples."""

import fcntl
import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import numpy.typing

from launcher.common import os_errors
from launcher.runtime import durable
from launcher.runtime.checksums import checksum
from launcher.runtime.finetune.data import prepared, split
from launcher.runtime.finetune.data.arrays import ArrayFile
from launcher.runtime.finetune.data.encoding import Encoded, Encoder
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.prepared import Counts, Prepared
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.sources import Source, open_source
from launcher.runtime.finetune.data.tokenization import ModelTokenizer, open_tokenizer

STEPS_FILE = "sample-{number:02}.json"
NUM_STEPS_FILES = 20
_logger = logging.getLogger(__name__)


def prepare(settings: DataSettings, tokenizer_folder: Path, folder: Path) -> Prepared:
    """Write the tokens of a recipe's data into a folder below `folder`, or read them if they are there already.

    Call it in one process; the others then call `prepared.load` with the result's `folder`.

    Args:
        settings: Of the recipe.
        tokenizer_folder: A model's folder, or a tokenizer's, as `save_pretrained` writes it.
        folder: Holds one folder per digest.

    Raises:
        DataError: Data, template or tokenizer are not usable, or the disk is full. Nothing is left behind.
    """
    if not settings.train_path:
        raise DataError("no training data: set datasets.train_data.file_path to a file or folder of samples")
    tokenizer = open_tokenizer(tokenizer_folder, settings)
    sources = _sources(settings)
    digest = _digest(settings, tokenizer, sources)
    target = folder / digest
    try:
        with _exclusive(folder, digest):
            if not (target / prepared.SUMMARY).is_file():
                _write(settings, Encoder(settings, tokenizer), sources, target)
    except OSError as error:
        message, remedy = os_errors.described(error, error.filename or folder)
        raise DataError(f"the prepared data cannot be written: {message}; {remedy}") from error
    return prepared.load(target)


def _sources(settings: DataSettings) -> dict[str, Source]:
    found = {"train": open_source(settings.train_path, "train")}
    if settings.validation_path:
        found["validation"] = open_source(settings.validation_path, "validation")
    return found


def _digest(settings: DataSettings, tokenizer: ModelTokenizer, sources: dict[str, Source]) -> str:
    """Return what identifies the arrays: content of files and tokenizer, and settings; no paths."""
    chosen = replace(settings, train_path="", validation_path="", template_file="", data_dir="")
    files = {name: source.fingerprint() for name, source in sources.items()}
    identity = [prepared.FORMAT, files, tokenizer.content, asdict(chosen)]
    return checksum(json.dumps(identity, sort_keys=True).encode()).hex()


@contextmanager
def _exclusive(folder: Path, digest: str) -> Iterator[None]:
    """Hold the lock of a digest: of two jobs that share a folder, one prepares and the other waits for it."""
    folder.mkdir(parents=True, exist_ok=True)
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
        writer = _Writer(settings, encoder, partial)
        writer.write(sources)
        summary = {
            "digest": target.name,
            "technique": settings.technique,
            "counts": asdict(writer.counts()),
            "notes": notes(settings, encoder.tokenizer, writer.tally),
        }
        durable.write_text(partial / prepared.SUMMARY, json.dumps(summary, indent=2) + "\n")
        partial.rename(target)
        durable.sync(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@dataclass(slots=True)
class Tally:
    """Counts that grow with each chunk; the fields are those of `Counts`."""

    kept: int = 0
    cut: int = 0
    untrained_turns: int = 0
    tokens: int = 0
    targets: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, found: Encoded) -> None:
        """Add the samples of a chunk."""
        self.kept += len(found.positions)
        self.cut += found.cut
        self.untrained_turns += found.untrained_turns
        self.tokens += sum(map(len, found.ids))
        self.targets += sum(map(sum, found.targets))
        self.dropped.update(reason for _, reason in found.dropped)


class _Writer:
    """Writes the arrays of training and validation samples."""

    def __init__(self, settings: DataSettings, encoder: Encoder, folder: Path):
        self.tally = Tally()
        self._settings, self._encoder, self._folder = settings, encoder, folder

    def write(self, sources: dict[str, Source]) -> None:
        """Write all samples.

        Raises:
            DataError: A sample is not valid, or there is none to train on.
        """
        if self._settings.saves_steps:
            self._write_steps(sources["train"])
        limit = _limit(self._settings, self._settings.train_limit)
        if "validation" in sources:
            self._write_all(sources["train"], limit, "train")
            self._check("train", self._settings.train_path)
            most = _limit(self._settings, self._settings.validation_limit)
            before = self.tally.kept
            self._write_all(sources["validation"], most, "validation")
            self._check("validation", self._settings.validation_path, before)
        elif self._settings.split_ratio < 1:
            self._write_split(sources["train"], limit)
        else:
            self._write_all(sources["train"], limit, "train")
            self._check("train", self._settings.train_path)

    def counts(self) -> Counts:
        """Return what became of the samples."""
        tally = self.tally
        read = tally.kept + tally.dropped.total()
        dropped = dict(sorted(tally.dropped.items()))
        return Counts(read, tally.kept, dropped, tally.cut, tally.untrained_turns, tally.tokens, tally.targets)

    def _encoded(self, source: Source, limit: int) -> Iterable[Encoded]:
        for chunk in source.chunks(limit):
            found = self._encoder.encode(chunk)
            self.tally.add(found)
            yield found

    def _write_all(self, source: Source, limit: int, part: str) -> None:
        with _Part(self._folder / part, self._settings.technique) as arrays:
            for found in self._encoded(source, limit):
                arrays.append(found, numpy.ones(len(found.positions), numpy.bool_))

    def _write_split(self, source: Source, limit: int) -> None:
        settings = self._settings
        total = source.count(limit)
        with ExitStack() as stack:
            train, validation = (
                stack.enter_context(_Part(self._folder / part, settings.technique))
                for part in ("train", "validation")
            )
            for found in self._encoded(source, limit):
                positions = numpy.array(found.positions, numpy.uint64)
                chosen = split.is_trained(positions, total, settings.split_ratio, settings.split_seed)
                train.append(found, chosen)
                validation.append(found, ~chosen)
        if not train.num_samples:
            self._check("train", settings.train_path, self.tally.kept)
        if not validation.num_samples:
            shutil.rmtree(self._folder / "validation")

    def _check(self, part: str, path: str, before: int = 0) -> None:
        if self.tally.kept > before:
            return
        why = ", ".join(f"{number} {reason}" for reason, number in sorted(self.tally.dropped.items()))
        raise DataError(f"{path}: no {part} sample to use: {why or 'it holds none, or the limit is 0'}")

    def _write_steps(self, source: Source) -> None:
        from launcher.runtime.finetune.data.report import steps_of

        first = next(iter(source.chunks(NUM_STEPS_FILES)), None)
        for number, tree in enumerate(steps_of(self._encoder, first) if first else ()):
            path = self._folder / STEPS_FILE.format(number=number)
            path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class _Part:
    """The arrays of one part, open for appending."""

    def __init__(self, folder: Path, technique: str):
        self.num_samples = 0
        self._stack = ExitStack()
        self._is_pairs = technique == "dpo"
        folder.mkdir()
        self._ids = self._stack.enter_context(ArrayFile(folder / "ids.npy", "uint32"))
        self._offsets = self._stack.enter_context(ArrayFile(folder / "offsets.npy", "int64"))
        columns = (2,) if self._is_pairs else ()
        self._targets = self._stack.enter_context(ArrayFile(folder / "targets.npy", "int32", columns))
        if not self._is_pairs:
            self._trained = self._stack.enter_context(ArrayFile(folder / "trained.npy", "uint8"))
        self._offsets.append(numpy.zeros(1, numpy.int64))
        self._end = 0

    def __enter__(self) -> "_Part":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    def append(self, found: Encoded, chosen: numpy.typing.NDArray[numpy.bool_]) -> None:
        """Write those samples of a chunk for which `chosen`, shape `(n,)`, is true."""
        numbers = numpy.flatnonzero(chosen).tolist()
        if not numbers:
            return
        width = 3 if self._is_pairs else 1
        ids = [part for number in numbers for part in found.ids[width * number : width * (number + 1)]]
        ends = self._end + numpy.cumsum([len(part) for part in ids])
        self._ids.append(numpy.concatenate(ids))
        self._offsets.append(ends)
        self._end = int(ends[-1])
        targets = numpy.array([found.targets[number] for number in numbers])
        self._targets.append(targets if self._is_pairs else targets[:, 0])
        if not self._is_pairs:
            self._trained.append(numpy.concatenate([found.trained[number] for number in numbers]))
        self.num_samples += len(numbers)


def notes(settings: DataSettings, tokenizer: ModelTokenizer, tally: Tally) -> list[str]:
    """Return what a user should know about prepared data, one line each."""
    found = []
    if settings.image_templates and not settings.template_file and tokenizer.template is not None:
        names = ", ".join(settings.image_templates)
        found.append(f"the template {names} exists only in the published image: {tokenizer.template.origin} is used")
    if tally.untrained_turns:
        found.append(
            "the chat template has no {% generation %} marks, so only the last turn of each conversation is trained: "
            f"{tally.untrained_turns} earlier turns of the assistant are not"
        )
    found += [f"{number} samples dropped: {reason}" for reason, number in sorted(tally.dropped.items())]
    if tally.cut:
        found.append(f"{tally.cut} samples cut to the length that the recipe allows")
    return found


def _limit(settings: DataSettings, limit: int | None) -> int:
    return settings.max_samples if limit is None else min(settings.max_samples, limit)
