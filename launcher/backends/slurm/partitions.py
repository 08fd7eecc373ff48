"""Which partitions a job could start in. Slurm accepts a job that none of them ever starts."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from launcher.backends.slurm import accounts, programs
from launcher.backends.slurm.accounts import UNSURE, Rights
from launcher.backends.slurm.demand import Demand
from launcher.backends.slurm.limits import NEVER, amounts, beyond, integer, minutes
from launcher.backends.slurm.place import Place
from launcher.backends.slurm.recent import CONFIG, RECENT, configured, records
from launcher.backends.slurm.sbatch_options import names_memory
from launcher.common.problems import Problem

_PARTITIONS = ("scontrol", "--oneliner", "show", "partition")
_NODES = ("scontrol", "--oneliner", "show", "node")
_CLOSED = {"DOWN": "is down", "DRAIN": "is drained", "INACTIVE": "is inactive"}
"""States of a partition that starts no jobs. Source: scontrol(1), State."""
_OF_A_NODE = ("MaxCPUsPerNode", "MaxCPUsPerSocket", "MaxMemPerNode", "MaxMemPerCPU")
"""Limits by which some nodes of a partition may never run a job. Source: slurm.conf(5)."""
_NONE = ("", "UNLIMITED", "NONE", "N/A")
_DEFAULT_MEMORY = ("DefMemPerCPU", "DefMemPerNode")
"""Defaults of cluster and partitions. Without them a job gets all memory of its nodes. Source: slurm.conf(5)."""
_OF_GPUS = re.compile(r"DefMemPerGPU=0*[1-9]", re.IGNORECASE)
"""The same among JobDefaults, which has defaults of other resources too."""


def problems(config: Mapping[str, Any], demand: Demand, place: Place) -> Iterator[Problem]:
    """Yield what the cluster never allows. Of several partitions one has to allow the job.

    Args:
        config: The composed configuration.
        demand: What the job requests.
        place: Where it would be submitted.

    Raises:
        ProblemsFound: Slurm does not answer (E447).
    """
    RECENT.ask_all(place, _PARTITIONS, CONFIG)
    cluster = config["cluster"]
    chosen = _chosen(cluster, place)
    known = accounts.known(cluster, place) if (are_kept := accounts.are_kept(place)) else None
    found = []
    for partition in chosen:
        rights = known.of_partition(partition) if known else UNSURE if are_kept else None
        each = [*_barred(rights, partition, cluster), *_over_partition(demand, partition, rights, place)]
        if rights:
            each += accounts.problems(demand, rights, partition, partial(_nodes, partition, place), place)
        found.append(each)
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


def _nodes(partition: Mapping[str, str], place: Place) -> list[Mapping[str, float]]:
    """Return what each node of a partition has for jobs."""
    known = records(RECENT.ask(place, *_NODES).out)
    own = [node for node in known if partition["PartitionName"] in node.get("Partitions", "").split(",")]
    return [_for_jobs(node) for node in own]


def _for_jobs(node: Mapping[str, str]) -> Mapping[str, float]:
    found = amounts(node.get("CfgTRES", ""))
    return {**found, "mem": found.get("mem", 0) - (integer(node, "MemSpecLimit") or 0)}


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
        if not is_allowed or value.lower() in denied.lower().split(",") * bool(value):
            message = f"partition {name} does not take this {key}; {NEVER}"
            permitted = f"not one of {denied}" if is_allowed else allowed
            yield Problem("E446", f"cluster.{key}", message, value=value or None, allowed=permitted)


def _over_partition(
    demand: Demand, partition: Mapping[str, str], rights: Rights | None, place: Place
) -> Iterator[Problem]:
    """Yield what is beyond the limits of a partition; EnforcePartLimits would make sbatch refuse it."""
    whose = f"partition {partition['PartitionName']}"
    waived = rights.waived if rights else frozenset()
    longest = minutes(partition.get("MaxTime"))
    if "MaxTime" not in waived and longest is not None and (demand.minutes or 0) > longest:
        yield beyond("cluster.time", whose, demand.time, f"at most {partition['MaxTime']}")
    total = integer(partition, "TotalNodes")
    most = None if "MaxNodes" in waived else integer(partition, "MaxNodes")
    least = None if "MinNodes" in waived else integer(partition, "MinNodes")
    if most is not None and demand.most_nodes > most:
        yield beyond(demand.nodes_key, whose, demand.most_nodes, f"1 to {min(most, total or most)}")
    elif total is not None and demand.nodes > total:
        yield beyond(demand.nodes_key, whose, demand.nodes, f"1 to {total}")
    if least is not None and demand.most_nodes < least:
        yield beyond(demand.nodes_key, whose, demand.most_nodes, f"at least {least}", "less")
    yield from _over_memory(demand, partition, place)


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


def _over_memory(demand: Demand, partition: Mapping[str, str], place: Place) -> Iterator[Problem]:
    """Yield memory per node beyond the partition's limit or, if it has none, the cluster's."""
    own = integer(partition, "MaxMemPerNode")
    limit = integer({"": configured("MaxMemPerNode", place)}, "") if own is None else own
    if not limit or "memory" not in configured("SelectTypeParameters", place):
        return
    if demand.least("mem", _nodes(partition, place), 1) > limit:
        whose = f"partition {partition['PartitionName']}" if own else "the cluster"
        yield beyond(demand.memory_key, whose, int(demand.memory_mib), f"1 to {limit}")
