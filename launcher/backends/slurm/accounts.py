"""What the limits of accounts and QOS never allow. Slurm accepts such a job, and never starts it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.backends.slurm.demand import Demand
from launcher.backends.slurm.limits import NEVER, amounts, beyond, minutes
from launcher.backends.slurm.place import Place
from launcher.backends.slurm.programs import Answer
from launcher.backends.slurm.recent import RECENT, configured
from launcher.common.problems import Problem

_ENFORCED = ("limits", "safe")
"""Values of AccountingStorageEnforce that enforce limits. Source: slurm.conf(5)."""
_MINUTES = ("maxtresminsperjob", "grptresrunmins")
_OF_BOTH = ("maxwall", "maxtresperjob", "maxtrespernode", "grptres", *_MINUTES, "grpjobs")
_USER = ("defaultaccount",)
_OWN = ("account", "partition", "defaultqos", "qos", *_OF_BOTH, "maxjobs")
_PARENT = ("account", "parentname", "grptres", "grptresrunmins", "grpjobs")
_QOS = (
    *("name", "flags", *_OF_BOTH, "mintresperjob", "maxtresperuser", "maxtresperaccount"),
    *("maxjobsperuser", "maxjobsperaccount"),
)
_WAIVED = {"PartitionMaxNodes": "MaxNodes", "PartitionMinNodes": "MinNodes", "PartitionTimeLimit": "MaxTime"}
"""Flags of a QOS whose jobs may exceed limits of partitions. Source: sacctmgr(1), QOS flags."""
_NOT_COMPARED = {
    "Relative": tuple(field for field in _QOS if "tres" in field),
    "UsageFactorSafe": _MINUTES,
}
"""Flags of a QOS, with its limits that are shares or are multiplied. Source: sacctmgr(1), QOS flags."""
_TITLES = {"cpu": ("CPUs", "CPU-minutes"), "mem": ("MiB of memory", "MiB-minutes")}
_JOBS = (("maxjobsperuser", "maxjobs"), ("maxjobsperaccount",), ("grpjobs",))
"""Numbers of jobs that run; of the fields of a group, the first one that is set counts."""
Row = Mapping[str, str]
Nodes = Callable[[], Sequence[Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class Rights:
    """The account and the QOS of a job, with what they allow.

    Args:
        accounts: The account, and those above it; empty if unknown.
        qos: The QOS; "" if unknown.
        places: The QOS, the user's association and those of the accounts above, with titles. The first one that has
            a limit counts.
        waived: Limits of partitions that the QOS waives.
    """

    accounts: tuple[str, ...]
    qos: str
    places: tuple[tuple[str, Row], ...]
    waived: frozenset[str]


UNSURE = Rights((), "", (), frozenset(_WAIVED.values()))
"""What a job may do whose account and QOS could not be found out: everything."""


@dataclass(frozen=True, slots=True)
class Known:
    """The user's associations with the account of a job.

    Args:
        qos: `cluster.qos`.
        own: The associations, one for all partitions, and those for a single one.
        above: The accounts by name.
        all_qos: The QOS by name.
    """

    qos: str
    own: tuple[Row, ...]
    above: Mapping[str, Row]
    all_qos: Mapping[str, Row]

    def of_partition(self, partition: Row) -> Rights | None:
        """Return the account and the QOS of a job in a partition; None if the user has no such account there."""
        title = partition["PartitionName"]
        fitting = sorted((each for each in self.own if each["partition"] in ("", title)), key=_is_general)
        if not fitting:
            return None
        mine = fitting[0]
        name = self.qos or mine["defaultqos"] or _only(mine["qos"]) or "normal"
        found = [
            (f"QOS {each}", self.all_qos[each]) for each in (partition.get("QoS", ""), name) if each in self.all_qos
        ]
        flags = self.all_qos.get(name, {}).get("flags", "").split(",")
        if "OverPartQOS" in flags:
            found.reverse()
        rows = (mine, *self._above(mine["account"]))
        places = (*found, *((f"account {row['account']}", row) for row in rows))
        names = tuple(row["account"] for row in rows)
        return Rights(names, name, places, frozenset(_WAIVED[flag] for flag in flags if flag in _WAIVED))

    def _above(self, account: str) -> Iterator[Row]:
        """Yield the rows of an account and of those above it."""
        while account in self.above:
            row = self.above[account]
            yield row
            account = row["parentname"]


def _is_general(association: Row) -> bool:
    return not association["partition"]


def _only(names: str) -> str:
    """Return the name of a list of one, which is then the default; "" otherwise."""
    return "" if "," in names else names


def are_kept(place: Place) -> bool:
    """Return whether the cluster has accounts."""
    return "slurmdbd" in configured("AccountingStorageType", place)


def known(cluster: Mapping[str, Any], place: Place) -> Known | None:
    """Return the user's associations, by sacctmgr; None if it does not answer, or a list of QOS is requested."""
    if "," in (cluster.get("qos") or ""):
        return None
    me, here = place.user, f"cluster={configured('ClusterName', place)}"
    answers = RECENT.ask_all(
        place,
        _words("user", (f"name={me}",), _USER),
        _words("associations", (f"user={me}", here), _OWN),
        _words("associations", ("user=", here), _PARENT),
        _words("qos", (), _QOS),
    )
    if any(answer.code for answer in answers):
        return None
    users, own, above, all_qos = map(_rows, answers, (_USER, _OWN, _PARENT, _QOS))
    account = cluster.get("account") or (users[0]["defaultaccount"] if users else "")
    mine = tuple(row for row in own if row["account"] == account.lower())
    return Known(
        cluster.get("qos") or "",
        mine,
        {row["account"]: row for row in above},
        {row["name"]: _comparable(row) for row in all_qos},
    )


