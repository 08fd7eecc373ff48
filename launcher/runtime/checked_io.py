"""The files of torch.distributed.checkpoint with a checksum for each piece.

A piece is the data of one tensor or object on one rank. Its checksum is an attribute of its entry in `.metadata`:
unpickling needs none of our classes, so plain `torch.distributed.checkpoint.load` reads the files. The checksum of
`.metadata` itself is in progress.json.

Checksums cover the spans between calls of `tell`. A version of torch that writes differently fails the save at once,
and one that reads differently fails the load.
"""

import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader, WriteResult
from torch.futures import Future

from launcher.runtime.checkpoint_folder import METADATA, Published, missing, outcomes
from launcher.runtime.checkpoint_search import Damaged, StateMismatch, Unavailable
from launcher.runtime.checksums import Bytes, MemoryFile, checksum, filled, new_checksum
from launcher.runtime.process_group import without_group_warning


def load_alone(state: dict[str, Any], reader: StorageReader) -> None:
    """Load this rank's part of a checkpoint into `state`, without the other ranks."""
    try:
        with without_group_warning():
            # Each rank plans alone: the metadata, which all ranks have, holds everything that they could agree on.
            load(state, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        raise StateMismatch(str(error)) from error


class CheckedWriter(FileSystemWriter):
    """Writes the files of torch.distributed.checkpoint, and a checksum for each piece into `.metadata`.

    Args:
        folder: Receives the files, which are not synced.
    """

    def __init__(self, folder: Path):
        super().__init__(folder, sync_files=False)
        self.fs: _CheckedFiles = _CheckedFiles()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            written = super().write_data(plan, planner)
        except RuntimeError as error:
            # torch.save replaces its stream's error with one of its own.
            if self.fs.failure:
                raise self.fs.failure from error
            raise
        for result in written.value():
            piece = result.storage_data
            length, found = self.fs.spans.get((piece.relative_path, piece.offset), (0, checksum(b"")))
            if length != piece.length:
                raise AssertionError(f"{piece} was not written in one span")
            piece.checksum = found
        return written


class _CheckedFiles(FileSystem):
    """Files whose spans are hashed as they are written.

    Args:
        spans: Length and checksum of the bytes between two calls of `tell`, by file name and first byte.
        failure: The first error of the file system.
    """

    def __init__(self) -> None:
        self.spans: dict[tuple[str, int], tuple[int, bytes]] = {}
        self.failure: OSError | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with super().create_stream(path, mode) as stream:
            yield _CheckedStream(stream, Path(path).name, self)


class _CheckedStream(io.IOBase):
    """A stream whose spans end where torch.distributed.checkpoint asks for the position: before and after a piece."""

    def __init__(self, stream: io.IOBase, name: str, files: _CheckedFiles):
        self._stream, self._name, self._files = cast(BinaryIO, stream), name, files
        self._start, self._checksum = 0, new_checksum()

    def write(self, data: bytes | memoryview) -> int:
        self._checksum.update(data)
        try:
            return self._stream.write(data)
        except OSError as error:
            self._files.failure = self._files.failure or error
            raise

    def tell(self) -> int:
        end = self._stream.tell()
        if end > self._start:
            self._files.spans[self._name, self._start] = (end - self._start, self._checksum.digest())
            self._start, self._checksum = end, new_checksum()
        return end

    def flush(self) -> None:
        self._stream.flush()


class CheckedReader(FileSystemReader):
    """Reads the files of torch.distributed.checkpoint and compares each piece with its checksum before it is used.

    It raises Damaged if something is missing or changed, and Unavailable if the file system failed.

    Args:
        is_first: Whether this is the first rank; see `missing`.
    """

    def __init__(self, folder: Path, stated: Published, *, is_first: bool = True):
        super().__init__(folder)
        self._is_first, self._is_verifiable = is_first, stated.is_verifiable
        self._num_checked = 0
        self._buffer = numpy.empty(0, numpy.uint8)
        self._outcome: Damaged | Unavailable | None = None
        with outcomes(is_first):
            data = (folder / METADATA).read_bytes()
        if stated.is_verifiable and checksum(data) != stated.metadata_checksum:
            raise Damaged(f"{METADATA} is changed")
        try:
            metadata = pickle.loads(data)
        except Exception as error:  # changed bytes can raise any exception
            raise Damaged(f"{METADATA} is not readable") from error
        if not isinstance(metadata, Metadata):
            raise Damaged(f"{METADATA} is not readable")
        self.metadata: Metadata = metadata

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        return self.metadata

    def load_into(self, state: dict[str, Any]) -> None:
        """Load this rank's part of the checkpoint into `state`, which holds parts of it after an error."""
        load_alone(state, self)
        if self._outcome:
            raise self._outcome

    def verify(self) -> None:
        """Read every piece and compare it with its checksum."""
        with outcomes(self._is_first):
            for piece in self.metadata.storage_data.values():
                with (self.path / piece.relative_path).open("rb") as stream:
                    self._slice_file(stream, piece)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the data of `plan`. Damage and unavailability are kept: the ranks decide once all have read."""
        try:
            with outcomes(self._is_first):
                super().read_data(plan, planner)
            if self._num_checked < len(plan.items):
                raise AssertionError("torch.distributed.checkpoint used pieces that were not checked")
        except (Damaged, Unavailable) as error:
            self._outcome = error
        except Exception as error:
            # Without checksums, a failure to decode is the only sign of damage, and can be any exception.
            if self._is_verifiable:
                raise
            self._outcome = Damaged(f"not readable: {type(error).__name__}: {error}")
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _slice_file(self, file: Any, sinfo: Any) -> IO[bytes]:
        """Return a checked piece. It is valid until the next call."""
        self._num_checked += 1
        if len(self._buffer) < sinfo.length:
            self._buffer = numpy.empty(sinfo.length, numpy.uint8)
        piece = self._buffer[: sinfo.length]
        file.seek(sinfo.offset)

        def read(start: int, part: Bytes) -> None:
            if file.readinto(part.data) < len(part):
                raise missing(f"{sinfo.relative_path} is truncated", self._is_first)

        found = filled(piece, read)
        if self._is_verifiable and found != sinfo.checksum:
            raise Damaged(f"{sinfo.relative_path} is changed in the {sinfo.length} bytes from byte {sinfo.offset} on")
        return cast(IO[bytes], MemoryFile(piece.data))
