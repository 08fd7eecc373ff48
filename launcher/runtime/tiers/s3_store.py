"""A persistent tier in S3, or in another store with the same interface."""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from launcher.runtime.checkpoint_search import Damaged, pauses
from launcher.runtime.checksums import Bytes, MemoryFile
from launcher.runtime.tiers.shards import Broken, Key, Shard, TierFailure, TierRefused
from launcher.runtime.tiers.stores import MANIFEST, shard_name

PART_BYTES = 32 << 20
"""Bytes of a part; each part has its own connection. Source: amzn-sagemaker-checkpointing 1.1.3, its chunk size."""

MAX_PARTS = 10_000
"""Source: Amazon S3 User Guide, multipart upload limits."""

CONNECTIONS = 8

REQUEST_PATIENCE_S = 60
"""Seconds for which a failing request is retried, from where the last one ended. Our own choice: each of the many
requests of a large read must outlast throttling, which depends on their rate."""

PAUSE_S, LONGEST_PAUSE_S = 0.5, 20.0
"""Seconds before a request is retried for the first time, and for any, unless the answer's Retry-After is longer.

Source of the longest: AWS SDKs and Tools Reference Guide, Retry behavior, standard mode."""

THROTTLED = (
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "RequestTimeout",
    "ExpiredToken",
    "RequestTimeTooSkewed",
)
TRANSIENT = (408, 429, 500, 502, 503, 504)
"""Error codes and statuses after which the same request may succeed. Source: as above, and Amazon S3 API Reference,
List of error codes."""

_Answer = TypeVar("_Answer")

OWNER = "owner"
"""Name of the owner's mark below the prefix."""

KEYS_PER_REQUEST = 1000
"""Source: Amazon S3 API Reference, DeleteObjects."""


