"""Objects in S3 and on this machine, by URI. URIs are read literally: S3 encodes nothing in them.

A folder of this machine is listed as S3 lists: the prefix file:///data/train means /data/train/… and /data/train-2.
"""

import io
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from launcher.backends.sagemaker.client import Connection, Refused, client, connect, problem
from launcher.backends.sagemaker.constraints import bucket_and_key
from launcher.backends.sagemaker_local import files
from launcher.common.problems import ProblemsFound, fail

FILE, S3 = "file://", "s3://"

_THREADS = 16
"""Requests at once: an object of S3 has a latency of tens of milliseconds."""

_COPIERS = 2
"""Files of this machine copied at once."""

_BATCH = 128
"""Files that each thread copies before it checks whether to continue."""

_SMALL_BYTES = 8 << 20
"""Objects up to this size are read in one request, larger ones in parts. Source: boto3, TransferConfig."""

_ATTEMPTS = 5
_CONNECT_TIMEOUT_S = 5
_ABSENT = ("404", "NoSuchKey", "NoSuchBucket", "NotFound")
"""Source: Amazon S3, Error responses; a HEAD has no body, so its code is the status."""

_REGION_OF_OTHERS = "us-east-1"
"""Region for a server other than AWS, most of which ignore it."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object of a store, by its URI, s3://bucket/key or file:///path; its size is in bytes."""

    uri: str
    size: int


