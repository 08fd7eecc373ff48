"""The options of sbatch, the notation of their values, and the header of a batch script that gives them.

Source: sbatch(1), Slurm 22.05 to 24.11.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from launcher.common.suggestions import did_you_mean

if TYPE_CHECKING:
    from launcher.backends.slurm.options import Settings

_RENAMED, _BROKEN = re.compile("(pack)(job)", re.IGNORECASE), r"\1\\\2"
"""A word that sbatch replaces anywhere in a line, and the same word for it with an escaped letter."""
Value = str | int | bool | None
OPTION = "#SBATCH "
"""Begins each option of a batch script's header."""

_KEYS = (
    *("account", "comment", "constraint", "cpus-per-task", "dependency", "exclude", "exclusive", "gpus-per-node"),
    *("gpus-per-task", "gres", "mail-type", "mail-user", "mem", "mem-per-cpu", "mem-per-gpu", "nodelist"),
    *("open-mode", "partition", "qos", "requeue", "reservation", "signal", "time"),
)
"""Options that have a key of their own."""
_OWN = {"nodes": "recipes.trainer.num_nodes", "no-requeue": "cluster.requeue=false", "job-name": "recipes.run.name"}
"""Options that the launcher sets from other keys."""
ADDITIONAL = (
    *("batch", "bb", "bbf", "begin", "cluster-constraint", "container-id", "contiguous", "core-spec"),
    *("cores-per-socket", "cpu-freq", "cpus-per-gpu", "deadline", "delay-boot", "distribution"),
    *("extra", "extra-node-info", "gpu-bind", "gpu-freq", "gpus", "gpus-per-socket", "gres-flags"),
    *("hint", "hold", "ignore-pbs", "kill-on-invalid-dep", "licenses", "mcs-label", "mem-bind", "mincpus"),
    *("network", "nice", "no-kill", "oom-kill-step", "overcommit", "oversubscribe", "power"),
    *("prefer", "priority", "profile", "propagate", "reboot", "resv-ports", "segment", "sockets-per-node"),
    *("spread-job", "stepmgr", "switches", "thread-spec", "threads-per-core", "time-min", "tmp", "tres-bind"),
    *("tres-per-task", "use-min-nodes", "verbose", "wckey"),
)
"""Options for `cluster.additional_parameters`, without those that submit several jobs, choose another cluster, folder
or user, or place the log: the launcher does that itself, or would lose the job."""
_FLAGS = (
    *("contiguous", "hold", "ignore-pbs", "overcommit", "oversubscribe", "reboot", "spread-job", "stepmgr"),
    *("use-min-nodes", "verbose"),
)
"""Those that take no value."""
_OPTIONAL = ("nice", "no-kill", "oom-kill-step", "propagate", "resv-ports")
"""Those that may have one. All others need it."""
_KILL = "kill-on-invalid-dep"
"""Takes yes and no, which a file has for true and false."""
MEMORY_KEYS = ("mem", "mem_per_cpu", "mem_per_gpu")


def names_memory(cluster: Mapping[str, object]) -> bool:
    """Return whether a `cluster` section says how much memory the job gets."""
    return any(cluster.get(key) is not None for key in MEMORY_KEYS)


def plain(name: str) -> str:
    """Return the name of an option of sbatch that a user may have written with dashes before it or underscores."""
    return name.lstrip("-").replace("_", "-")


def refuse_unknown(given: dict[str, Value]) -> dict[str, Value]:
    """Return further options of sbatch; a ValueError names those that are not for `additional_parameters`."""
    faults, is_unknown, names = [], False, dict[str, str]()
    for name, value in given.items():
        option = plain(name)
        if (first := names.setdefault(option, name)) != name:
            faults.append(f"{first} and {name} are the same option")
        if option in _KEYS:
            faults.append(f"{name} has a key of its own: cluster.{option.replace('-', '_')}")
        elif option in _OWN:
            faults.append(f"{name} is set by the launcher: {_OWN[option]}")
        elif option not in ADDITIONAL:
            is_unknown, meant = True, did_you_mean(option, ADDITIONAL)
            faults.append(f"{name} is not an option for this key" + (f": {meant}" if meant else ""))
        elif option in _FLAGS and not isinstance(value, bool | None):
            faults.append(f"{name} takes no value: true or false")
        elif option == _KILL and isinstance(value, bool):
            faults.append(f"{name} needs 'yes' or 'no', in quotes")
        elif value is True and option not in (*_FLAGS, *_OPTIONAL):
            faults.append(f"{name} needs a value")
    if faults:
        raise ValueError("; ".join(faults) + (f". Valid ones: {', '.join(ADDITIONAL)}" if is_unknown else ""))
    return given