def _comparable(qos: Row) -> Row:
    """Return a QOS without the limits that its flags change."""
    flags = qos["flags"].split(",")
    return {**qos, **{field: "" for flag in flags for field in _NOT_COMPARED.get(flag, ())}}


def _words(what: str, where: tuple[str, ...], fields: tuple[str, ...]) -> tuple[str, ...]:
    condition = ("where", *where) if where else ()
    return ("sacctmgr", "--noheader", "--parsable2", "show", what, *condition, f"format={','.join(fields)}")


def _rows(answer: Answer, fields: tuple[str, ...]) -> list[Row]:
    rows = [line.split("|") for line in answer.out.splitlines()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def problems(demand: Demand, rights: Rights, partition: Row, nodes: Nodes, place: Place) -> Iterator[Problem]:
    """Yield what is beyond the limits of a job's QOS and account.

    Source: Slurm, Resource Limits: Hierarchy.

    Args:
        demand: What the job requests.
        rights: Its account and QOS.
        partition: The partition that it would start in.
        nodes: Returns what each node of the partition has.
        place: Where it would be submitted.
    """
    if not any(name in configured("AccountingStorageEnforce", place) for name in _ENFORCED):
        return
    yield from _without_jobs(rights)
    yield from _over_time(demand, rights, partition)
    counts_memory = "memory" in configured("SelectTypeParameters", place)
    for field in ("maxtresperjob", "maxtresperuser", "maxtresperaccount", "grptres", "maxtrespernode"):
        count = 1 if field == "maxtrespernode" else demand.nodes
        for name, (whose, limit) in _first(rights, field).items():
            value = demand.least(name, () if name == "node" else nodes(), count)
            if value > limit and (name != "mem" or counts_memory):
                yield _over(demand, name, whose, value, limit)
    for name, (whose, limit) in _first(rights, "mintresperjob").items():
        if name == "node" and demand.most_nodes < limit:
            yield beyond(demand.nodes_key, whose, demand.most_nodes, f"at least {limit:g}", "less")
    yield from _over_minutes(demand, rights, partition, nodes)


def _first(rights: Rights, field: str) -> dict[str, tuple[str, float]]:
    """Return the limit of each resource, with who has it. A QOS replaces the limits of accounts, which all count."""
    found: dict[str, tuple[str, float]] = {}
    for whose, row in rights.places:
        for name, limit in amounts(row.get(field, "")).items():
            is_lower = name in found and found[name][0].startswith("account") and limit < found[name][1]
            if _is_known(name) and (name not in found or is_lower):
                found[name] = (whose, limit)
    return found


def _is_known(name: str) -> bool:
    """Return whether the least of a resource that a job takes is known."""
    return name in ("node", "cpu", "mem") or name.startswith("gres/")


def _over(demand: Demand, name: str, whose: str, value: float, limit: float) -> Problem:
    if name == "node":
        return beyond(demand.nodes_key, whose, demand.nodes, f"1 to {limit:g}")
    title, _ = _titles(name)
    key = demand.memory_key if name == "mem" else demand.nodes_key
    message = f"the job takes at least {value:.0f} {title}, more than {whose} allows; {NEVER}"
    remedy = "request fewer nodes"
    if demand.nodes == demand.most_nodes:  # an elastic job has whole nodes
        remedy += ", or part of their resources with cluster.exclusive=false and cluster.mem"
    shown = int(demand.memory_mib) if name == "mem" else demand.nodes
    return Problem("E446", key, message, value=shown, allowed=f"at most {limit:.0f} {title}", remedy=remedy)


def _titles(resource: str) -> tuple[str, str]:
    """Return what an amount of a resource is called, and what its product with minutes is called."""
    return _TITLES.get(resource, (resource, f"{resource}-minutes"))


def _without_jobs(rights: Rights) -> Iterator[Problem]:
    """Yield the QOS or the account that lets no job run."""
    for fields in _JOBS:
        limits = [(whose, row[field]) for whose, row in rights.places for field in fields if row.get(field)]
        for whose, limit in limits[:1]:
            if limit == "0":
                key, _, name = whose.partition(" ")
                message = f"lets no job run; {NEVER}"
                yield Problem("E446", f"cluster.{key.lower()}", message, value=name, remedy="choose another one")


def _over_time(demand: Demand, rights: Rights, partition: Row) -> Iterator[Problem]:
    wanted = _wanted(demand, partition)
    whose, longest = _longest(rights)
    if wanted is None or wanted <= (minutes(longest) or float("inf")):
        return
    if demand.minutes is not None:
        yield beyond("cluster.time", whose, demand.time, f"at most {longest}")
    else:
        message = f"the default of partition {partition['PartitionName']} is more than {whose} allows; {NEVER}"
        default = partition["DefaultTime"]
        yield Problem("E446", "cluster.time", message, value=default, allowed=f"at most {longest}")


def _longest(rights: Rights) -> tuple[str, str]:
    """Return the longest time of a job, with who limits it; "" without a limit."""
    return next(((whose, row["maxwall"]) for whose, row in rights.places if row.get("maxwall")), ("", ""))


def _wanted(demand: Demand, partition: Row) -> float | None:
    """Return the time limit of a job in minutes; None if Slurm takes the longest one that is allowed."""
    return minutes(partition.get("DefaultTime")) if demand.minutes is None else demand.minutes


def _over_minutes(demand: Demand, rights: Rights, partition: Row, nodes: Nodes) -> Iterator[Problem]:
    """Yield products of a resource and the time limit that are beyond a limit."""
    wanted = _wanted(demand, partition) or minutes(_longest(rights)[1]) or minutes(partition.get("MaxTime"))
    for field in _MINUTES:
        for name, (whose, limit) in _first(rights, field).items():
            value = demand.least(name, () if name == "node" else nodes(), demand.nodes)
            if value and value * (wanted or float("inf")) > limit:
                title, product = _titles(name)
                message = f"with {value:.0f} {title}, it is more than {whose} allows; {NEVER}"
                allowed = f"at most {limit // value:.0f} min, since {limit:.0f} {product} are allowed"
                yield Problem("E446", "cluster.time", message, value=demand.time, allowed=allowed)
