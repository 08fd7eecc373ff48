"""A save in progress, and each rank's report about its part of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.runtime.tiers.buffers import Buffer, BufferPool
from launcher.runtime.tiers.shards import Key, Piece
from launcher.runtime.tiers.staging import Staged


@dataclass(slots=True)
class PendingSave:
    """A save in progress."""

    key: Key
    staged: Staged
    buffer: Buffer
    buffers: BufferPool
    progress: Mapping[str, Any]
    blocked_s: float
    memory_error: str = ""
    pieces: dict[Any, Piece] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavePart:
    """A rank's part of a save, as it reports it to the other ranks."""

    pieces: Mapping[Any, Piece]
    size: int
    seconds: float
    blocked_s: float
    error: str
    replica_error: str = ""
