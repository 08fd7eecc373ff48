"""Copies of a sharded state in the memory of the ranks: each has its own rows, and those of a rank on another node.

They make good the loss of nodes that are not neighbours. Rows that other nodes have anyway, as under hybrid sharding,
are not copied. Copies lie in main memory, and go over gloo: no accelerator waits for memory or a link of its own.
"""

import os
from collections.abc import Sequence

import torch

from launcher.common import names
from launcher.runtime import in_place, process_group, rows
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.content import Content
from launcher.runtime.peers import Kept, held
from launcher.runtime.reporting import StepMetrics
from launcher.runtime.rows import Move, NotByRows, Part, Ranges

KEPT = 2
"""Copies that are kept: a loss during the exchange leaves the one before."""


class Neighbours:
    """Makes the copies of one attempt, as often as the environment says; never where workers do not stay."""

    def __init__(self) -> None:
        every = os.environ.get(names.ENV_COPY_EVERY)
        self._every = int(every) if every and in_place.stays() else 0
        self.copies: list[Kept] = []
        """The newest first."""

    def is_due(self, step: int) -> bool:
        """Return whether a copy is made after this step."""
        return bool(self._every) and step % self._every == 0

    def copy(self, content: Content, progress: Progress, last: StepMetrics | None) -> None:
        """Copy the state of a step, unless every rank has all of it, or it is not divided by rows. Collective."""
        if content.is_replicated:
            return
        try:
            form, tensors, parts = held(content)
        except NotByRows:
            return
        room = self.copies.pop().parts if len(self.copies) == KEPT else {}
        own = {path: (_copied(part, room.get(path, ())),) for path, (part,) in parts.items()}
        size = process_group.world_size() // process_group.num_nodes()
        plan = _plan(process_group.gather(rows.ranges_of(parts)), size)
        received: dict[str, list[Part]] = {}
        for move in plan:
            if move.target == process_group.rank():
                shape = (move.stop - move.start, *tensors[move.path].shape[1:])
                part = _room(move.start, shape, tensors[move.path].dtype, room.get(move.path, ()))
                received.setdefault(move.path, []).append(part)
        rows.exchange(plan, own, received)
        both = {path: (*each, *received.get(path, ())) for path, each in own.items()}
        self.copies.insert(0, Kept(progress, last, form, both, None))


def _plan(ranges: Sequence[Ranges], node_size: int) -> list[Move]:
    """Return the moves by which each rank gets the rows of one on the node before it that no other node has."""
    count, plan = len(ranges), []
    for source in range(count if count > node_size else 0):
        elsewhere = [ranges[rank] for rank in range(count) if rank // node_size != source // node_size]
        for path in sorted(ranges[source]):
            missing = rows.without(ranges[source][path], rows.held_by(elsewhere, path))
            plan += [Move(path, start, stop, source, (source + node_size) % count) for start, stop in missing]
    return plan


def _copied(part: Part, old: Sequence[Part]) -> Part:
    found = _room(part.start, tuple(part.rows.shape), part.rows.dtype, old)
    found.rows.copy_(part.rows)
    return found


def _room(start: int, shape: tuple[int, ...], dtype: torch.dtype, old: Sequence[Part]) -> Part:
    """Return a part in main memory for rows from `start` on: that of an older copy if it fits, or a new one."""
    fitting = (part for part in old if (part.start, tuple(part.rows.shape), part.rows.dtype) == (start, shape, dtype))
    return next(fitting, None) or Part(start, torch.empty(shape, dtype=dtype))
