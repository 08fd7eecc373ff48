"""A rehearsal as text: its cluster, what the resource check found, and why it ends there. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from launcher.common.texts import counted
from launcher.model.ray_job import CPU, GPU, Pool, RayJob, ResourceCheck

GOOD, BAD, NOTE = "ok", "fails", "note"
"""First words of a finding."""


class Finding(NamedTuple):
    """One line of a check's result."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind:5} {self.text}"


class Result(NamedTuple):
    """What Ray did with a check."""

    is_driver_placed: bool
    available: int
    """Accelerators that its nodes offered together."""
    ready: tuple[int, ...]
    """Placement groups of each pool that became ready."""


def read_result(line: str) -> Result:
    """Return the result that the check's driver printed."""
    fields = json.loads(line)
    return Result(**{**fields, "ready": tuple(fields["ready"])})


def cluster_lines(job: RayJob) -> Iterator[str]:
    """Yield the nodes of a cluster, equal ones in one line."""
    yield f"head: {_resources(job.head)}"
    kinds = Counter(tuple(sorted(worker.items())) for worker in job.workers)
    for kind, number in kinds.items():
        yield f"{counted(number, 'worker')}: {_resources(dict(kind))}{' each' if number > 1 else ''}"
    if not job.workers:
        yield "no workers"


def findings(job: RayJob, check: ResourceCheck, result: Result) -> Iterator[Finding]:
    """Yield what the check found, in the order of the program."""
    if not result.is_driver_placed:
        yield Finding(BAD, f"no node has the {counted(check.driver_cpus, 'CPU')} of the program's main loop")
    needed, offered = check.accelerators, result.available
    sizes = " + ".join(pool.size for pool in check.pools)
    total = f"{counted(needed, GPU)} needed ({sizes}), {offered} offered by {_offer(job)}"
    if offered < needed:
        yield Finding(BAD, f"{total}: the program stops with an error")
    else:
        yield Finding(GOOD, total)
    end = "" if offered < needed else ": the program waits for ever"
    for pool, ready in zip(check.pools, result.ready, strict=True):
        yield _placed(job, check, pool, ready, end)
    if offered > needed:
        yield Finding(NOTE, f"{counted(offered - needed, GPU)} of the cluster would be idle")


def _placed(job: RayJob, check: ResourceCheck, pool: Pool, ready: int, end: str) -> Finding:
    """Return whether the placement groups of a pool became ready, and else which resource of a node is missing."""
    bundle = ", ".join(f"{name}: {amount}" for name, amount in pool.bundle.items())
    groups = f"{pool.name}: {ready} of {counted(pool.nodes, 'placement group')} ready"
    text = f"{groups}, each {pool.processes} × {{{bundle}}} on one node ({check.strategy})"
    if ready == pool.nodes:
        return Finding(GOOD, text)
    fitting = sum(not _short(node, pool) for node in job.nodes)
    taken = ", which the program has filled before" if fitting >= pool.nodes else ""
    reason = f"{counted(fitting, 'node')} can hold one{taken}{_shortest(job, pool)}"
    return Finding(BAD, f"{text}; {reason}{end}")


def _shortest(job: RayJob, pool: Pool) -> str:
    """Return which resource a worker lacks that cannot hold a group; "" if each can."""
    lacking = [(_short(node, pool), node) for node in job.workers if _short(node, pool)]
    if not lacking:
        return ""
    missing, node = min(lacking, key=lambda each: len(each[0]))
    parts = (f"{node.get(name, 0)} of {pool.per_node[name]} {name}s" for name in missing)
    return f"; a worker has {' and '.join(parts)}"


def _short(node: Mapping[str, int], pool: Pool) -> list[str]:
    """Return the resources of which a node has fewer than a placement group of the pool takes."""
    return [
        name
        for name, amount in pool.per_node.items()
        if node.get(name, amount if name == CPU else 0) < amount  # an unknown number of CPUs is enough
    ]


def has_failed(found: Iterable[Finding]) -> bool:
    """Return whether a finding keeps the program from starting."""
    return any(each.kind == BAD for each in found)


def conclusion(check: ResourceCheck, found: Iterable[Finding], job: RayJob) -> Iterator[str]:
    """Yield why the rehearsal ends here, and what that proves; or where the two numbers that disagree are."""
    if has_failed(found):
        sizes = " and ".join(pool.size for pool in check.pools)
        yield f"the job would not start: the program reserves by {sizes}, the cluster is that of {job.source}"
        needs = " and ".join(counted(amount, name) for name, amount in check.pools[0].per_node.items())
        number = counted(check.pools[0].nodes, "node")
        yield f"remedy: recipes.trainer.num_nodes and devices set both sides; {number} must have {needs} free"
        return
    yield f"the rehearsal ends here, as planned: next, {check.next_step}"
    yield (
        "proven: the cluster has the nodes, accelerators and CPUs that the program reserves; "
        "not proven: that model, data and batches fit the accelerators"
    )
    yield f"the check is the launcher's own, after {check.source}"


def _offer(job: RayJob) -> str:
    """Return the nodes that have accelerators."""
    kinds = Counter(node[GPU] for node in job.nodes if node.get(GPU))
    return " and ".join(f"{counted(number, 'node')} with {each}" for each, number in kinds.items()) or "no node"


def _resources(node: Mapping[str, int]) -> str:
    cpus = counted(node[CPU], "CPU") if CPU in node else "an unknown number of CPUs, taken as enough"
    return f"{cpus}, {counted(node.get(GPU, 0), GPU)}"
