"""Files of samples, read in chunks: JSONL, parquet, and folders of Hugging Face data sets."""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from launcher.runtime.file_kinds import irregular
from launcher.runtime.finetune.data import json_arrays
from launcher.runtime.finetune.data.errors import DataError, SampleError, TemplateFault

if TYPE_CHECKING:
    import pyarrow

Role = Literal["train", "validation"]
Record = Mapping[str, Any]
T = TypeVar("T")

CHUNK_SAMPLES = 1000
CHUNK_BYTES = 8 << 20
"""Most samples and bytes of text that are held and tokenized at a time."""
_BUFFER_BYTES = 1 << 20
_MOST_FAULTS = 10
"""Samples of a chunk that an error names."""
_LINES = (".jsonl", ".ndjson", ".json")
_TABLES = (".parquet", ".arrow")
_KINDS = (
    "JSONL (.jsonl, .ndjson, .json), one JSON array (.json), parquet (.parquet) or a folder of a Hugging Face "
    "data set (.arrow)"
)
_METADATA = frozenset({"dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json"})
"""Files of a saved data set that hold no samples. Source: datasets documentation, Dataset.save_to_disk."""
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escaped half of a surrogate pair; only whole pairs are characters. Source: RFC 8259, section 8.2."""
_SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test|eval)(?:[^a-z]|$)")
"""Names of splits in file names. Source: Hugging Face Hub documentation, File names and splits."""
_ROLES: dict[str, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev", "eval", "test"),
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive samples of one file, not parsed yet.

    Args:
        first: Position of the first sample in all files of the source.
        numbers: Line, row or element of each sample in the file, from 1.
        raw: A line of JSON per sample, or a batch of rows.
    """

    file: Path
    first: int
    numbers: range | tuple[int, ...]
    raw: "tuple[bytes, ...] | pyarrow.RecordBatch"

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, index: int) -> str:
        """Return where the sample `index` of this chunk is: `file:line`."""
        return f"{self.file}:{self.numbers[index]}"

    def each(self, read: Callable[[Record], T]) -> list[T]:
        """Return what `read` makes of each sample, a mapping from columns to values.

        Raises:
            DataError: Samples are not valid: not a JSON object, or refused by `read` with a SampleError.
        """
        rows = self.raw if isinstance(self.raw, tuple) else self.raw.to_pylist()
        found: list[T] = []
        faults: list[str] = []
        of_template: list[str] = []
        for index, row in enumerate(rows):
            try:
                found.append(read(_parsed(row) if isinstance(row, bytes) else row))
            except TemplateFault as error:
                of_template.append(f"{self.place(index)}: {error}")
            except SampleError as error:
                faults.append(f"{self.place(index)}: {error}")
        if others := faults[_MOST_FAULTS:]:
            faults[_MOST_FAULTS:] = [f"and {len(others)} more up to {self.place(len(self) - 1)}"]
        if of_template:
            others_of = f" (and {len(of_template) - 1} more samples up to {self.place(len(self) - 1)})"
            faults.append(of_template[0] + (others_of if len(of_template) > 1 else ""))
        if faults:
            raise DataError(*faults)
        return found


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one data set, in order. Reading raises DataError where a file cannot be read."""

    files: tuple[Path, ...]

    def chunks(self, limit: int) -> Iterator[Chunk]:
        """Yield the first `limit` samples, chunk after chunk."""
        position = 0
        for file in self.files:
            read = _line_chunks if file.suffix.lower() in _LINES else _table_chunks
            with readable(file):
                for chunk in read(file, position, limit):
                    yield chunk
                    position += len(chunk)
            if position >= limit:
                return

    def count(self, limit: int) -> int:
        """Return the number of samples, at most `limit`, without parsing them."""
        total = 0
        for file in self.files:
            with readable(file):
                total += sum(1 for _ in _lines(file)) if file.suffix.lower() in _LINES else _num_rows(file)
            if total >= limit:
                return limit
        return total


def open_source(path: str, role: Role) -> Source:
    """Return the files of `path`, a file or a folder.

    If a folder's file names hold the names of several splits, those of `role` are taken.

    Raises:
        DataError: No file of samples was found.
    """
    place = Path(path)
    if kind := irregular(place):
        raise DataError(f"{path}: is {kind}; a data set is {_KINDS}")
    if not place.exists():
        raise DataError(f"{path}: no such file or folder of {role} samples")
    if place.is_file():
        if place.suffix.lower() not in (*_LINES, *_TABLES):
            raise DataError(f"{path}: unknown kind of file {place.suffix!r}; a data set is {_KINDS}")
        return Source((place,))
    files = _of_role(_files_of(place), place, role)
    if not files:
        raise DataError(f"{path}: the folder holds no file of samples; a data set is {_KINDS}")
    return Source(files)


def _files_of(folder: Path) -> list[Path]:
    state = folder / "state.json"
    if kind := irregular(state):
        raise DataError(f"{state}: is {kind}; remove it, or name the files")
    if state.is_file():
        return _of_saved(folder, state)

    def is_hidden(file: Path) -> bool:
        # Of a tool that keeps a folder for itself, or a description of a data set.
        return file.name in _METADATA or any(part.startswith(".") for part in file.relative_to(folder).parts)

    entries = sorted(itertools.filterfalse(is_hidden, folder.rglob("*")))
    if wrong := [f"{each}: is {kind}; remove it, or name the files" for each in entries if (kind := irregular(each))]:
        others = [f"and {len(wrong) - _MOST_FAULTS} more"] if len(wrong) > _MOST_FAULTS else []
        raise DataError(*wrong[:_MOST_FAULTS], *others)
    found = [each for each in entries if each.is_file()]
    samples = [each for each in found if each.suffix.lower() in (".jsonl", ".ndjson", *_TABLES)]
    return samples or [each for each in found if each.suffix.lower() == ".json"]


def _of_saved(folder: Path, state: Path) -> list[Path]:
    """Return the files that a saved Hugging Face data set names, in its order."""
    try:
        names = [str(each["filename"]) for each in json.loads(state.read_bytes())["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{state}: not the state of a saved Hugging Face data set ({error!r})") from error
    return [folder / Path(name).name for name in names]


def _of_role(files: list[Path], folder: Path, role: Role) -> tuple[Path, ...]:
    by_split: dict[str, list[Path]] = {}
    for file in files:
        names = _SPLIT.findall(file.relative_to(folder).as_posix().lower())
        by_split.setdefault(names[-1] if names else "", []).append(file)
    if len(by_split) < 2:
        return tuple(files)
    for name in _ROLES[role]:
        if name in by_split:
            return tuple(by_split[name])
    splits = ", ".join(name or "no split" for name in by_split)
    raise DataError(
        f"{folder}: holds files of several splits ({splits}), none for {role}; name one file or subfolder"
    )


def _parsed(line: bytes) -> Record:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        message = f"not valid JSON ({error}). Repair or remove this line; a sample is one JSON object in one line."
        raise SampleError(message) from error
    if not isinstance(found, dict):
        kind = "array" if isinstance(found, list) else type(found).__name__
        raise SampleError(f"a JSON {kind}, but a sample is an object. Write one object per line.")
    if _HALF_CHARACTER.search(line):
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            message = f"a text holds half of a character ({half!r}). Repair or remove this line."
            raise SampleError(message) from error
    return found


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn errors of reading a file into a DataError."""
    if kind := irregular(file):  # opening a FIFO blocks
        raise DataError(f"{file}: is {kind}; a data set is {_KINDS}")
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and not type(error).__module__.startswith("pyarrow"):
            raise
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{file}: cannot be read: {text}") from error


