"""A persistent tier in S3, or another store with its interface."""

import contextlib
import io
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from launcher.runtime.tiers.shards import Broken, BytesShard, Key, Shard
from launcher.runtime.tiers.stores import MANIFEST, TierFailure

PART_BYTES = 32 << 20
"""Bytes of a part, sent over a connection of its own. Source: amzn-sagemaker-checkpointing 1.1.3, its chunk size."""

MAX_PARTS = 10_000
"""Source: Amazon S3 User Guide, multipart upload limits."""

CONNECTIONS = 8
READ_ATTEMPTS = 3
"""Times that a part is asked for whose connection breaks on the way, each from where the last one ended."""

KEYS_PER_REQUEST = 1000
"""Source: Amazon S3 API Reference, DeleteObjects."""


class Bucket:
    """Checkpoints as objects of a bucket.

    Args:
        bucket: Its name.
        prefix: Of the namespace, ending in a slash.
        endpoint: Address of another store; None for AWS.
    """

    name = "persistent"

    def __init__(self, bucket: str, prefix: str, endpoint: str | None = None):
        self._bucket, self._prefix, self._endpoint = bucket, prefix, endpoint
        self._made: Any = None

    def write(self, key: Key, rank: int, data: torch.Tensor) -> None:
        from boto3.s3.transfer import TransferConfig

        size = max(PART_BYTES, -(-len(data) // MAX_PARTS))
        config = TransferConfig(
            multipart_threshold=size, multipart_chunksize=size, max_concurrency=CONNECTIONS, use_threads=True
        )
        with _translated():
            self._client.upload_fileobj(_Reader(data), self._bucket, self._shard(key, rank), Config=config)

    def publish(self, key: Key, manifest: bytes) -> None:
        with _translated():
            self._client.put_object(Bucket=self._bucket, Key=f"{self._prefix}{key}/{MANIFEST}", Body=manifest)

    def saves(self) -> dict[Key, bool]:
        found: dict[Key, bool] = {}
        for name in self._names(""):
            if key := Key.parse(name):
                found[key] = found.get(key, False) or name.endswith(f"/{MANIFEST}")
        return found

    def manifest(self, key: Key) -> bytes:
        with _translated():
            return self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}{key}/{MANIFEST}")["Body"].read()

    def open(self, key: Key, rank: int, num_bytes: int) -> Shard:
        room = torch.empty(num_bytes, dtype=torch.uint8)
        with _translated():
            found = self._client.head_object(Bucket=self._bucket, Key=self._shard(key, rank))
        if found["ContentLength"] < len(room):
            raise Broken(f"the shard of rank {rank} is cut short")
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="s3") as pool:
            parts = [(start, room[start : start + PART_BYTES]) for start in range(0, len(room), PART_BYTES)]
            for done in [pool.submit(self._read_part, self._shard(key, rank), *part) for part in parts]:
                done.result()
        return BytesShard(room.numpy())

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            with _translated():
                self._client.delete_object(Bucket=self._bucket, Key=f"{self._prefix}{key}/{MANIFEST}")
            names = [{"Key": f"{self._prefix}{name}"} for name in self._names(f"{key}/")]
            for start in range(0, len(names), KEYS_PER_REQUEST):
                with _translated():
                    gone = {"Objects": names[start : start + KEYS_PER_REQUEST], "Quiet": True}
                    answer = self._client.delete_objects(Bucket=self._bucket, Delete=gone)
                if refused := answer.get("Errors"):
                    raise TierFailure(f"{len(refused)} objects stay: {refused[0]['Key']}: {refused[0]['Code']}")

    @property
    def _client(self) -> Any:
        # Importing boto3 takes a good part of a second: not before the first save.
        if self._made is None:
            import boto3
            from botocore.config import Config

            # Pieces have checksums of their own.
            config = Config(
                retries={"mode": "standard", "max_attempts": 3},
                connect_timeout=10,
                max_pool_connections=CONNECTIONS,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
            self._made = boto3.client("s3", endpoint_url=self._endpoint, config=config)
        return self._made

    def _shard(self, key: Key, rank: int) -> str:
        return f"{self._prefix}{key}/rank{rank:05d}.shard"

    def _names(self, prefix: str) -> list[str]:
        """Return the names under a prefix, without the namespace's."""
        with _translated():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            return [each["Key"].removeprefix(self._prefix) for page in pages for each in page.get("Contents", ())]

    def _read_part(self, name: str, start: int, room: torch.Tensor) -> None:
        view, stop, attempts = memoryview(room.numpy()), start + len(room), READ_ATTEMPTS
        while len(view):
            with _translated():
                part = f"bytes={stop - len(view)}-{stop - 1}"
                body = self._client.get_object(Bucket=self._bucket, Key=name, Range=part)["Body"]
            attempts -= 1
            try:
                with _translated():
                    while len(view) and (count := body.readinto(view)):
                        view = view[count:]
            except TierFailure:
                if not attempts:
                    raise
            if len(view) and not attempts:
                raise Broken(f"{name} is cut short")


class _Reader(io.RawIOBase):
    """A file over bytes that are in memory already."""

    def __init__(self, data: torch.Tensor):
        self._view, self._at = memoryview(data.numpy()), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._view)}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, room: Any) -> int:
        part = self._view[self._at : self._at + len(room)]
        room[: len(part)] = part
        self._at += len(part)
        return len(part)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
            raise Broken(str(error)) from error
        raise TierFailure(str(error)) from error
    except (BotoCoreError, Boto3Error, OSError) as error:
        raise TierFailure(str(error)) from error
