"""The state of training in the memory of the ranks: it goes from those that have the newest to those that lack it.

Under DistributedDataParallel every rank has all of it. Ranks may differ by one step after a loss, and the one that is
ahead heals the others: it stepped with gradients that all had summed. Parameters and optimizer state come from all
ranks that have them, each sending its share of the bytes; everything else comes from the first of these.

A sharded model has no second copy of its parts: it goes through a checkpoint.
"""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from launcher.runtime import in_place, process_group, randomness
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.checksums import checksum
from launcher.runtime.content import Content, outline
from launcher.runtime.reporting import StepMetrics
from launcher.runtime.stop_consensus import any_rank


class Kept(NamedTuple):
    """What an attempt leaves in its process; `last` are the metrics of its last step."""

    content: Content
    progress: Progress
    last: StepMetrics | None


class Taken(NamedTuple):
    """What the ranks took over: the progress, and the metrics of its step, which the first rank may not have written
    before it was lost; how many ranks had it, how many received it, and the bytes that this one received.
    """

    progress: Progress
    last: StepMetrics | None
    num_holders: int
    num_receivers: int
    num_bytes: int


class StatesDiffer(RuntimeError):
    """The ranks hold different states of the same step."""


def is_replicated(model: nn.Module) -> bool:
    """Return whether every rank has all parameters."""
    return not any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def take_over(content: Content) -> Taken | None:
    """Bring all ranks to the newest state that one of them has kept; None if none has. Collective.

    Raises:
        StatesDiffer: Their checksums differ afterwards.
    """
    kept = in_place.kept()
    if kept and not (is_replicated(content.model) and _fits(kept.content, content)):
        kept = None
    own = (kept.progress, kept.last) if kept else (None, None)
    answers = process_group.gather((*own, in_place.listening_ports()))
    in_place.know_ports([ports for *_, ports in answers])
    found = [progress for progress, *_ in answers]
    newest = max((each for each in found if each), key=lambda each: (each.step, each.cursor), default=None)
    if newest is None:
        return None
    holders = [rank for rank, each in enumerate(found) if each == newest]
    receivers = [rank for rank in range(len(found)) if rank not in holders]
    is_holder = process_group.rank() in holders
    state = kept.content.shared_state() if kept and is_holder else {}
    num_bytes = 0
    if receivers:
        state, num_bytes = _spread(content, state, holders, receivers)
    if not (kept and is_holder and kept.content.is_same(content)):
        content.take(state)
    content.optimizer.zero_grad()
    content.model.zero_grad()
    process_group.barrier()
    sums = process_group.gather(_checksum(content))
    if len(set(sums)) > 1:
        digests = ", ".join(each.hex()[:8] for each in sums)
        raise StatesDiffer(f"the ranks hold different states of step {newest.step} ({digests})")
    randomness.reseed(process_group.rank(), newest.step)
    in_place.forget()
    return Taken(newest, answers[holders[0]][1], len(holders), len(receivers), num_bytes)


def _fits(old: Content, new: Content) -> bool:
    """Return whether two contents have the same parts."""

    def form(content: Content) -> list[object]:
        parameters = [(name, each.shape, each.dtype) for name, each in content.parameters()]
        return [
            parameters,
            len(content.optimizer.param_groups),
            content.scheduler is None,
            list(content.user_content),
        ]

    return form(old) == form(new)


def _spread(
    content: Content, state: dict[str, Any], holders: Sequence[int], receivers: Sequence[int]
) -> tuple[dict[str, Any], int]:
    """Send the holders' state to the receivers; return this rank's state, and the bytes that it received."""
    rank = process_group.rank()
    form, tensors = outline(state) if rank in holders else (None, [])
    shared: list[Any] = [form]
    dist.broadcast_object_list(shared, src=holders[0])
    if any_rank(form is not None and form.tensors != shared[0].tensors):
        raise StatesDiffer("the ranks that have the newest state have different parts of it")
    if rank in receivers:
        state, tensors = content.room(shared[0])
    shares = _shares([each.numel() * each.element_size() for each in tensors], len(holders))
    works: list[Any] = []
    for tensor, share in zip(tensors, shares, strict=True):
        if not tensor.numel():
            continue
        if rank in receivers:
            works.append(dist.irecv(tensor, src=holders[share]))
        elif rank == holders[share]:
            works += [dist.isend(tensor, dst=each) for each in receivers]
    for work in works:
        work.wait()
    num_bytes = sum(each.numel() * each.element_size() for each in tensors) if rank in receivers else 0
    return state, num_bytes


def _shares(sizes: Sequence[int], count: int) -> list[int]:
    """Return which of `count` senders sends each part, so that all send about the same number of bytes."""
    loads, shares = [0] * count, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        shares[index] = loads.index(min(loads))
        loads[shares[index]] += sizes[index]
    return shares


def _checksum(content: Content) -> bytes:
    """Return the checksum of trained parameters, the optimizer's state, in the order of parameters, and schedule."""
    schedule = pickle.dumps(content.scheduler.state_dict()) if content.scheduler else b""
    return checksum(b"".join([*(checksum(each) for each in _arrays(content)), schedule]))


def _arrays(content: Content) -> Iterator[Any]:
    for _, parameter in content.parameters():
        if not parameter.requires_grad:
            continue
        for tensor in (parameter, *_tensors(content.optimizer.state.get(parameter, {}))):
            yield tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _tensors(state: dict[str, Any]) -> Iterator[torch.Tensor]:
    for name in sorted(state):
        if isinstance(state[name], torch.Tensor):
            yield state[name]
