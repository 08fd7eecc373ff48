"""The limits of partitions, QOS and accounts as one table, compared with what a job requests.

Slurm accepts a job that is beyond one of them, and never starts it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launcher.backends.slurm import accounts, programs
from launcher.backends.slurm.accounts import MINUTES, UNSURE, Rights
from launcher.backends.slurm.demand import Demand
from launcher.backends.slurm.place import CONFIG, RECENT, Place, configured, is_accounted, records
from launcher.backends.slurm.sbatch_options import amounts, integer, minutes, names_memory
from launcher.common.problems import Problem

_PARTITIONS = ("scontrol", "--oneliner", "show", "partition")
_NODES = ("scontrol", "--oneliner", "show", "node")
_CLOSED = {"DOWN": "is down", "DRAIN": "is drained", "INACTIVE": "is inactive"}
"""States of a partition that starts no jobs. Source: scontrol(1), State."""
_OF_A_NODE = ("MaxCPUsPerNode", "MaxCPUsPerSocket", "MaxMemPerNode", "MaxMemPerCPU")
"""Limits by which some nodes of a partition may never run a job. Source: slurm.conf(5)."""
_ENFORCED = ("limits", "safe")
"""Values of AccountingStorageEnforce that enforce limits of accounts. Source: slurm.conf(5)."""
_OF_RESOURCES = ("maxtresperjob", "maxtresperuser", "maxtresperaccount", "grptres", "maxtrespernode")
_JOBS = (("maxjobsperuser", "maxjobs"), ("maxjobsperaccount",), ("grpjobs",))
"""Numbers of jobs that run; of the fields of a group, the first one that is set counts."""
_TITLES = {"cpu": ("CPUs", "CPU-minutes"), "mem": ("MiB of memory", "MiB-minutes")}
"""What an amount of a resource is called, and what its product with minutes is called."""
NEVER = "the job would stay pending for ever"
_NONE = ("", "UNLIMITED", "NONE", "N/A")
_DEFAULT_MEMORY = ("DefMemPerCPU", "DefMemPerNode")
"""Defaults of cluster and partitions. Without them a job gets all memory of its nodes. Source: slurm.conf(5)."""
_OF_GPUS = re.compile(r"DefMemPerGPU=0*[1-9]", re.IGNORECASE)
"""The same among JobDefaults, which has defaults of other resources too."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A row of the table.

    Args:
        whose: What has the limit, such as "partition main".
        resource: time, in minutes; job; or the name of a resource in limits, such as node, cpu, mem or gres/gpu.
        bound: What it allows, memory in MiB.
        shown: The same as text, where a value of the user's is compared with it; "" for what follows from values.
        per: Whether the resource is that of the complete job, of each node, or multiplied by the time limit.
        is_of_largest: Whether the job's largest size is compared, not its smallest.
        is_least: Whether a job has to request that much.
    """

    whose: str
    resource: str
    bound: float
    shown: str = ""
    per: Literal["job", "node", "minute"] = "job"
    is_of_largest: bool = False
    is_least: bool = False


def problems(config: Mapping[str, Any], demand: Demand, place: Place) -> Iterator[Problem]:
    """Yield what the cluster never allows (E446). Of several partitions one has to allow the job."""
    RECENT.ask_all(place, _PARTITIONS, CONFIG)
    cluster = config["cluster"]
    chosen = _chosen(cluster, place)
    known = accounts.known(cluster, place) if (are_kept := is_accounted(place)) else None
    found = []
    for partition in chosen:
        rights = known.of_partition(partition) if known else UNSURE if are_kept else None
        found.append([*_barred(rights, partition, cluster), *_exceeded(demand, partition, rights, place)])
    yield from min(found, key=len, default=())


def limit_nodes(config: Mapping[str, Any], place: Place) -> bool:
    """Return whether a limit of single nodes may keep a job out of a partition, which Slurm may notice too late."""
    of_all = {name: configured(name, place).upper() for name in _OF_A_NODE}
    every = (*_chosen(config["cluster"], place), of_all)
    return any(each.get(name, "") not in _NONE for each in every for name in _OF_A_NODE)


def _chosen(cluster: Mapping[str, Any], place: Place) -> list[Mapping[str, str]]:
    """Return the partitions that a job may start in; none if a reservation, which may have its own, decides that."""
    if cluster.get("reservation") and not cluster.get("partition"):
        return []
    answer = RECENT.ask(place, *_PARTITIONS)
    if answer.code:
        raise programs.unanswered("scontrol", answer)
    names = (cluster.get("partition") or "").split(",")
    return [
        each
        for each in records(answer.out)
        if each.get("PartitionName") in names or (not cluster.get("partition") and each.get("Default") == "YES")
    ]


def nodes_of(cluster: Mapping[str, Any], place: Place) -> list[Mapping[str, str]]:
    """Return the nodes of the partitions that a job may start in, each once, by Slurm's names of their fields."""
    return _nodes_of(_chosen(cluster, place), place)


