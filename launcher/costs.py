"""What a job costs by the hour and at most, at each size of its plan, from the user's own prices.

No prices are shipped: they differ by region and contract, and change.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher import layout, yamlio
from launcher.instances import canonical
from launcher.nearest import did_you_mean
from launcher.problems import Problem, ProblemsFound, fail
from launcher.scales import get
from launcher.specs import JobSpec

_SECONDS_PER_HOUR = 3600
_JOBS = "cluster.sm_jobs_config"
_CURRENCY = "currency"


@dataclass(frozen=True, slots=True)
class Prices:
    """A price table.

    Args:
        per_hour: Price of one instance for an hour, by its type with `ml.`.
        currency: What the numbers are in; "" where the table does not say.
    """

    per_hour: Mapping[str, float]
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job costs at one size.

    Args:
        nodes: Its instances.
        per_hour: Price of all of them for an hour.
        hours: Most hours that are paid for; None where nothing bounds it.
    """

    nodes: int
    per_hour: float
    hours: float | None = None

    @property
    def instance_hours(self) -> float | None:
        """Most instance-hours that are paid for."""
        return None if self.hours is None else self.nodes * self.hours

    @property
    def most(self) -> float | None:
        """Most that it costs."""
        return None if self.hours is None else self.per_hour * self.hours


def read(path: Path) -> Prices:
    """Read a price table: YAML, instance type to the price of an hour, and `currency` if wanted.

    Raises:
        ProblemsFound: It cannot be read, or every entry that is no price.
    """
    try:
        tree = yamlio.load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.MarkedYAMLError) as error:
        raise fail("E806", "--prices", f"cannot be read: {error}", value=str(path)) from error
    if not isinstance(tree, Mapping):
        raise fail("E806", "--prices", "is no table", value=str(path), allowed="ml.p5.48xlarge: <price of an hour>")
    wrong = [
        Problem("E806", f"{path.name}: {name}", "is no price of an hour", value=price, allowed="a number, 0 or more")
        for name, price in tree.items()
        if name != _CURRENCY and not _is_price(price)
    ]
    if wrong:
        raise ProblemsFound(tuple(wrong))
    times = Counter(canonical(str(name)) for name in tree if name != _CURRENCY)
    for name in (name for name, count in times.items() if count > 1):
        raise fail("E806", f"{path.name}: {name}", "has two prices, with and without ml.", allowed="one of them")
    prices = {canonical(str(name)): float(price) for name, price in tree.items() if name != _CURRENCY}
    return Prices(prices, str(tree.get(_CURRENCY) or ""))


def costs(job: JobSpec, prices: Prices, hours: float | None = None) -> tuple[Cost, ...]:
    """Return what a job costs at each size of its plan.

    Args:
        job: The planned job.
        prices: The price table.
        hours: How long it runs; None takes what bounds a training job, where something does. A warm pool is paid for
            beside that.

    Raises:
        ProblemsFound: The table lacks an instance type of the job, or it does not run that long.
    """
    groups = get(job.config, f"{_JOBS}.instance_groups")
    bound = _bound_h(job, hours)
    if groups:
        per_hour = sum(each["instance_count"] * _price(prices, each["instance_type"]) for each in groups)
        return (Cost(sum(each["instance_count"] for each in groups), per_hour, bound),)
    if job.resources.instance_type is None:
        raise fail("E806", "--prices", "a job on this machine has no instances to pay for", remedy="cluster=sm_jobs")
    price = _price(prices, job.resources.instance_type)
    return tuple(Cost(point.nodes, point.nodes * price, bound) for point in job.scales)


def table(found: tuple[Cost, ...], prices: Prices) -> list[str]:
    """Return costs as aligned lines, the head first."""
    unit = f" {prices.currency}" if prices.currency else ""
    head = ["nodes", f"per hour{unit}"]
    rows = [[str(cost.nodes), f"{cost.per_hour:,.2f}"] for cost in found]
    if all(cost.most is not None for cost in found):
        head += ["hours", "instance-hours", f"at most{unit}"]
        for row, cost in zip(rows, found, strict=True):
            row += [f"{cost.hours:g}", f"{cost.instance_hours:g}", f"{cost.most:,.2f}"]
    return layout.table([head, *rows], right=range(len(head)))


def as_json(found: tuple[Cost, ...], prices: Prices) -> dict[str, Any]:
    """Return costs as plain data."""
    sizes = [
        {
            "nodes": cost.nodes,
            "per_hour": round(cost.per_hour, 4),
            "hours": cost.hours,
            "instance_hours": cost.instance_hours,
            "most": None if cost.most is None else round(cost.most, 2),
        }
        for cost in found
    ]
    return {"currency": prices.currency or None, "sizes": sizes}


def _bound_h(job: JobSpec, hours: float | None) -> float | None:
    """Return the hours that are paid for: until a training job is stopped by its limit, and its warm pool."""
    if hours is not None and not math.isfinite(hours):
        raise fail("E806", "--hours", "is no number of hours", value=hours)
    if job.backend != "sm_jobs":
        return hours
    from launcher.backends.sagemaker.parts import DEFAULT_MAX_RUNTIME_S
    from launcher.backends.sagemaker.settings import effective

    jobs = effective(job.settings.sm_jobs_config)
    limit_h = (jobs.stopping_condition.max_runtime_s or DEFAULT_MAX_RUNTIME_S) / _SECONDS_PER_HOUR
    if hours is not None and hours > limit_h:
        remedy = f"{_JOBS}.stopping_condition.max_runtime_s={math.ceil(hours * _SECONDS_PER_HOUR)}"
        message = "the job is stopped before that"
        raise fail("E806", "--hours", message, value=hours, allowed=f"at most {limit_h:g}", remedy=remedy)
    return (limit_h if hours is None else hours) + (jobs.keep_alive_s or 0) / _SECONDS_PER_HOUR


def _price(prices: Prices, instance_type: str) -> float:
    name = canonical(instance_type)
    if name not in prices.per_hour:
        known = sorted(prices.per_hour)
        details = {"allowed": ", ".join(known) or None, "remedy": did_you_mean(name, known)}
        raise fail("E806", "--prices", "the table has no price for that instance type", value=name, **details)
    return prices.per_hour[name]


def _is_price(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
