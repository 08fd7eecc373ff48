"""The ranks that save together, and the messages they exchange."""

import pickle
from collections.abc import Iterable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from launcher.runtime.process_group import collective_timeout

LEAST_TIMEOUT = timedelta(hours=1)
"""Minimum time that the first rank to finish waits for the last: a large shard over a slow network.

A shorter limit for collectives does not apply here. Most of these waits happen beside training, where a rank that
hangs is first missing in the collective of a step, which has that limit.
"""

MESSAGE_BYTES = 64 << 20
"""Maximum bytes of a message."""

SHORT_BYTES, MIDDLE_BYTES = 4 << 10, 64 << 10
"""Bytes of a value that fit into the first exchange: of every rank in `gather`, of one rank in `share`."""

_Value = TypeVar("_Value")


class Ranks:
    """A separate gloo group, which a thread may use beside training; a single process has none.

    Every method is collective.
    """

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None
        if dist.is_initialized():
            self.group = dist.new_group(backend="gloo", timeout=max(LEAST_TIMEOUT, collective_timeout()))
        self.rank = dist.get_rank() if self.group else 0
        self.size = dist.get_world_size() if self.group else 1

    def gather(self, value: _Value) -> list[_Value]:
        """Return every rank's value, in rank order."""
        if self.group is None:
            return [value]
        # Most values are short and need one exchange; all_gather_object always needs two, for lengths and values.
        data = pickle.dumps(value)
        found = self._all(len(data).to_bytes(8, "little") + data, SHORT_BYTES)
        longest = max(int.from_bytes(each[:8], "little") for each in found)
        if longest > SHORT_BYTES - 8:
            found = self._all(bytes(8) + data, longest + 8)
        return [pickle.loads(each[8:]) for each in found]

    def _all(self, data: bytes, size: int) -> list[bytes]:
        """Return the first `size` bytes of every rank's data; shorter data is padded."""
        own = torch.frombuffer(bytearray(data[:size].ljust(size, b"\0")), dtype=torch.uint8)
        found = [torch.empty(size, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(found, own, group=self.group)
        return [each.numpy().tobytes() for each in found]

    def share(self, value: _Value, source: int = 0) -> _Value:
        """Return the value of rank `source`."""
        if self.group is None:
            return value
        data = pickle.dumps(value) if self.rank == source else b""
        head = self._shared(len(data).to_bytes(8, "little") + data[:MIDDLE_BYTES], 8 + MIDDLE_BYTES, source)
        size = int.from_bytes(head[:8], "little")
        rest = self._shared(data[MIDDLE_BYTES:], size - MIDDLE_BYTES, source) if size > MIDDLE_BYTES else b""
        found: _Value = pickle.loads(head[8:] + rest)
        return found

    def _shared(self, data: bytes, size: int, source: int) -> bytes:
        """Return `size` bytes of rank `source`: its data, padded."""
        room = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
        dist.broadcast(room, src=source, group=self.group)
        return room.numpy().tobytes()

    def sum(self, numbers: Iterable[int]) -> list[int]:
        """Return the sums over all ranks."""
        total = torch.tensor(list(numbers), dtype=torch.int64)
        if self.group is not None:
            dist.all_reduce(total, group=self.group)
        sums: list[int] = total.tolist()
        return sums

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.sum([0])

    def exchange(self, data: torch.Tensor, target: int, room: torch.Tensor, source: int) -> None:
        """Send bytes to one rank while receiving from another. All ranks take part, each with its own neighbours."""
        work = [dist.isend(part, target, group=self.group) for part in _parts(data)]
        work += [dist.irecv(part, source, group=self.group) for part in _parts(room)]
        for each in work:
            if each:  # None for a rank outside of the group
                each.wait()


def _parts(data: torch.Tensor) -> Iterable[torch.Tensor]:
    return torch.split(data, MESSAGE_BYTES) if len(data) else ()
