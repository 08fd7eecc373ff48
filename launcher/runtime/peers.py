"""The state of training in the memory of the ranks: it goes from those that have the newest to those that lack it.

Under DistributedDataParallel every rank has all of it; of a sharded model each has some rows. What a rank needs and
does not have comes straight from the ranks that have it, each sending its share of the bytes. Ranks may differ by one
step after a loss, and those that are ahead heal the others: they stepped with gradients that all had summed.

Rows that only a leaving rank has are handed to those that remain before it leaves. If rows are lost with a rank, all
continue at a checkpoint.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from launcher.runtime import in_place, process_group, randomness, rows
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.checksums import checksum
from launcher.runtime.content import Content, Outline, outline
from launcher.runtime.reporting import StepMetrics
from launcher.runtime.rows import NotByRows, Part, Parts, Ranges


class Kept(NamedTuple):
    """What an attempt leaves in its process: its last state, or a copy of an earlier one.

    Args:
        last: Metrics of the last step.
        form, parts: Form of the state, and what this rank has of it.
        content: Of the same tensors, to continue with; None for a sharded model, which is made for its ranks, and for
            a copy.
    """

    progress: Progress
    last: StepMetrics | None
    form: Outline
    parts: Parts
    content: Content | None


class Taken(NamedTuple):
    """What the ranks took over: the progress, and the metrics of its step, which the first rank may not have written
    before it was lost; how many ranks had it, how many received from others, and the bytes that these received.
    """

    progress: Progress
    last: StepMetrics | None
    num_holders: int
    num_receivers: int
    num_bytes: int


class NotHealed(RuntimeError):
    """The ranks cannot continue with what they have; the message says why."""


class _Offer(NamedTuple):
    """What a rank tells the others of a state that it has; `ranges` are None if it has everything."""

    progress: Progress
    last: StepMetrics | None
    rows: Mapping[str, int]
    ranges: Ranges | None


def kept(content: Content, progress: Progress, last: StepMetrics | None, handed: Parts) -> Kept | None:
    """Return what an attempt leaves in its process; None if it cannot be moved by rows.

    Args:
        handed: Rows that leaving ranks have handed to this one.
    """
    try:
        form, _, parts = held(content)
    except NotByRows:
        return None
    both = {path: (*own, *handed.get(path, ())) for path, own in parts.items()}
    return Kept(progress, last, form, both, content if content.is_replicated else None)


def held(content: Content) -> tuple[Outline, dict[str, torch.Tensor], dict[str, tuple[Part, ...]]]:
    """Return the form of a state, its tensors, and this rank's part of each, by path.

    Raises:
        NotByRows: A tensor is divided in another way.
    """
    form, tensors = outline(content.live_state())
    return form, tensors, {path: (rows.part_of(tensor),) for path, tensor in tensors.items()}


def hand_over(content: Content, *, leaves: bool) -> Parts:
    """Give the rows that only leaving ranks have to those that remain; return what this rank received. Collective.

    Those that remain get what they will need if they divide the rows in their order.

    Raises:
        NotHealed: A tensor is not divided by rows, or what arrived is not what was sent.
    """
    try:
        form, tensors, parts = held(content)
    except NotByRows as error:  # on all ranks: they divide it alike
        raise NotHealed(str(error)) from error
    answers = process_group.gather((leaves, rows.ranges_of(parts)))
    remaining = [rank for rank, (is_leaving, _) in enumerate(answers) if not is_leaving]
    leaving = {rank: ranges for rank, (is_leaving, ranges) in enumerate(answers) if is_leaving}
    lacking: list[dict[str, list[tuple[int, int]]]] = [{} for _ in answers]
    for path, tensor in tensors.items() if remaining and leaving else ():
        total = rows.num_rows(tensor.shape)
        there = rows.held_by((answers[rank][1] for rank in remaining), path)
        for place, rank in enumerate(remaining):
            wanted = rows.chunk(total, place, len(remaining))
            lacking[rank][path] = rows.without([wanted], there)
    plan = rows.moves(lacking, leaving, _row_bytes(form))
    received: dict[str, list[Part]] = {}
    for move in plan:
        if move.target == process_group.rank():
            like = parts[move.path][0].rows
            room = like.new_empty((move.stop - move.start, *like.shape[1:]))
            received.setdefault(move.path, []).append(Part(move.start, room))
    rows.exchange(plan, parts, received)
    _compare(plan, parts, received)
    return received


def take_over(content: Content) -> Taken | None:
    """Bring all ranks to the newest state that they have kept together; None if none has one. Collective.

    Raises:
        NotHealed: They lack some of it, or their checksums differ afterwards.
    """
    states = [each for each in in_place.kept() if _fits(each.form, content)]
    answers = process_group.gather((in_place.listening_ports(), [_offer(each) for each in states]))
    in_place.know_ports([ports for ports, _ in answers])
    if not any(offered for _, offered in answers):
        return None
    newest, offers = _newest([offered for _, offered in answers])
    holders = sorted(offers)
    # The last one, as in `_newest`: of one step, a copy has more rows than the state itself.
    own = next((each for each in reversed(states) if each.progress == newest), None)
    form = _form_of(own, holders[0])
    adopted = own.content if own and content.is_replicated else None
    lacks: Ranges | None = {}
    if own and adopted:
        state, parts = adopted.live_state(), own.parts
    else:
        state, parts, lacks = _room(content, form, own)
    lacking = process_group.gather(lacks)
    if any(each is None for each in lacking):
        raise NotHealed("a tensor of the state is not divided by rows")
    sent = own.parts if own else {}
    having = {rank: _ranges(offer) for rank, offer in offers.items()}
    sizes = _row_bytes(form)
    plan = rows.moves([each or {} for each in lacking], having, sizes)
    rows.exchange(plan, sent, parts)
    if own and not adopted:
        rows.copy(own.parts, parts)
    if not (adopted and adopted.is_same(content)):
        content.take(state)
    content.optimizer.zero_grad()
    content.model.zero_grad()
    is_whole = content.is_replicated and all(offer.ranges is None for offer in offers.values())
    _compare([] if is_whole else plan, sent, parts)
    _compare_replicas(content, newest)
    randomness.reseed(process_group.rank(), newest.step)
    in_place.forget()
    receivers = {move.target for move in plan}
    num_bytes = sum((move.stop - move.start) * sizes[move.path] for move in plan)
    return Taken(newest, offers[holders[0]].last, len(holders), len(receivers), num_bytes)


def _fits(form: Outline, content: Content) -> bool:
    """Return whether a state has the parts of a content."""
    _, tensors = outline({"model": content.model_state()})
    own = {path: (each.shape, each.dtype) for path, each in tensors.items()}
    found = {path: each[:2] for path, each in form.tensors.items() if path.startswith("model/")}
    return (
        own == found
        and len(form.structure["groups"]) == len(content.optimizer.param_groups)
        and ("scheduler" in form.structure) == (content.scheduler is not None)
        and list(form.structure.get("content", ())) == list(content.user_content)
    )


def _offer(state: Kept) -> _Offer:
    total = {path: rows.num_rows(shape) for path, (shape, _, _) in state.form.tensors.items()}
    ranges = rows.ranges_of(state.parts)
    is_whole = _have_all([ranges], total) and state.content is not None
    return _Offer(state.progress, state.last, total, None if is_whole else ranges)


def _ranges(offer: _Offer) -> Ranges:
    return {path: [(0, count)] for path, count in offer.rows.items()} if offer.ranges is None else offer.ranges


def _have_all(ranges: Sequence[Ranges], total: Mapping[str, int]) -> bool:
    """Return whether ranks together have every row of the tensors, of which `total` is the number."""
    return all(rows.held_by(ranges, path) == rows.united([(0, count)]) for path, count in total.items())


def _newest(offers: Sequence[Sequence[_Offer]]) -> tuple[Progress, dict[int, _Offer]]:
    """Return the newest state of which the ranks have every row, and what each of those that have rows offers of it.

    Raises:
        NotHealed: There is none.
    """
    found = {each.progress for of_rank in offers for each in of_rank}
    for progress in sorted(found, key=lambda each: (each.step, each.cursor), reverse=True):
        there = {rank: each for rank, of_rank in enumerate(offers) for each in of_rank if each.progress == progress}
        if _have_all([_ranges(each) for each in there.values()], next(iter(there.values())).rows):
            return progress, there
    raise NotHealed("rows of the state are lost with the ranks that had them")


def _form_of(own: Kept | None, first: int) -> Outline:
    shared: list[Any] = [own.form if own else None]
    if dist.is_initialized():
        dist.broadcast_object_list(shared, src=first)
    form: Outline = shared[0]
    if any(process_group.gather(own is not None and own.form.tensors != form.tensors)):
        raise NotHealed("the ranks that have the newest state have different parts of it")
    return form


def _room(content: Content, form: Outline, own: Kept | None) -> tuple[Any, Parts, Ranges | None]:
    """Return the state to continue with, its tensors on this rank, and the rows of these that it lacks.

    The last is None if the tensors are not divided by rows.
    """
    try:
        state, tensors = content.room(form)
        parts = {path: (rows.part_of(tensor),) for path, tensor in tensors.items()}
    except NotByRows:
        return {}, {}, None
    has = rows.ranges_of(own.parts) if own else {}
    wants = rows.ranges_of(parts)
    return state, parts, {path: rows.without(wants[path], has.get(path, ())) for path in wants}


def _row_bytes(form: Outline) -> dict[str, int]:
    return {path: shape[1:].numel() * dtype.itemsize for path, (shape, dtype, _) in form.tensors.items()}


def _compare(plan: Sequence[rows.Move], sent: Parts, received: Parts) -> None:
    """Compare the checksums of what was sent and received. Collective.

    Raises:
        NotHealed: They differ.
    """
    if not plan:
        return
    answers = process_group.gather(rows.checksums(plan, sent, received))
    of_sources, of_targets = [iter(each) for each, _ in answers], [iter(each) for _, each in answers]
    pairs = [(next(of_sources[move.source]), next(of_targets[move.target])) for move in plan]
    differing = [move for move, (one, two) in zip(plan, pairs, strict=True) if one != two]
    if differing:
        raise NotHealed(f"what rank {differing[0].target} received of {differing[0].path} is not what was sent")


def _compare_replicas(content: Content, progress: Progress) -> None:
    """Compare the checksums of ranks that have the same rows. Collective.

    Raises:
        NotHealed: They differ.
    """
    own = [(path, part) for path, part in _trained(content)]
    place = [(path, part.start, len(part.rows)) for path, part in own]
    schedule = pickle.dumps(content.scheduler.state_dict()) if content.scheduler else b""
    digest = checksum(b"".join([*(checksum(rows.as_bytes(part.rows)) for _, part in own), schedule]))
    answers = process_group.gather((checksum(repr(place).encode()), digest))
    if len(set(answers)) > len({where for where, _ in answers}):
        digests = ", ".join(each.hex()[:8] for _, each in answers)
        raise NotHealed(f"the ranks hold different states of step {progress.step} ({digests})")


def _trained(content: Content) -> Iterator[tuple[str, Part]]:
    """Yield what this rank has of trained parameters and of the optimizer's state, in the order of parameters."""
    for name, parameter in content.parameters():
        if not parameter.requires_grad:
            continue
        yield name, rows.part_of(parameter)
        state = content.optimizer.state.get(parameter, {})
        for key in sorted(state):
            if isinstance(state[key], torch.Tensor):
                yield f"{name}/{key}", rows.part_of(state[key])
