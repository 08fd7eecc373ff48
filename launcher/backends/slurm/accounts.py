"""The account and the QOS of a job, and the rows of accounting that have their limits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.backends.slurm.place import RECENT, Place, configured
from launcher.backends.slurm.programs import Answer

MINUTES = ("maxtresminsperjob", "grptresrunmins")
"""Limits of products of a resource and the time limit."""
_OF_BOTH = ("maxwall", "maxtresperjob", "maxtrespernode", "grptres", *MINUTES, "grpjobs")
_USER = ("defaultaccount",)
_OWN = ("account", "partition", "defaultqos", "qos", *_OF_BOTH, "maxjobs")
_PARENT = ("account", "parentname", "grptres", "grptresrunmins", "grpjobs")
_QOS = (
    *("name", "flags", *_OF_BOTH, "mintresperjob", "maxtresperuser", "maxtresperaccount"),
    *("maxjobsperuser", "maxjobsperaccount"),
)
_WAIVED = {"PartitionMaxNodes": "MaxNodes", "PartitionMinNodes": "MinNodes", "PartitionTimeLimit": "MaxTime"}
"""Flags of a QOS whose jobs may exceed limits of partitions. Source: sacctmgr(1), QOS flags."""
_NOT_COMPARED = {"Relative": tuple(field for field in _QOS if "tres" in field), "UsageFactorSafe": MINUTES}
"""Flags of a QOS, with its limits that are shares or are multiplied. Source: sacctmgr(1), QOS flags."""
Row = Mapping[str, str]


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

    @property
    def longest(self) -> tuple[str, str]:
        """The longest time of a job, with who limits it; "" without a limit."""
        return next(((whose, row["maxwall"]) for whose, row in self.places if row.get("maxwall")), ("", ""))


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
        # An association for the partition counts before that for all of them.
        fitting = [each for each in self.own if each["partition"] in ("", title)]
        if not fitting:
            return None
        mine = min(fitting, key=lambda row: not row["partition"])
        only = "" if "," in mine["qos"] else mine["qos"]  # which is then the default
        name = self.qos or mine["defaultqos"] or only or "normal"
        flags = self.all_qos.get(name, {}).get("flags", "").split(",")
        ordered = (name, partition.get("QoS", "")) if "OverPartQOS" in flags else (partition.get("QoS", ""), name)
        found = [(f"QOS {each}", self.all_qos[each]) for each in ordered if each in self.all_qos]
        rows = (mine, *self._above(mine["account"]))
        places = (*found, *((f"account {row['account']}", row) for row in rows))
        names = tuple(row["account"] for row in rows)
        return Rights(names, name, places, frozenset(_WAIVED[flag] for flag in flags if flag in _WAIVED))

    def _above(self, account: str) -> Iterator[Row]:
        while account in self.above:
            row = self.above[account]
            yield row
            account = row["parentname"]


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
