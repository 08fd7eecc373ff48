"""Commands about a Kubernetes cluster: its capacity, its jobs, and adopting one of them."""

import dataclasses
import json
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import AsJson
from launcher.cli.commands.pod_table import age
from launcher.common.problems import fail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.backends.kubernetes.capacity import Capacity, Node
    from launcher.backends.kubernetes.connection import Connection
    from launcher.backends.kubernetes.inventory import ClusterJob
    from launcher.jobs.registry import JobRecord

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
    from launcher.backends.kubernetes import capacity
    from launcher.common import console

    with _connected(context) as connection:
        found = capacity.read(connection, _namespace(connection, namespace))
    if as_json:
        print(json.dumps(_capacity_json(found), indent=2))
    else:
        _show_nodes(found)
        _show_queues(found)
    for notice in found.notices:
        console.show_notice(notice, stderr=True)


def cluster_jobs(context: str | None, namespace: str | None, *, is_everywhere: bool, as_json: bool) -> None:
    """Print the training jobs of a cluster, for `recipes jobs --cluster`."""
    from launcher.backends.kubernetes import inventory
    from launcher.common import console

    if is_everywhere and namespace:
        raise fail("E801", "recipes jobs", "--all-namespaces excludes --namespace", value=namespace)
    with _connected(context) as connection:
        where = None if is_everywhere else _namespace(connection, namespace)
        found = inventory.jobs(connection, where)
        if not found and where:
            inventory.require_namespace(connection, where)
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
    from launcher.backends.kubernetes import api_objects, inventory, server
    from launcher.bundle import store
    from launcher.cli import terminal
    from launcher.common import console
    from launcher.jobs import adopted
    from launcher.model import backend_registry

    if kind not in (None, *api_objects.JOB_KINDS):
        raise fail("E386", "--kind", "is not a kind of job", value=kind, allowed=", ".join(api_objects.JOB_KINDS))
    inventory.check_job_name(job)
    if name:
        inventory.check_name(name, "--as")
    with _connected(context) as connection:
        found = inventory.find(connection, _namespace(connection, namespace), job, kind)
        outline, cluster_id = inventory.outline(found), str(server.identified(connection))
    folder = Path(store.RESULTS, name or job)
    record = adopted.write(folder, _record(connection, found, folder, cluster_id), outline)
    console.say(f"adopted {terminal.native_name(record.handle)} as {folder}", "bold")
    terminal.show_status(backend_registry.load_backend(record.handle.backend).status(record.handle))


def _record(connection: "Connection", found: Any, folder: Path, cluster_id: str) -> "JobRecord":
    """Return the record of a job from its cluster; values that only its bundle has stay empty."""
    from launcher.backends.kubernetes import api_objects, lenient
    from launcher.backends.kubernetes.description import DESCRIPTION
    from launcher.jobs.registry import JobRecord
    from launcher.model.job_spec import JobHandle

    metadata = found["metadata"]
    annotations = metadata.get("annotations") or {}
    own = (metadata["name"], found["kind"], metadata["namespace"], connection.context, metadata["uid"])
    handle = JobHandle(DESCRIPTION.name, folder.name, folder.absolute(), *own, server=cluster_id)
    created = datetime.fromisoformat(metadata["creationTimestamp"]).astimezone(UTC).isoformat(timespec="seconds")
    user = lenient.text(annotations.get(api_objects.USER)) or "unknown"
    return JobRecord(handle, annotations.get(api_objects.DIGEST, ""), created, user)


@contextmanager
def _connected(context: str | None) -> "Iterator[Connection]":
    """Yield a connection; a request that fails within the block raises a Problem.

    Raises:
        ProblemsFound: No such cluster exists, or it refuses.
    """
    from launcher.backends.kubernetes.api_errors import api_errors_as_problems
    from launcher.backends.kubernetes.connection import connect
    from launcher.common import console

    connection = connect(context)
    with api_errors_as_problems("--namespace"), console.while_waiting(f"reading from {connection.host} …"):
        yield connection


def _namespace(connection: "Connection", namespace: str | None) -> str:
    from launcher.backends.kubernetes import inventory

    if namespace is not None:
        inventory.check_name(namespace, "--namespace")
        return namespace
    return inventory.default_namespace(connection.context)


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
