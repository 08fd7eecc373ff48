"""What the limits of a partition, an account or a QOS never allow. Slurm accepts such a job, and never starts it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.backends.slurm import programs
from launcher.backends.slurm.place import Place
from launcher.backends.slurm.recent import RECENT
from launcher.common.problems import Problem
from launcher.model.config_tree import get

NODES = ("recipes.trainer.num_nodes", "recipes.training_cfg.run.nodes")
_PARTITIONS = ("scontrol", "--oneliner", "show", "partition")
_CONFIG = ("scontrol", "show", "config")
_NEVER = "the job would stay pending for ever"
_LIMITS = ("limits", "safe")
"""Values of AccountingStorageEnforce that enforce limits. Source: slurm.conf(5)."""
_CLOSED = {"DOWN": "is down", "DRAIN": "is drained", "INACTIVE": "is inactive"}
"""States of a partition that starts no jobs. Source: scontrol(1), State."""


@dataclass(frozen=True, slots=True)
class _Job:
    """The values of a job that limits are about.

    Args:
        nodes_key: Key of its number of nodes.
        nodes: Number of its nodes.
        time: `cluster.time`.
        account: Its account; "" if unknown.
        qos: Its QOS; "" if unknown.
    """

    nodes_key: str
    nodes: int
    time: object
    account: str
    qos: str


def problems(config: Mapping[str, Any], nodes: int, place: Place) -> Iterator[Problem]:
    """Yield what the cluster never allows. Of several partitions one has to allow the job.

    Args:
        config: The composed configuration.
        nodes: The smallest number of nodes that the job can run on.
        place: Where it would be submitted.

    Raises:
        ProblemsFound: Slurm does not answer (E447).
    """
    cluster = config["cluster"]
    RECENT.ask_all(place, _PARTITIONS, _CONFIG)
    association = _association(cluster.get("account"), place)
    account = cluster.get("account") or association.get("account", "")
    qos = cluster.get("qos") or association.get("defaultqos") or ("normal" if association else "")
    job = _Job(nodes_key(config), nodes, cluster.get("time"), account, qos)
    yield from _of_partitions(job, cluster.get("partition") or "", place)
    if association:
        yield from _of_account(job, association, place)


def nodes_key(config: Mapping[str, Any]) -> str:
    """Return the key of the number of nodes."""
    return next(key for key in reversed(NODES) if get(config, key) is not None)


def _of_partitions(job: _Job, given: str, place: Place) -> Iterator[Problem]:
    answer = RECENT.ask(place, *_PARTITIONS)
    if answer.code:
        raise programs.unanswered("scontrol", answer)
    known = [dict(word.partition("=")[::2] for word in line.split()) for line in answer.out.splitlines()]
    names = given.split(",")
    chosen = [each for each in known if each.get("PartitionName") in names or (not given and _is_default(each))]
    found = [[*_barred(job, each), *_over_partition(job, each)] for each in chosen]
    yield from min(found, key=len, default=())


def _is_default(partition: Mapping[str, str]) -> bool:
    return partition.get("Default") == "YES"


def _barred(job: _Job, partition: Mapping[str, str]) -> Iterator[Problem]:
    """Yield why a partition starts no job, or none of this account or QOS."""
    name, state = partition["PartitionName"], partition.get("State", "UP")
    if state in _CLOSED:
        remedy = "choose another one with cluster.partition, or wait: sinfo --summarize"
        yield Problem("E446", "cluster.partition", f"partition {name} {_CLOSED[state]}", value=name, remedy=remedy)
    for key, value, title in (("account", job.account, "Accounts"), ("qos", job.qos, "Qos")):
        allowed, denied = partition.get(f"Allow{title}", "ALL"), partition.get(f"Deny{title}", "")
        is_allowed = allowed == "ALL" or value.lower() in allowed.lower().split(",")
        if not is_allowed or value.lower() in denied.lower().split(",") * bool(value):
            message = f"partition {name} does not take this {key}; {_NEVER}"
            permitted = f"not one of {denied}" if is_allowed else allowed
            yield Problem("E446", f"cluster.{key}", message, value=value or None, allowed=permitted)


def _over_partition(job: _Job, partition: Mapping[str, str]) -> Iterator[Problem]:
    """Yield what is beyond the limits of a partition; EnforcePartLimits would make sbatch refuse it."""
    whose = f"partition {partition['PartitionName']}"
    counts = [int(partition[field]) for field in ("MaxNodes", "TotalNodes") if partition.get(field, "").isdigit()]
    yield from _over(job, whose, min(counts, default=None), partition.get("MaxTime"))


def _over(job: _Job, whose: str, most_nodes: int | None, most_time: str | None) -> Iterator[Problem]:
    wanted, limit = minutes(job.time), minutes(most_time)
    if wanted is not None and limit is not None and wanted > limit:
        message = f"is more than {whose} allows; {_NEVER}"
        yield Problem("E446", "cluster.time", message, value=job.time, allowed=f"at most {most_time}")
    if most_nodes is not None and job.nodes > most_nodes:
        message = f"is more than {whose} allows; {_NEVER}"
        yield Problem("E446", job.nodes_key, message, value=job.nodes, allowed=f"1 to {most_nodes}")


def _of_account(job: _Job, association: Mapping[str, str], place: Place) -> Iterator[Problem]:
    """Yield what is beyond the limits of a job's QOS or, where the QOS has none, of its account.

    Source: Slurm, Resource Limits: Hierarchy.
    """
    if not any(name in _configured("AccountingStorageEnforce", place) for name in _LIMITS):
        return
    fields = ("maxwall", "maxtresperjob")
    limits = next(_rows("qos", (f"name={job.qos}",), fields, place), dict.fromkeys(fields, ""))
    places = ((f"QOS {job.qos}", limits), (f"account {job.account}", association))
    whose, found = next((each for each in places if each[1]["maxwall"]), ("", {}))
    yield from _over(job, whose, None, found.get("maxwall"))
    for whose, found in places:
        if most := re.search(r"\bnode=([0-9]+)", found["maxtresperjob"]):
            yield from _over(job, whose, int(most[1]), None)
            return


def _association(account: str | None, place: Place) -> Mapping[str, str]:
    """Return what an account lets the user do, by sacctmgr; nothing where jobs are not accounted for."""
    if "slurmdbd" not in _configured("AccountingStorageType", place):
        return {}
    me = place.user
    if not account:
        (own,) = [*_rows("user", (f"name={me}",), ("defaultaccount",), place)][:1] or [{}]
        account = own.get("defaultaccount")
    if not account:
        return {}
    fields = ("account", "partition", "defaultqos", "maxwall", "maxtresperjob")
    found = _rows("associations", (f"user={me}", f"account={account}"), fields, place)
    return next((each for each in found if not each["partition"]), {})


def _rows(what: str, where: tuple[str, ...], fields: tuple[str, ...], place: Place) -> Iterator[dict[str, str]]:
    text = _shown(
        place, "sacctmgr", "--noheader", "--parsable2", "show", what, "where", *where, f"format={','.join(fields)}"
    )
    for line in text.splitlines():
        values = line.split("|")
        if len(values) == len(fields):
            yield dict(zip(fields, values, strict=True))


def _configured(key: str, place: Place) -> str:
    """Return a value of Slurm's configuration, in lower case; "" if unknown."""
    found = re.search(rf"^{key}\s*=\s*(.*)$", _shown(place, *_CONFIG), re.MULTILINE)
    return found[1].lower() if found else ""


def _shown(place: Place, *words: str) -> str:
    """Return the output of a command; "" if it fails."""
    answer = RECENT.ask(place, *words)
    return "" if answer.code else answer.out


def minutes(limit: object) -> float | None:
    """Return a time limit of Slurm in minutes; None if there is none.

    Source: sbatch(1), --time.
    """
    text = "" if limit is None else str(limit)
    days, dash, rest = text.rpartition("-")
    if not re.fullmatch(r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}", text):
        return None
    numbers = [int(part) for part in rest.split(":")]
    if dash:
        hours, mins, seconds = (*numbers, 0, 0)[:3]
        return int(days) * 1440 + hours * 60 + mins + seconds / 60
    if len(numbers) == 3:
        return numbers[0] * 60 + numbers[1] + numbers[2] / 60
    return numbers[0] + (numbers[1] / 60 if len(numbers) == 2 else 0)
