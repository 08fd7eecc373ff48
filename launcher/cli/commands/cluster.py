"""Commands about instance types, and about a cluster: its capacity, its jobs, and adopting one of them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.commands.arguments import AsJson
from launcher.cli.commands.pods import age
from launcher.cli.output import print_json, with_created
from launcher.common import console
from launcher.common.problems import fail
from launcher.common.texts import counted

if TYPE_CHECKING:
    from launcher.api.clusters import Capacity, ClusterJob, Node
    from launcher.api.instance_types import Instance, Prices

_JOBS = ("job", "by", "state", "nodes", "age", "message")
_NODES = ("node", "instance", "state", "free", "accelerators", "health")
_QUOTAS = ("queue", "flavor", "resource", "used", "quota", "borrowed")
_WAITING = ("queue", "place", "job", "namespace", "priority", "age", "why")
_TYPES = ("type", "accelerators", "GiB each", "processes", "vCPUs", "GiB", "EFA", "RDMA", "use", "USD/h", "price of")
_RDMA = {True: "yes", False: "-", None: "?"}

Context = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Context of the kubeconfig; default: the current one.")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Default: the context's own.")
]


def cluster(context: Context = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Show a cluster's capacity. Nodes, free accelerators, quotas, and pending workloads."""
    from launcher.api import clusters

    found = clusters.connect(context).capacity(namespace)
    if as_json:
        waiting = found.waiting and list(map(with_created, found.waiting))
        print_json(asdict(found) | {"waiting": waiting})
    else:
        _show_nodes(found)
        console.show_notice(*clusters.unknown_instances(found.nodes or ()), stderr=True)
        _show_queues(found)
    console.show_notice(*found.notices, stderr=True)


def cluster_jobs(context: str | None, namespace: str | None, *, is_everywhere: bool, as_json: bool) -> None:
    """Print the training jobs of a cluster, for `recipes jobs --cluster`."""
    from launcher.api import clusters

    if is_everywhere and namespace:
        raise fail("E801", "recipes jobs", "--all-namespaces excludes --namespace", value=namespace)
    where, found = clusters.connect(context).jobs(namespace, is_everywhere=is_everywhere)
    if as_json:
        print_json(list(map(with_created, found)))
    elif not found:
        console.say(f"no training jobs in {where or 'any namespace'}", "dim", stderr=True)
    else:
        _show_jobs(found, has_namespaces=is_everywhere)


def adopt(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name on the cluster.")],
    context: Context = None,
    namespace: Namespace = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="HyperPodPyTorchJob, PyTorchJob or RayJob, if several."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Its name under results/; default: its own.")
    ] = None,
) -> None:
    """Follow a job that was launched elsewhere. It gets a record under results/, but no bundle."""
    from launcher.api import clusters
    from launcher.cli import terminal

    found = clusters.adopt(job, context, namespace, kind, name)
    console.say(f"adopted {terminal.native_name(found.record.handle)} as {found.title}", "bold")
    terminal.show_status(found.status)


def _show_jobs(found: tuple["ClusterJob", ...], *, has_namespaces: bool) -> None:
    """Print a table of jobs, with their kinds if they differ."""
    has_kinds = len({job.kind for job in found}) > 1

    def row(cells: tuple[str, ...], namespace: str, kind: str) -> tuple[str, ...]:
        own = (cells[0], kind, *cells[1:]) if has_kinds else cells
        return (namespace, *own) if has_namespaces else own

    console.show_table(
        row(_JOBS, "namespace", "kind"), [row(_job_cells(job), job.namespace, job.kind) for job in found]
    )


def _job_cells(job: "ClusterJob") -> tuple[str, ...]:
    state = job.state.value if job.state else "unknown"
    nodes = "?" if job.nodes is None else str(job.nodes or "-")
    return job.name, job.user or "-", state, nodes, age(job.created_s), job.message.partition("\n")[0]


