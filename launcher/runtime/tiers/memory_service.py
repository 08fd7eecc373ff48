"""The memory tier of a HyperPod cluster, through the vendor's client for its service.

The service holds blobs by namespace, rank and step, and keeps the highest steps. It receives the number of a save as
its step, so that it keeps the newest saves even after a return to an earlier step. A namespace has a fixed number of
ranks, and its newest step at one world size does not apply to another: shards go to a namespace per world size, and
one more namespace, with 1 rank, holds which save is published at which world size.

Source: amzn-sagemaker-checkpointing 1.1.3, storage/clients/inmemory.
"""

import contextlib
import importlib.util
import json
import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

from launcher.common import names
from launcher.runtime.tiers.shards import Broken, BytesShard, Key, Shard, TierFailure

PACKAGE = "amzn_sagemaker_checkpointing"
POD = "KUBERNETES_SERVICE_HOST"
"""Variable that every pod has. Source: Kubernetes, Service, Environment variables."""
DEFAULT_ADDRESS = "http://ai-toolkit-gossip-headless.aws-hyperpod.svc.cluster.local:9200"
"""Source: amzn-sagemaker-checkpointing 1.1.3, config/in_memory_client.py."""

_POINTERS, _OWNER = 0, -1
"""In place of a number of ranks: the namespaces of what is published, and of the owner's mark."""


def service_address() -> str:
    """Return the address of the cluster's memory service; empty if there is none."""
    in_pod = POD in os.environ and importlib.util.find_spec(PACKAGE) is not None
    return os.environ.get(names.ENV_MEMORY_SERVICE, DEFAULT_ADDRESS if in_pod else "")


class MemoryService:
    """The service as a store, to which `world_size` ranks save."""

    name = "memory"
    is_ranged = False

    def __init__(self, namespace: str, rank: int, world_size: int, retention: int, address: str):
        self._namespace, self._rank, self._world_size = namespace, rank, world_size
        self._retention, self._address = retention, address
        self._clients: dict[int, Any] = {}
        self.faults: list[str] = []
        self._log, self._errors = logging.Logger(PACKAGE), _ErrorKeeper()
        self._log.addHandler(self._errors)

    def begin(self) -> None:
        pass

    def write(self, key: Key, rank: int, data: torch.Tensor) -> None:
        with _translated():
            self._client(self._world_size).put_checkpoint(key.save, data.numpy().tobytes(), rank=rank)

    def publish(self, key: Key, manifest: bytes) -> None:
        with _translated():
            self._client(self._world_size).put_checkpoint(key.save, manifest, metadata_index=0)
            pointer = {"step": key.step, "save": key.save, "world_size": self._world_size}
            self._client(_POINTERS).put_checkpoint(key.save, json.dumps(pointer).encode(), rank=0)

    def saves(self) -> dict[Key, bool]:
        with _translated():
            pointers, self._errors.last = self._client(_POINTERS), ""
            steps = pointers.get_latest_checkpoints(limit=self._retention + 1)
        if self._errors.last:
            raise TierFailure(self._errors.last)
        found, self.faults = {}, []
        for place in steps:
            try:
                if pointer := self._pointer(place):
                    found[pointer[0]] = True
            except Broken as error:
                # Treated like a save that was never published: removed once there is a newer one.
                self.faults.append(f"save {place}: {error}")
                found[Key(0, place)] = False
        return found

    def manifest(self, key: Key) -> bytes:
        with _translated():
            found = self._client(self._num_writers(key)).get_checkpoint(key.save, metadata_index=0)
            return _found(found, f"manifest of step {key.step}")

    def open(self, key: Key, rank: int, num_bytes: int) -> Shard:
        with _translated():
            client = self._client(self._num_writers(key))
            data = _found(client.get_checkpoint(key.save, rank=rank), f"shard of rank {rank}")
        if len(data) < num_bytes:
            raise Broken(f"the shard of rank {rank} is truncated")
        return BytesShard(numpy.frombuffer(data, dtype=numpy.uint8), len(data))

    def mark(self) -> bytes | None:
        with _translated():
            found: bytes | None = self._client(_OWNER).get_checkpoint(1, rank=0)
        return found

    def put_mark(self, data: bytes, replaced: bytes | None) -> bool:
        # The service has no conditional requests: the last writer wins, and the other finds out at its next save.
        if self.mark() != replaced:
            return False
        with _translated():
            self._client(_OWNER).put_checkpoint(1, data, rank=0)
        return self.mark() == data

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            world_size = self._world_size
            with contextlib.suppress(Broken, TierFailure):  # of a broken pointer, too
                world_size = self._num_writers(key)
            with _translated():
                _drop(self._client(_POINTERS), key.save, 0)
                for rank in range(world_size + 1):
                    _drop(self._client(world_size), key.save, rank)

    def _client(self, world_size: int) -> Any:
        """Return the client for the shards of a number of ranks, or for `_POINTERS` or `_OWNER`."""
        from amzn_sagemaker_checkpointing.config.in_memory_client import InMemoryClientConfig
        from amzn_sagemaker_checkpointing.storage.clients.inmemory.inmemory_client import InMemoryCheckpointClient

        if world_size not in self._clients:
            kinds = {_POINTERS: "published", _OWNER: "owner"}
            name = f"{self._namespace}-{kinds.get(world_size, f'{world_size}-ranks')}"
            client = InMemoryCheckpointClient(
                name,
                str(self._rank),
                str(max(world_size, 1)),
                InMemoryClientConfig(base_url=self._address),
                metadata_file_count=int(world_size > 0),
                steps_retained=self._retention + 1,
                logger=self._log,
            )
            client.get_or_create_namespace()
            self._clients[world_size] = client
        return self._clients[world_size]

    def _pointer(self, place: int) -> tuple[Key, int] | None:
        """Return the save published under a number of the service, and how many ranks wrote it; None without one."""
        with _translated():
            data = self._client(_POINTERS).get_checkpoint(place, rank=0)
            if data is None:
                return None
            found = json.loads(data)
            return Key(int(found["step"]), int(found["save"])), int(found["world_size"])

    def _num_writers(self, key: Key) -> int:
        """Return the number of ranks that wrote a save; Broken if it is not published any more."""
        pointer = self._pointer(key.save)
        if pointer is None or pointer[0] != key:
            raise Broken(f"step {key.step} no longer exists as it was published")
        return pointer[1]


class _ErrorKeeper(logging.Handler):
    """Keeps the last error that the client logs: some of its calls return "none" when they fail."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


def _drop(client: Any, step: int, rank: int) -> None:
    """Remove a blob that the service may have removed already."""
    from amzn_sagemaker_checkpointing.storage.clients.inmemory.exceptions import InMemoryResourceNotFoundError

    with contextlib.suppress(InMemoryResourceNotFoundError):
        client.delete_checkpoint(step, rank=rank)


def _found(data: bytes | None, what: str) -> bytes:
    if data is None:
        raise Broken(f"the {what} is missing")
    return data


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    from amzn_sagemaker_checkpointing.storage.clients.inmemory.exceptions import InMemoryStorageError

    try:
        yield
    except InMemoryStorageError as error:
        if type(error) is InMemoryStorageError:
            # The client raises this very class for answers with a wrong checksum or length.
            raise Broken(str(error)) from error
        raise TierFailure(f"{error}: {error.__cause__}" if error.__cause__ else str(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise Broken(f"the service's answer is not valid: {error}") from error