@dataclass(slots=True)
class Stores:
    """Object stores by scheme: s3:// through boto3's usual credentials, and file:// for folders of this machine.

    Every method raises ProblemsFound if no such object exists, or the store refuses.

    Args:
        endpoint: Endpoint of S3; None is AWS.
        region: S3's region; None is that of the user's AWS configuration.
        file_systems: Folders of this machine that replace file systems: by `fs-…`, or by `fs-…/folder`.
    """

    endpoint: str | None = None
    region: str | None = None
    file_systems: Mapping[str, str] = field(default_factory=dict)
    _connection: Connection | None = None

    def list(self, uri: str) -> Iterator[Object]:
        """Yield the objects whose URI begins with a prefix, sorted by key; folders are not objects."""
        with _errors_as_problems(uri):
            if (path := _local(uri)) is not None:
                for found, size in files.beginning_with(path):
                    yield Object(FILE + found, size)
                return
            bucket, prefix = bucket_and_key(uri)
            query = {"Bucket": bucket, "Prefix": prefix}
            while True:
                page = self._s3().call("s3", "list_objects_v2", **query)
                for each in page.get("Contents", ()):
                    if not each["Key"].endswith("/"):
                        yield Object(f"{S3}{bucket}/{each['Key']}", each["Size"])
                if not page.get("NextContinuationToken"):
                    return
                query["ContinuationToken"] = page["NextContinuationToken"]

    def fetch(self, uri: str, path: Path) -> None:
        """Copy an object to a file, whose folder is created if it is missing."""
        with _errors_as_problems(uri):
            path.parent.mkdir(parents=True, exist_ok=True)
            if (source := _local(uri)) is not None:
                files.copy(source, str(path))
            else:
                self._transfer("download_file", uri, path)

    def fetch_all(self, wanted: Iterable[tuple[Object, str | Path]]) -> None:
        """Copy objects to files, many at a time; after the first error, others may have been copied."""
        targets = [(found, os.fspath(path)) for found, path in wanted]
        for folder in sorted({path.rpartition("/")[0] for _, path in targets}):
            Path(folder).mkdir(parents=True, exist_ok=True)
        here: list[tuple[str, str]] = []
        small: list[tuple[str, str]] = []
        for found, path in targets:
            if found.size > _SMALL_BYTES:
                self.fetch(found.uri, Path(path))
            else:
                (small if found.uri.startswith(S3) else here).append((found.uri, path))
        if small:
            self._s3()  # connected once, before threads share it
        pool = ThreadPoolExecutor(_THREADS if small else _COPIERS)
        try:
            begun = [pool.submit(self._fetch_at_once, *each) for each in small]
            begun += [pool.submit(self._copy, here[at : at + _BATCH]) for at in range(0, len(here), _BATCH)]
            for done in begun:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def open(self, uri: str, offset: int = 0, count: int | None = None) -> "BinaryIO | S3Stream":
        """Return an object's bytes, from `offset` on, as a stream to be closed; from S3, at most `count` bytes.

        A stream of S3 resumes at its position when its connection is lost, as idle ones are.
        """
        with _errors_as_problems(uri):
            if (path := _local(uri)) is not None:
                stream = files.open_regular(path)
                if offset:
                    stream.seek(offset)
                return stream
            return S3Stream(self._s3(), uri, offset, count)

    def put(self, path: Path, uri: str) -> None:
        """Copy a file to an object; it appears atomically."""
        with _errors_as_problems(uri):
            if (target := _local(uri)) is not None:
                files.publish(str(path), target)
            else:
                self._transfer("upload_file", uri, path)

    def folder(self, uri: str) -> Path | None:
        """Return the folder of this machine named by a URI with a final slash; None for other URIs."""
        path = _local(uri)
        return Path(path) if path is not None and path.endswith("/") else None

    def _copy(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Copy files of this machine, 10,000 of them as fast as cp."""
        for uri, path in wanted:
            try:
                files.copy(uri.removeprefix(FILE), path)
            except OSError as error:
                raise _refused(error, uri) from error

    def _fetch_at_once(self, uri: str, path: str) -> None:
        with self.open(uri) as stream, _errors_as_problems(uri), open(path, "wb") as target:
            shutil.copyfileobj(stream, target, 1 << 20)

    def _transfer(self, operation: str, uri: str, path: Path) -> None:
        """Transfer an object in parts; it appears when all have arrived, in S3 and as boto3's file."""
        from boto3.exceptions import Boto3Error

        bucket, key = bucket_and_key(uri)
        try:
            self._s3().call("s3", operation, Bucket=bucket, Key=key, Filename=str(path))
        except Boto3Error as error:
            raise fail("E421", uri, str(error)) from error

    def _s3(self) -> Connection:
        """Return the connection to S3, shared by threads."""
        if self._connection is None:
            made = connect(self.region or (_REGION_OF_OTHERS if self.endpoint else None))
            from botocore.config import Config

            config = Config(
                retries={"mode": "standard", "max_attempts": _ATTEMPTS},
                connect_timeout=_CONNECT_TIMEOUT_S,
                max_pool_connections=4 * _THREADS,
            )
            found = client(made.session, "s3", config, self.endpoint)
            self._connection = Connection(made.region, made.session, {"s3": found})
        return self._connection


class S3Stream(io.RawIOBase):
    """An object of S3 from a byte on, resumed where its connection was lost. Its `size` is the complete object's."""

    def __init__(self, connection: Connection, uri: str, offset: int = 0, count: int | None = None):
        super().__init__()
        self._connection, self._uri, self._offset = connection, uri, offset
        self._last = "" if count is None else str(offset + count - 1)
        self._tag: str | None = None
        self.size = 0
        self._body = self._opened()

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read up to the buffer's size; 0 at the end.

        Raises:
            ProblemsFound: The connection was lost too often, or the object has changed.
        """
        from botocore.exceptions import BotoCoreError

        for _ in range(_ATTEMPTS):
            try:
                data = self._body.read(len(buffer))
            except (BotoCoreError, OSError):
                with _errors_as_problems(self._uri):
                    self._body = self._opened()
                continue
            buffer[: len(data)] = data
            self._offset += len(data)
            return len(data)
        raise fail("E421", self._uri, f"its connection was lost {_ATTEMPTS} times at byte {self._offset}")

    def close(self) -> None:
        """Close the connection."""
        if not self.closed:
            self._body.close()
        super().close()

    def _opened(self) -> Any:
        bucket, key = bucket_and_key(self._uri)
        is_part = self._offset or self._last
        rest = {"Range": f"bytes={self._offset}-{self._last}"} if is_part else {}
        if self._tag:  # the rest of another version would be another object's
            rest["IfMatch"] = self._tag
        found = self._connection.call("s3", "get_object", Bucket=bucket, Key=key, **rest)
        self._tag, self.size = found["ETag"], self._offset + found["ContentLength"]
        return found["Body"]


def _local(uri: str) -> str | None:
    """Return the path of a file:// URI; None for one of S3."""
    if uri.startswith(S3):
        return None
    if not uri.startswith(f"{FILE}/"):
        raise fail("E421", uri, "is not in a store that is supported here", allowed="s3://bucket/key or file:///path")
    return uri.removeprefix(FILE)


@contextmanager
def _errors_as_problems(uri: str) -> Iterator[None]:
    """Raise a store's refusal within the block as a Problem about the URI."""
    try:
        yield
    except Refused as error:
        if error.code in _ABSENT:
            raise fail("E420", uri, f"does not exist: {error.message}") from error
        raise ProblemsFound((problem(error, uri),)) from error
    except OSError as error:
        raise _refused(error, uri) from error
    except UnicodeEncodeError as error:
        raise fail("E421", uri, "is not valid UTF-8, which keys of S3 must be", value=ascii(uri)) from error


def _refused(error: OSError, uri: str) -> ProblemsFound:
    """Return the system's error about a URI as a Problem."""
    if isinstance(error, FileNotFoundError):
        return fail("E420", uri, "does not exist")
    named = f" ({error.filename})" if error.filename else ""
    return fail("E421", uri, f"{error.strerror or error}{named}")