class Bucket:
    """Checkpoints as objects of a bucket; settings as in `TierSettings`.

    Args:
        prefix: Of the namespace, ending in a slash.
        has_checksums: Whether requests carry checksums: AWS verifies them, some other stores refuse them.
    """

    name = "persistent"
    faults: tuple[str, ...] = ()
    is_ranged = True

    def __init__(
        self,
        bucket: str,
        prefix: str,
        endpoint: str | None = None,
        patience_s: float = REQUEST_PATIENCE_S,
        *,
        kms_key: str | None = None,
        has_checksums: bool = True,
    ):
        self._bucket, self._prefix, self._endpoint, self._patience_s = bucket, prefix, endpoint, patience_s
        self._kms_key, self._has_checksums = kms_key, has_checksums
        self._made: Any = None

    def begin(self) -> None:
        self._abort_uploads(self._prefix)

    def write(self, key: Key, rank: int, data: torch.Tensor) -> None:
        from boto3.s3.transfer import TransferConfig

        size = max(PART_BYTES, -(-len(data) // MAX_PARTS))
        config = TransferConfig(
            multipart_threshold=size, multipart_chunksize=size, max_concurrency=CONNECTIONS, use_threads=True
        )
        name = self._shard(key, rank)
        with contextlib.ExitStack() as stack:
            stack.callback(self._abort_uploads, name)  # s3transfer does not if an answer was lost
            with _translated():
                self._client.upload_fileobj(
                    MemoryFile(data.numpy().data), self._bucket, name, ExtraArgs=self._extra(), Config=config
                )
            stack.pop_all()
        self._compare(name, len(data))

    def publish(self, key: Key, manifest: bytes) -> None:
        name = f"{self._prefix}{key}/{MANIFEST}"
        with _translated():
            self._client.put_object(Bucket=self._bucket, Key=name, Body=manifest, **self._extra())
        self._compare(name, len(manifest))

    def saves(self) -> dict[Key, bool]:
        found: dict[Key, bool] = {}
        for name in self._names(""):
            if key := Key.parse(name):
                found[key] = found.get(key, False) or name.endswith(f"/{MANIFEST}")
        return found

    def manifest(self, key: Key) -> bytes:
        return self._patiently(lambda: self._content(f"{key}/{MANIFEST}"))

    def open(self, key: Key, rank: int, num_bytes: int) -> Shard:
        return _Object(self, self._shard(key, rank), num_bytes)

    def read(self, name: str, start: int, stop: int, size: int) -> torch.Tensor:
        """Return bytes of an object of at least `size` bytes, shape `(stop - start,)`."""
        room = torch.empty(stop - start, dtype=torch.uint8)
        parts = [(start + place, room[place : place + PART_BYTES]) for place in range(0, len(room), PART_BYTES)]
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="s3") as pool:
            for done in [pool.submit(self._read_part, name, *part, size) for part in parts]:
                done.result()
        return room

    def mark(self) -> bytes | None:
        with contextlib.suppress(Broken), _translated():
            return self._content(OWNER)
        return None

    def put_mark(self, data: bytes, replaced: bytes | None) -> bool:
        """Replace a mark with a conditional request, if the store supports them.

        Source: Amazon S3 User Guide, Conditional writes.
        """
        if self.mark() != replaced:
            return False
        place = {"Bucket": self._bucket, "Key": f"{self._prefix}{OWNER}", "Body": data, **self._extra()}
        etag = hashlib.md5(replaced, usedforsecurity=False).hexdigest() if replaced is not None else ""
        try:
            with _translated():
                self._client.put_object(**place, **({"IfMatch": f'"{etag}"'} if etag else {"IfNoneMatch": "*"}))
        except TierFailure as error:
            if error.code in ("PreconditionFailed", "ConditionalRequestConflict"):
                # With KMS an object's tag is not its MD5: compare the stored content instead.
                if not etag or self.mark() != replaced:
                    return False
            elif error.code != "NotImplemented":
                raise
            with _translated():
                self._client.put_object(**place)
        return self.mark() == data

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            with _translated():
                self._client.delete_object(Bucket=self._bucket, Key=f"{self._prefix}{key}/{MANIFEST}")
            names = [{"Key": f"{self._prefix}{name}"} for name in self._names(f"{key}/")]
            for start in range(0, len(names), KEYS_PER_REQUEST):
                with _translated():
                    removed = {"Objects": names[start : start + KEYS_PER_REQUEST], "Quiet": True}
                    answer = self._client.delete_objects(Bucket=self._bucket, Delete=removed)
                if refused := answer.get("Errors"):
                    raise TierFailure(
                        f"{len(refused)} objects were not removed: {refused[0]['Key']}: {refused[0]['Code']}"
                    )

    def _abort_uploads(self, prefix: str) -> None:
        """Abort unfinished multipart uploads: their parts cost as much as objects, and no listing shows them."""
        with contextlib.suppress(Damaged, TierFailure), _translated():
            pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=prefix)
            for upload in [each for page in pages for each in page.get("Uploads", ())]:
                place = {"Bucket": self._bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                self._client.abort_multipart_upload(**place)

    def _compare(self, name: str, size: int) -> None:
        """Compare an object's size with the bytes sent, before a manifest refers to it; TierFailure if not equal."""
        try:
            with _translated():
                found = self._client.head_object(Bucket=self._bucket, Key=name)["ContentLength"]
        except Damaged as error:
            raise TierFailure(f"{name} was sent but does not exist: {error}") from error
        if found != size:
            raise TierFailure(f"{name} has {found} bytes, but {size} were sent")

    def _extra(self) -> dict[str, str]:
        return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self._kms_key} if self._kms_key else {}

    @property
    def _client(self) -> Any:
        # Start-up time: boto3 takes a good part of a second to import, and is not needed before the first save.
        if self._made is None:
            import boto3
            from botocore.config import Config

            # Reads are checked against the manifest; the store verifies what it receives.
            checksums = "when_supported" if self._has_checksums else "when_required"
            config = Config(
                retries={"mode": "standard", "max_attempts": 3},
                connect_timeout=10,
                max_pool_connections=CONNECTIONS,
                request_checksum_calculation=checksums,
                response_checksum_validation="when_required",
            )
            self._made = boto3.client("s3", endpoint_url=self._endpoint, config=config)
        return self._made

    def _shard(self, key: Key, rank: int) -> str:
        return f"{self._prefix}{key}/{shard_name(rank)}"

    def _content(self, name: str) -> bytes:
        data: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
        return data

    def _names(self, prefix: str) -> list[str]:
        """Return the names under a prefix, without that of the namespace."""
        # Without retries: a save must not wait for it, and a search for a checkpoint repeats it.
        with _translated():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            return [each["Key"].removeprefix(self._prefix) for page in pages for each in page.get("Contents", ())]

    def _patiently(self, request: Callable[[], _Answer]) -> _Answer:
        """Return the answer to a request, which is retried while the store is unavailable."""
        began, waits = time.monotonic(), pauses(PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                with _translated():
                    return request()
            except TierRefused:
                raise
            except TierFailure as error:
                wait_s = max(error.retry_after_s, next(waits))
                if time.monotonic() - began + wait_s > self._patience_s:
                    raise
            time.sleep(wait_s)

    def _read_part(self, name: str, start: int, room: torch.Tensor, size: int) -> None:
        view, stop = room.numpy().data, start + len(room)

        def read() -> None:
            nonlocal view
            part = f"bytes={stop - len(view)}-{stop - 1}"
            answer = self._client.get_object(Bucket=self._bucket, Key=name, Range=part)
            if "ContentRange" not in answer:
                raise TierRefused(f"{self._endpoint} does not support reading a part of an object")
            if int(answer["ContentRange"].rpartition("/")[2]) < size:
                raise Broken(f"{name} is truncated")
            while len(view) and (count := answer["Body"].readinto(view)):
                view = view[count:]
            if len(view):
                raise TierFailure(f"{name}: the answer is {len(view)} bytes short")

        self._patiently(read)


class _Object(Shard):
    """A shard in a bucket: fetched bytes are kept until the next fetch."""

    def __init__(self, bucket: Bucket, name: str, num_bytes: int):
        self._bucket, self._name, self._num_bytes = bucket, name, num_bytes
        self._start, self._data = 0, torch.empty(0, dtype=torch.uint8)

    def fetch(self, start: int, stop: int) -> None:
        self._data = torch.empty(0, dtype=torch.uint8)  # released before the next allocation
        self._data, self._start = self._bucket.read(self._name, start, stop, self._num_bytes), start
        self.moved += stop - start

    def read(self, offset: int, room: Bytes) -> None:
        first = offset - self._start
        room[:] = self._data[first : first + len(room)].numpy()

    def close(self) -> None:
        self._data = torch.empty(0, dtype=torch.uint8)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise _failure(error) from error
    except (BotoCoreError, Boto3Error, OSError) as error:
        raise TierFailure(str(error)) from error


def _failure(error: Any) -> Damaged | TierFailure:
    """Return the meaning of an error: the object is missing or short, the store may answer later, or it refuses."""
    code, answer = str(error.response["Error"]["Code"]), error.response.get("ResponseMetadata", {})
    status = answer.get("HTTPStatusCode", 0)
    if code in ("NoSuchKey", "404", "InvalidRange", "416"):
        return Broken(f"the object is missing or truncated: {error}")
    if status in TRANSIENT or code in THROTTLED:
        header = answer.get("HTTPHeaders", {}).get("retry-after", "")  # a date, too, is possible, and not used
        return TierFailure(str(error), min(float(header), REQUEST_PATIENCE_S) if header.isdecimal() else 0.0, code)
    return TierRefused(str(error), code=code)
