"""Times, memory and resources in Slurm's notation. Pure."""

import math
import re
from collections.abc import Mapping

_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
"""Of memory, in MiB. Source: sacctmgr(1), MaxTRESPerJob."""
MEMORY = r"^[1-9][0-9]{0,11}([KkMmGgTt][Bb]?)?$"
"""Memory that a job requests. Source: sbatch(1), --mem."""


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


def integer(fields: Mapping[str, str], name: str) -> int | None:
    """Return a field that is a whole number; None without a limit."""
    text = fields.get(name, "")
    return int(text) if text.isdigit() else None