def _nodes_of(partitions: Iterable[Mapping[str, str]], place: Place) -> list[Mapping[str, str]]:
    names = {each["PartitionName"] for each in partitions}
    known = records(RECENT.ask(place, *_NODES).out)
    return [node for node in known if not names.isdisjoint(node.get("Partitions", "").split(","))]


def _nodes(partition: Mapping[str, str], place: Place) -> list[Mapping[str, float]]:
    """Return what each node of a partition has for jobs."""
    own = _nodes_of((partition,), place)
    found = [(amounts(node.get("CfgTRES", "")), integer(node.get("MemSpecLimit")) or 0) for node in own]
    return [{**each, "mem": each.get("mem", 0) - kept} for each, kept in found]


def _barred(rights: Rights | None, partition: Mapping[str, str], cluster: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield why a partition starts no job, or none of this account or QOS."""
    name, state = partition["PartitionName"], partition.get("State", "UP")
    if state in _CLOSED:
        remedy = "choose another one with cluster.partition, or wait: sinfo --summarize"
        yield Problem("E446", "cluster.partition", f"partition {name} {_CLOSED[state]}", value=name, remedy=remedy)
    account, qos = cluster.get("account"), cluster.get("qos")
    if rights and rights is not UNSURE:
        account, qos = rights.accounts[0], rights.qos
    for key, value, title in (("account", account or "", "Accounts"), ("qos", qos or "", "Qos")):
        if "," in value or (rights is UNSURE and not value):
            continue
        allowed, denied = partition.get(f"Allow{title}", "ALL"), partition.get(f"Deny{title}", "")
        # Newer versions of Slurm let accounts below the named ones in.
        names = {value.lower(), *(rights.accounts if rights and key == "account" else ())}
        is_allowed = allowed == "ALL" or not names.isdisjoint(allowed.lower().split(","))
        is_denied = bool(value) and value.lower() in denied.lower().split(",")
        if is_denied or not is_allowed:
            message = f"partition {name} does not take this {key}; {NEVER}"
            permitted = f"not one of {denied}" if is_allowed else allowed
            yield Problem("E446", f"cluster.{key}", message, value=value or None, allowed=permitted)


def _rows(partition: Mapping[str, str], rights: Rights | None, place: Place) -> Iterator[Limit]:
    """Yield the limits of a job in a partition."""
    whose = f"partition {partition['PartitionName']}"
    waived = rights.waived if rights else frozenset()
    given = {name: value for name, value in partition.items() if name not in waived}
    counts_memory = "memory" in configured("SelectTypeParameters", place)
    if (longest := minutes(given.get("MaxTime"))) is not None:
        yield Limit(whose, "time", longest, f"at most {given['MaxTime']}")
    total, most, least = (integer(given.get(name)) for name in ("TotalNodes", "MaxNodes", "MinNodes"))
    if most is not None:
        yield Limit(whose, "node", most, f"1 to {min(most, total or most)}", is_of_largest=True)
    if total is not None:
        yield Limit(whose, "node", total, f"1 to {total}")
    if least is not None:
        yield Limit(whose, "node", least, f"at least {least}", is_of_largest=True, is_least=True)
    own = integer(partition.get("MaxMemPerNode"))
    memory = integer(configured("MaxMemPerNode", place)) if own is None else own
    if memory and counts_memory:
        yield Limit(whose if own else "the cluster", "mem", memory, f"1 to {memory}", per="node")
    if rights and any(name in configured("AccountingStorageEnforce", place) for name in _ENFORCED):
        yield from _rows_of(rights, counts_memory=counts_memory)


def _rows_of(rights: Rights, *, counts_memory: bool) -> Iterator[Limit]:
    """Yield the limits of a job's QOS and accounts. Source: Slurm, Resource Limits: Hierarchy."""
    for fields in _JOBS:
        numbers = [(whose, row[field]) for whose, row in rights.places for field in fields if row.get(field)]
        yield from (Limit(whose, "job", float(number)) for whose, number in numbers[:1] if number.isdigit())
    whose, longest = rights.longest
    if bound := minutes(longest):
        yield Limit(whose, "time", bound, f"at most {longest}")
    for field in _OF_RESOURCES:
        for name, (whose, bound) in _first(rights, field).items():
            if name != "mem" or counts_memory:
                shown = f"1 to {bound:g}" if name == "node" else ""
                yield Limit(whose, name, bound, shown, per="node" if field == "maxtrespernode" else "job")
    for name, (whose, bound) in _first(rights, "mintresperjob").items():
        if name == "node":
            yield Limit(whose, name, bound, f"at least {bound:g}", is_of_largest=True, is_least=True)
    for field in MINUTES:
        yield from (Limit(whose, name, bound, per="minute") for name, (whose, bound) in _first(rights, field).items())


def _first(rights: Rights, field: str) -> dict[str, tuple[str, float]]:
    """Return the limit of each resource, with who has it. A QOS replaces the limits of accounts, which all count."""
    found: dict[str, tuple[str, float]] = {}
    for whose, row in rights.places:
        for name, limit in amounts(row.get(field, "")).items():
            is_lower = name in found and found[name][0].startswith("account") and limit < found[name][1]
            is_known = name in ("node", "cpu", "mem") or name.startswith("gres/")
            if is_known and (name not in found or is_lower):
                found[name] = (whose, limit)
    return found


def _exceeded(demand: Demand, partition: Mapping[str, str], rights: Rights | None, place: Place) -> Iterator[Problem]:
    """Yield the limits that a job exceeds in a partition; EnforcePartLimits would make sbatch refuse it."""
    wanted = minutes(partition.get("DefaultTime")) if demand.minutes is None else demand.minutes
    longest = wanted or (minutes(rights.longest[1]) if rights else None) or minutes(partition.get("MaxTime"))
    seen = set[object]()
    for limit in _rows(partition, rights, place):
        if limit.resource == "job":
            amount = 1.0
        elif limit.resource == "time":
            amount = wanted or 0.0
        elif limit.is_of_largest:
            amount = demand.most_nodes
        else:
            nodes = () if limit.resource == "node" else _nodes(partition, place)
            amount = demand.least(limit.resource, nodes, 1 if limit.per == "node" else demand.nodes)
        compared = amount * (longest or float("inf")) if limit.per == "minute" and amount else amount
        key = (limit.whose, limit.resource, limit.is_least) if limit.shown else limit
        if key not in seen and (compared < limit.bound if limit.is_least else compared > limit.bound):
            seen.add(key)  # a partition may have fewer nodes than it allows
            yield _beyond(limit, demand, partition, amount)


def _beyond(limit: Limit, demand: Demand, partition: Mapping[str, str], amount: float) -> Problem:
    """Return the Problem of a job that requests an amount beyond a limit: Slurm accepts it, and never starts it."""
    title, product = _TITLES.get(limit.resource, (limit.resource, f"{limit.resource}-minutes"))
    if limit.resource == "job":
        kind, _, name = limit.whose.partition(" ")
        message = f"lets no job run; {NEVER}"
        return Problem("E446", f"cluster.{kind.lower()}", message, value=name, remedy="choose another one")
    if limit.per == "minute":
        message = f"with {amount:.0f} {title}, it is more than {limit.whose} allows; {NEVER}"
        allowed = f"at most {limit.bound // amount:.0f} min, since {limit.bound:.0f} {product} are allowed"
        return Problem("E446", "cluster.time", message, value=demand.time, allowed=allowed)
    if limit.resource == "time" and demand.minutes is None:
        message = f"the default of partition {partition['PartitionName']} is more than {limit.whose} allows; {NEVER}"
        return Problem("E446", "cluster.time", message, value=partition["DefaultTime"], allowed=limit.shown)
    key = {"time": "cluster.time", "mem": demand.memory_key}.get(limit.resource, demand.nodes_key)
    nodes = demand.most_nodes if limit.is_of_largest else demand.nodes
    value = {"time": demand.time, "mem": int(demand.memory_mib)}.get(limit.resource, nodes)
    if limit.shown:
        message = f"is {'less' if limit.is_least else 'more'} than {limit.whose} allows; {NEVER}"
        return Problem("E446", key, message, value=value, allowed=limit.shown)
    message = f"the job takes at least {amount:.0f} {title}, more than {limit.whose} allows; {NEVER}"
    remedy = "request fewer nodes"
    if demand.nodes == demand.most_nodes:  # an elastic job has whole nodes
        remedy += ", or part of their resources with cluster.exclusive=false and cluster.mem"
    return Problem("E446", key, message, value=value, allowed=f"at most {limit.bound:.0f} {title}", remedy=remedy)


def share_of_memory(cluster: Mapping[str, Any], place: Place) -> tuple[str, ...]:
    """Return the option with which a job on shared nodes gets its CPUs' share of their memory.

    There is none if the job says how much it gets, if memory is not counted, or if the cluster has a default.
    """
    if cluster.get("exclusive") is not False or names_memory(cluster):
        return ()
    if "memory" not in configured("SelectTypeParameters", place):
        return ()
    chosen = _chosen(cluster, place)
    of_all = {name: configured(name, place).upper() for name in (*_DEFAULT_MEMORY, "JobDefaults")}
    for each in (of_all, *chosen):
        has_default = any(each.get(name, "") not in (*_NONE, "0") for name in _DEFAULT_MEMORY)
        if has_default or _OF_GPUS.search(each.get("JobDefaults", "")):
            return ()
    shares = [node["mem"] // node["cpu"] for each in chosen for node in _nodes(each, place) if node.get("cpu")]
    return (f"--mem-per-cpu={min(shares):.0f}",) if shares and min(shares) >= 1 else ()