def batch_options(
    options: "Settings", nodes: str, name: str, processes: int, gpus_per_node: int | None, more: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the options of a batch script by name; false and null leave an option out.

    Args:
        nodes: Number of nodes, or a range such as 2-4.
        processes: Worker processes per node: what Slurm calls tasks.
        gpus_per_node: GPUs to request per node; None for none.
        more: Options that follow from the kind of job.
    """
    has_tasks = not options.exclusive or options.cpus_per_task
    has_memory = names_memory(options.model_dump(include=set(MEMORY_KEYS)))

    def own(*keys: str) -> dict[str, Value]:
        return {key.replace("_", "-"): getattr(options, key) for key in keys}

    known: dict[str, Value] = {
        "job-name": name,
        "nodes": nodes,
        "exclusive": options.exclusive,
        "ntasks-per-node": processes if has_tasks else None,
        "cpus-per-task": options.cpus_per_task,
        "mem": options.mem if has_memory else 0 if options.exclusive else None,
        **own("mem_per_cpu", "mem_per_gpu", "partition", "account", "qos", "time"),
        "gpus-per-node": gpus_per_node,
        **own("gres", "constraint", "nodelist", "exclude", "reservation", "dependency"),
        "mail-type": ",".join(options.mail_type or ()) or None,
        **own("mail_user", "signal"),
        "requeue" if options.requeue else "no-requeue": True,
        **own("open_mode", "comment"),
    }
    added = options.additional_parameters or {}
    return {**known, **{plain(key): value for key, value in added.items()}, **more}


def header(given: Mapping[str, Value]) -> list[str]:
    """Return options as lines of a header, quoted."""
    return words(given, quoted)


def header_of(script: str) -> list[str]:
    """Return the options of a batch script's header, as `header` does."""
    return [line.removeprefix(OPTION) for line in script.split("\n") if line.startswith(OPTION)]


def by_name(options: Iterable[str]) -> dict[str, str]:
    """Return the values of options, those of a header or words of a command; "" for one that has none."""
    parts = (option.partition("=") for option in options)
    return {name.removeprefix("--"): value.strip('"') for name, _, value in parts}


def words(given: Mapping[str, Value], shown: Callable[[str], str] = str) -> list[str]:
    """Return options as words of a command; false and null leave an option out."""
    kept = {name: value for name, value in given.items() if value is not None and value is not False}
    return [f"--{name}" if value is True else f"--{name}={shown(str(value))}" for name, value in kept.items()]


def quoted(value: str) -> str:
    """Return a value as sbatch reads it from a header: between double quotes, where a backslash escapes.

    Source: Slurm 22.05, src/sbatch/opt.c: _get_argument.
    """
    if value and not _RENAMED.search(value) and all(letter.isalnum() or letter in "._:,@/+=-" for letter in value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_RENAMED.sub(_BROKEN, escaped)}"'


_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
"""Of memory, in MiB. Source: sacctmgr(1), MaxTRESPerJob."""
MEMORY = r"^[1-9][0-9]{0,11}([KkMmGgTt][Bb]?)?$"
"""Memory that a job requests. Source: sbatch(1), --mem."""


def minutes(limit: object) -> float | None:
    """Return a time limit of Slurm in minutes; None if there is none.

    Source: sbatch(1), --time.
    """
    text = str(limit)
    if not re.fullmatch(r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}", text):
        return None
    days, dash, rest = text.rpartition("-")
    numbers = [int(part) for part in rest.split(":")]
    # After days come hours; otherwise a text begins with minutes, unless it has three parts.
    if not dash and len(numbers) < 3:
        numbers.insert(0, 0)
    hours, mins, seconds = (*numbers, 0, 0)[:3]
    return int(days or 0) * 1440 + hours * 60 + mins + seconds / 60


def amounts(text: str) -> dict[str, float]:
    """Return resources of a text such as cpu=8,mem=4G,gres/gpu=2, memory in MiB.

    Source: Slurm, Trackable RESources.
    """
    found = re.findall(r"([^=,]+)=([0-9.]+)([KMGTP]?)", text)
    return {name: float(number) * (_UNITS.get(unit, 1) if name == "mem" else 1) for name, number, unit in found}


def mebibytes(memory: object) -> float:
    """Return memory that a job requests in MiB, such as 64GB, which sbatch rounds up; 0 for none."""
    number, unit = re.match(r"([0-9]*)([A-Z]?)", str(memory or 0).upper()).groups()  # type: ignore[union-attr]
    return math.ceil(int(number) * _UNITS.get(unit, 1))


def gres_amounts(text: str) -> dict[str, int]:
    """Return generic resources such as gpu:h100:8,nic by their names in limits. Source: sbatch(1), --gres."""
    found = dict[str, int]()
    for each in filter(None, text.split(",")):
        name, *rest = each.split(":")
        count = int(rest.pop()) if rest and rest[-1].isdigit() else 1
        for own in (name, *(f"{name}:{kind}" for kind in rest)):
            found[f"gres/{own}"] = found.get(f"gres/{own}", 0) + count
    return found


_SPAN = "[0-9]{1,6}(?:-[0-9]{1,6})?"
_HOSTS = re.compile(rf"([A-Za-z0-9._-]+)(?:\[({_SPAN}(?:,{_SPAN})*)\])?")
_MOST_HOSTS = 65_536


def hosts(text: str) -> set[str]:
    """Return the nodes of a list such as n[1-3,07],m1; none if it has another form.

    Source: sbatch(1), --nodelist.
    """
    found = set[str]()
    for name in re.split(r",(?![^\[]*\])", text):
        if (parts := _HOSTS.fullmatch(name)) is None:
            return set()
        prefix, ranges = parts.groups()
        if not ranges:
            found.add(prefix)
            continue
        for span in ranges.split(","):
            first, _, last = span.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            if len(numbers) > _MOST_HOSTS:
                return set()
            found |= {f"{prefix}{number:0{len(first)}}" for number in numbers}
    return found


def integer(text: str | None) -> int | None:
    """Return a field that is a whole number; None without a limit."""
    return int(text) if text and text.isdigit() else None
