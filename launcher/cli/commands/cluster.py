"""Commands about a cluster: its capacity, its jobs, and adopting one of them."""

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import AsJson
from launcher.cli.commands.pod_table import age
from launcher.common.problems import fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.model.cluster_view import Capacity, ClusterJob, Node

_JOBS = ("job", "by", "state", "nodes", "age", "message")
_NODES = ("node", "instance", "state", "free", "accelerators", "health")
_QUOTAS = ("queue", "flavor", "resource", "used", "quota", "borrowed")
_WAITING = ("queue", "place", "job", "namespace", "priority", "age", "why")

Context = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Context of the kubeconfig; default: the current one."),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="Default: the context's own."),
]


def cluster(context: Context = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Show a cluster's capacity. Nodes, free accelerators, quotas, and pending workloads."""
    from launcher.common import console
    from launcher.model.backend_registry import clusters

    found = clusters().connect(context).capacity(namespace)
    if as_json:
        print(json.dumps(_capacity_json(found), indent=2))
    else:
        _show_nodes(found)
        _show_queues(found)
    for notice in found.notices:
        console.show_notice(notice, stderr=True)


def cluster_jobs(context: str | None, namespace: str | None, *, is_everywhere: bool, as_json: bool) -> None:
    """Print the training jobs of a cluster, for `recipes jobs --cluster`."""
    from launcher.common import console
    from launcher.model.backend_registry import clusters

    if is_everywhere and namespace:
        raise fail("E801", "recipes jobs", "--all-namespaces excludes --namespace", value=namespace)
    where, found = clusters().connect(context).jobs(namespace, is_everywhere=is_everywhere)
    if as_json:
        print(json.dumps([_job_json(job) for job in found], indent=2))
    elif not found:
        console.say(f"no training jobs in {where or 'any namespace'}", "dim", stderr=True)
    else:
        _show_jobs(found, has_namespaces=is_everywhere)


def adopt(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name on the cluster.")],
    context: Context = None,
    namespace: Namespace = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="HyperPodPyTorchJob or PyTorchJob, if both exist.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Its name under results/; default: its own.")
    ] = None,
) -> None:
    """Follow a job that was launched elsewhere. It gets a record under results/, but no bundle."""
    from launcher.bundle import store
    from launcher.cli import terminal
    from launcher.common import console
    from launcher.jobs import registry
    from launcher.jobs.registry import JobRecord
    from launcher.model.backend_registry import clusters, load_backend

    clusters().check_adoption(job, kind, name)
    folder = Path(store.RESULTS, name or job)
    found = clusters().connect(context).find_job(job, kind, namespace, folder)
    record = JobRecord(found.handle, found.digest, found.created, found.user)
    record = registry.adopt(folder, record, found.outline)
    console.say(f"adopted {terminal.native_name(record.handle)} as {folder}", "bold")
    terminal.show_status(load_backend(record.handle.backend).status(record.handle))


def _show_jobs(found: tuple["ClusterJob", ...], *, has_namespaces: bool) -> None:
    """Print a table of jobs, with their kinds if they differ."""
    from launcher.common import console

    has_kinds = len({job.kind for job in found}) > 1
    head: tuple[str, ...] = _JOBS
    rows = [_job_cells(job) for job in found]
    if has_kinds:
        head = (head[0], "kind", *head[1:])
        rows = [(row[0], job.kind, *row[1:]) for row, job in zip(rows, found, strict=True)]
    if has_namespaces:
        head, rows = ("namespace", *head), [(job.namespace, *row) for row, job in zip(rows, found, strict=True)]
    console.show_table(head, rows)


def _job_cells(job: "ClusterJob") -> tuple[str, ...]:
    state = job.state.value if job.state else "unknown"
    nodes = "?" if job.nodes is None else str(job.nodes or "-")
    return job.name, job.user or "-", state, nodes, age(job.created_s), job.message.partition("\n")[0]


def _job_json(job: "ClusterJob") -> dict[str, Any]:
    fields = dataclasses.asdict(job)
    return fields | {"created": _time(fields.pop("created_s"))}


def _capacity_json(found: "Capacity") -> dict[str, Any]:
    fields = dataclasses.asdict(found)
    for waiting in fields["waiting"] or ():
        waiting["created"] = _time(waiting.pop("created_s"))
    return fields


def _time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")


def _show_nodes(found: "Capacity") -> None:
    from launcher.common import console
    from launcher.rules import hardware

    if found.nodes is None:
        return
    console.show_table(_NODES, [_node_cells(node) for node in found.nodes])
    accelerated = [node for node in found.nodes if node.resource]
    by_instance: dict[str, list[Node]] = {}
    for node in accelerated:
        by_instance.setdefault(node.instance or "-", []).append(node)
    for instance, nodes in sorted(by_instance.items()):
        console.say(_total(instance, nodes))
    for notice in hardware.unknown_nodes(node.instance for node in accelerated):
        console.show_notice(notice, stderr=True)


def _total(instance: str, nodes: "Sequence[Node]") -> str:
    """Return the line that summarizes the nodes of one instance type."""
    usable = [node for node in nodes if node.state == "Ready"]
    free = "?" if any(node.free is None for node in usable) else sum(node.free or 0 for node in usable)
    total = sum(node.accelerators for node in usable)
    ready = f"{len(usable)} of {len(nodes)} node{'s' if len(nodes) > 1 else ''} ready"
    return f"total  {instance}  {free} of {total} accelerators free; {ready}"


def _node_cells(node: "Node") -> tuple[str, ...]:
    free = "?" if node.free is None else str(node.free)
    has = f"{node.accelerators} {node.resource}" if node.resource else "-"
    health = ", ".join(f"{name} {value}" for name, value in node.health.items())
    return node.name, node.instance or "-", node.state, free if node.resource else "-", has, health


def _show_queues(found: "Capacity") -> None:
    from launcher.common import console

    if not found.has_kueue:
        console.say("\nthis cluster has no Kueue, so no queues and no quotas of queues")
        return
    if found.quotas:
        quotas = [(q.queue, q.flavor, q.resource, q.used, q.nominal or "-", q.borrowed) for q in found.quotas]
        console.say("")
        console.show_table(_QUOTAS, quotas)
    if found.waiting:
        waiting = [
            (w.queue, str(w.position), w.job, w.namespace, str(w.priority), age(w.created_s), w.why)
            for w in found.waiting
        ]
        console.say("")
        console.show_table(_WAITING, waiting)
    elif found.waiting is not None:
        console.say("\nno workload is waiting for quota")