def _line_chunks(file: Path, first: int, limit: int) -> Iterator[Chunk]:
    numbers: list[int] = []
    lines: list[bytes] = []
    size = 0
    for number, line in _lines(file):
        if first + len(lines) >= limit:
            break
        numbers.append(number)
        lines.append(line)
        size += len(line)
        if len(lines) == CHUNK_SAMPLES or size > CHUNK_BYTES:
            yield Chunk(file, first, tuple(numbers), tuple(lines))
            first, size = first + len(lines), 0
            numbers.clear()
            lines.clear()
    if lines:
        yield Chunk(file, first, tuple(numbers), tuple(lines))


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and JSON text of each sample: of lines that are not empty, or of the elements of an array."""
    if file.suffix.lower() == ".json" and json_arrays.is_array(file):
        yield from json_arrays.elements(file)
        return
    with file.open("rb") as stream:
        yield from ((number, line) for number, line in enumerate(stream, start=1) if not line.isspace())


def _table_chunks(file: Path, first: int, limit: int) -> Iterator[Chunk]:
    row = 1
    for batch in _batches(file):
        width = max(1, batch.nbytes // max(len(batch), 1))
        step = max(1, min(CHUNK_SAMPLES, CHUNK_BYTES // width))
        for start in range(0, len(batch), step):
            kept = batch.slice(start, min(step, max(0, limit - first)))
            if not len(kept):
                return
            yield Chunk(file, first, range(row, row + len(kept)), kept)
            first, row = first + len(kept), row + len(kept)


def _batches(file: Path) -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow

    if file.suffix.lower() == ".parquet":
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False) as table:
            yield from table.iter_batches(batch_size=CHUNK_SAMPLES, use_threads=False)
        return
    with pyarrow.OSFile(str(file)) as stream:  # mapped, the pages that were read would stay
        yield from _arrow_batches(stream)


def _arrow_batches(stream: "pyarrow.NativeFile") -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow

    try:
        reader = pyarrow.ipc.open_stream(stream)
    except pyarrow.ArrowInvalid:  # written as a file of record batches instead
        stream.seek(0)
        table = pyarrow.ipc.open_file(stream)
        yield from (table.get_batch(number) for number in range(table.num_record_batches))
        return
    yield from reader


def _num_rows(file: Path) -> int:
    import pyarrow

    if file.suffix.lower() == ".parquet":
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(file) as table:
            return int(table.metadata.num_rows)
    with pyarrow.memory_map(str(file)) as stream:  # only the heads of batches are read
        return sum(len(batch) for batch in _arrow_batches(stream))
