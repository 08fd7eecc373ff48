"""The ranks that save together, and what they tell each other."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

TIMEOUT = timedelta(hours=1)
"""How long the first rank to be done may wait for the last: a large shard over a slow network."""

MESSAGE_BYTES = 64 << 20
"""Bytes sent in one message."""

_Value = TypeVar("_Value")


class Ranks:
    """A gloo group of its own, so that a thread may use it beside the training's; one process alone has none.

    Every method is collective, but `send` and `receive`, which two ranks call.
    """

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo", timeout=TIMEOUT) if dist.is_initialized() else None
        self.rank = dist.get_rank() if self.group else 0
        self.size = dist.get_world_size() if self.group else 1

    def gather(self, value: _Value) -> list[_Value]:
        """Return every rank's value, in the order of ranks."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def share(self, value: _Value, source: int = 0) -> _Value:
        """Return the value of rank `source`."""
        if self.group is None:
            return value
        values = [value if self.rank == source else None]
        dist.broadcast_object_list(values, src=source, group=self.group)
        return values[0]

    def sum(self, numbers: Iterable[int]) -> list[int]:
        """Return the sums over all ranks."""
        total = torch.tensor(list(numbers), dtype=torch.int64)
        if self.group is not None:
            dist.all_reduce(total, group=self.group)
        return total.tolist()

    def exchange(self, data: torch.Tensor, target: int, room: torch.Tensor, source: int) -> None:
        """Send bytes to one rank while another one's come in. All ranks take part, each with its own neighbours.

        Args:
            data: Bytes for `target`.
            target: A rank.
            room: Where the bytes of `source` go.
            source: A rank.
        """
        work = [dist.isend(part, target, group=self.group) for part in _parts(data)]
        work += [dist.irecv(part, source, group=self.group) for part in _parts(room)]
        for each in work:
            each.wait()

    def send(self, data: torch.Tensor, target: int) -> None:
        """Send bytes to a rank that receives them."""
        for part in _parts(data):
            dist.send(part, target, group=self.group)

    def receive(self, room: torch.Tensor, source: int) -> None:
        """Fill `room` with bytes that a rank sends."""
        for part in _parts(room):
            dist.recv(part, source, group=self.group)


def _parts(data: torch.Tensor) -> Iterable[torch.Tensor]:
    return data.split(MESSAGE_BYTES) if len(data) else ()
