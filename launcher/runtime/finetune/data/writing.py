"""Encoded chunks to files: one growing array each, for training and for validation."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy
import numpy.typing

from launcher.runtime.finetune.data import split
from launcher.runtime.finetune.data.arrays import ArrayFile
from launcher.runtime.finetune.data.encoding import Encoded, Encoder
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.report import steps_of
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.sources import Source
from launcher.runtime.finetune.data.tally import Tally
from launcher.runtime.finetune.data.workers import encoded_chunks

STEPS_FILE = "sample-{number:02}.json"
NUM_STEPS_FILES = 20

TRAIN, VALIDATION = "train", "validation"


class Writer:
    """Writes the arrays of training and validation samples into a folder, and counts the samples."""

    def __init__(
        self, settings: DataSettings, encoder: Encoder, folder: Path, progress: Callable[[int], None] | None = None
    ):
        self._progress = progress
        self._settings, self._encoder, self._folder = settings, encoder, folder
        self.tally = Tally()

    def write(self, sources: dict[str, Source]) -> None:
        """Write all samples of the sources `train` and, if there is one, `validation`.

        Raises:
            DataError: A sample is not valid, or there is none to use.
        """
        settings = self._settings
        if settings.saves_steps:
            self._write_steps(sources[TRAIN])
        limit = settings.most(settings.train_limit)
        if VALIDATION in sources:
            self._write_part(sources[TRAIN], limit, TRAIN, settings.train_path)
            most = settings.most(settings.validation_limit)
            self._write_part(sources[VALIDATION], most, VALIDATION, settings.validation_path)
        elif settings.split_ratio < 1:
            self._write_split(sources[TRAIN], limit)
        else:
            self._write_part(sources[TRAIN], limit, TRAIN, settings.train_path)

    def _encoded(self, source: Source, limit: int) -> Iterator[Encoded]:
        for found in encoded_chunks(self._encoder, source, limit):
            self.tally.add(found)
            if self._progress is not None:
                self._progress(self.tally.read)
            yield found

    def _write_part(self, source: Source, limit: int, part: str, path: str) -> None:
        with _Part(self._folder / part, is_pairs=self._settings.technique == "dpo") as arrays:
            for found in self._encoded(source, limit):
                arrays.append(found)
        self._check(arrays, part, path)

    def _write_split(self, source: Source, limit: int) -> None:
        settings = self._settings
        total = source.count(limit)
        is_pairs = settings.technique == "dpo"
        with ExitStack() as stack:
            train = stack.enter_context(_Part(self._folder / TRAIN, is_pairs=is_pairs))
            validation = stack.enter_context(_Part(self._folder / VALIDATION, is_pairs=is_pairs))
            for found in self._encoded(source, limit):
                chosen = split.is_trained(found.positions, total, settings.split_ratio, settings.split_seed)
                train.append(found, chosen)
                validation.append(found, ~chosen)
        self._check(train, TRAIN, settings.train_path)
        if not validation.num_samples:
            shutil.rmtree(self._folder / VALIDATION)

    def _check(self, arrays: "_Part", part: str, path: str) -> None:
        if arrays.num_samples:
            return
        why = ", ".join(f"{number} dropped: {reason}" for reason, number in self.tally.counts().dropped.items())
        raise DataError(f"{path}: no {part} sample to use ({why or 'it holds none, or the limit is 0'})")

    def _write_steps(self, source: Source) -> None:
        first = next(iter(source.chunks(NUM_STEPS_FILES)), None)
        for number, tree in enumerate(steps_of(self._encoder, first) if first else ()):
            path = self._folder / STEPS_FILE.format(number=number)
            path.write_text(json.dumps(tree, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


class _Part:
    """The arrays of one part, open for appending."""

    def __init__(self, folder: Path, *, is_pairs: bool):
        folder.mkdir()
        self.num_samples = 0
        self._end = 0
        with ExitStack() as stack:
            self._ids = stack.enter_context(ArrayFile(folder / "ids.npy", "uint32"))
            self._offsets = stack.enter_context(ArrayFile(folder / "offsets.npy", "int64"))
            columns = (2,) if is_pairs else ()
            self._targets = stack.enter_context(ArrayFile(folder / "targets.npy", "int32", columns))
            self._trained = None if is_pairs else stack.enter_context(ArrayFile(folder / "trained.npy", "uint8"))
            self._offsets.append(numpy.zeros(1, numpy.int64))
            self._files = stack.pop_all()

    def __enter__(self) -> "_Part":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.__exit__(kind, error, trace)

    def append(self, found: Encoded, chosen: numpy.typing.NDArray[numpy.bool_] | None = None) -> None:
        """Write the samples of a chunk, or those for which `chosen`, shape `(n,)`, is true."""
        ids, trained, lengths, targets = found.ids, found.trained, found.lengths, found.targets
        if chosen is not None:
            tokens = numpy.repeat(chosen, lengths.sum(axis=1))
            ids, lengths, targets = ids[tokens], lengths[chosen], targets[chosen]
            trained = None if trained is None else trained[tokens]
        ends = self._end + numpy.cumsum(lengths)
        self._ids.append(ids)
        self._offsets.append(ends)
        self._targets.append(targets)
        if self._trained is not None and trained is not None:
            self._trained.append(trained)
        self._end = int(ends[-1]) if len(ends) else self._end
        self.num_samples += len(lengths)