def _show_nodes(found: "Capacity") -> None:
    """Print a table of nodes, and a line for each instance type."""
    if found.nodes is None:
        return
    console.show_table(_NODES, [_node_cells(node) for node in found.nodes])
    by_instance: dict[str, list[Node]] = {}
    for node in found.nodes:
        if node.resource:
            by_instance.setdefault(node.instance or "-", []).append(node)
    for instance, nodes in sorted(by_instance.items()):
        console.say(_total(instance, nodes))


def _total(instance: str, nodes: Sequence["Node"]) -> str:
    usable = [node for node in nodes if node.state == "Ready"]
    free = "?" if any(node.free is None for node in usable) else sum(node.free or 0 for node in usable)
    total = sum(node.accelerators for node in usable)
    ready = f"{len(usable)} of {counted(len(nodes), 'node')} ready"
    return f"total  {instance}  {free} of {total} accelerators free; {ready}"


def _node_cells(node: "Node") -> tuple[str, ...]:
    free = "?" if node.free is None else str(node.free)
    has = f"{node.accelerators} {node.resource}" if node.resource else "-"
    health = ", ".join(f"{name} {value}" for name, value in node.health.items())
    return node.name, node.instance or "-", node.state, free if node.resource else "-", has, health


def _show_queues(found: "Capacity") -> None:
    if not found.has_kueue:
        console.say("\nthis cluster has no Kueue, so no queues and no quotas of queues")
        return
    if found.quotas:
        console.say("")
        console.show_table(
            _QUOTAS, [(q.queue, q.flavor, q.resource, q.used, q.nominal or "-", q.borrowed) for q in found.quotas]
        )
    if found.waiting:
        console.say("")
        console.show_table(
            _WAITING,
            [
                (w.queue, str(w.position), w.job, w.namespace, str(w.priority), age(w.created_s), w.why)
                for w in found.waiting
            ],
        )
    elif found.waiting is not None:
        console.say("\nno workload is waiting for quota")


def instances(
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", help="Parts of the name.")] = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", metavar="NAME", help="Part of its name: H100, NVIDIA, Trainium.")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option("--accelerator-memory", metavar="GIB", min=0, help="Minimum GiB of each accelerator."),
    ] = None,
    efa: Annotated[bool, typer.Option("--efa", help="With EFA.")] = False,
    use: Annotated[str | None, typer.Option("--use", metavar="USE", help="training or hyperpod.")] = None,
    most: Annotated[
        float | None, typer.Option("--max-price", metavar="USD", min=0, help="Maximum price per hour, if known.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List instance types. Shows the hardware of each, and its dated price."""
    from launcher.api import instance_types

    found, known = instance_types.selected(
        words or (), accelerator=accelerator, memory_gib=memory, has_efa=efa, use=use, max_price=most
    )
    if as_json:
        print_json([_instance_json(each, known) for each in found])
        return
    if found:
        console.show_table(_TYPES, [_instance_cells(each, known) for each in found])
    console.say(f"{len(found)} of {len(instance_types.table())} instance types", "dim", stderr=True)


def _instance_cells(each: "Instance", known: "Prices") -> tuple[str, ...]:
    count = f"{each.accelerators} x {each.accelerator}" if each.accelerators else "-"
    size = f"{each.accelerator_memory_gib:g}" if each.accelerators else ""
    numbers = (str(each.processes or "any"), str(each.vcpus), str(each.memory_gib), str(each.efa or "-"))
    name = each.name + (" (arm64)" if each.architecture == "arm64" else "")
    cells = (name, count, size, *numbers, _RDMA[each.gpudirect_rdma], "+".join(each.use))
    if each.name not in known.per_hour:
        return *cells, "?", ""
    basis = known.basis[each.name]
    return *cells, f"{known.per_hour[each.name]:,.2f}", f"{basis.kind}, {basis.region}, {basis.date}"


def _instance_json(each: "Instance", known: "Prices") -> dict[str, object]:
    price = known.per_hour.get(each.name)
    priced = None if price is None else {"usd_per_hour": price, **asdict(known.basis[each.name])}
    return each._asdict() | {"price": priced}
