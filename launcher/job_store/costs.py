"""Costs of a job per hour and at most, at each size of its plan. Prices come from `launcher.job_store.prices`."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from launcher.common.problems import Notice, fail
from launcher.job_store import prices as price_tables
from launcher.job_store.prices import Prices
from launcher.model.backend_registry import described, is_serverless
from launcher.model.instances import canonical
from launcher.model.job_spec import JobSpec
from launcher.planning.plan_report import NO_COLUMNS, Columns

_SECONDS_PER_HOUR = 3600
_MOST_HOURS = 1_000_000
"""More than a century: sums stay numbers."""
SERVERLESS = "the price of a serverless job is unknown: AWS chooses its instances"


Given = str | Path | Mapping[str, float] | Prices | None
"""Price per hour of each instance type, or a file of them; None for the dated ones."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a job at one size.

    Args:
        hours: Maximum billed hours; None if unbounded.
    """

    nodes: int
    per_hour: float
    hours: float | None = None

    @property
    def instance_hours(self) -> float | None:
        """Maximum billed instance-hours."""
        return None if self.hours is None else self.nodes * self.hours

    @property
    def most(self) -> float | None:
        """Maximum cost."""
        return None if self.hours is None else self.per_hour * self.hours


class Priced(NamedTuple):
    """What a plan costs.

    Args:
        as_json: Its costs as plain data; None as `costs` if unknown, empty if nothing is paid.
        columns: Headings of columns of the plan, and their cells for each size.
        lines: The price of each instance type with its origin, or why it is unknown.
    """

    as_json: Mapping[str, Any] = {}
    columns: Columns = NO_COLUMNS
    lines: tuple[str, ...] = ()


def known_prices(job: JobSpec, given: Given) -> Prices:
    """Return the prices for a job.

    Raises:
        ProblemsFound: Those that are given are not valid (E806).
    """
    if given is None:
        instances = described(job.backend).instances
        return price_tables.shipped(instances.price_use if instances else None)
    if isinstance(given, Mapping):
        return price_tables.stated(given)
    if isinstance(given, str | Path):
        return price_tables.read(Path(given))
    if not isinstance(given, Prices):
        raise fail("E806", "prices", "are no prices", value=given, allowed="a mapping, or a file of them")
    return given


def price_notices(job: JobSpec, given: Given) -> tuple[Notice, ...]:
    """Return a notice of the given prices whose instance types are unknown."""
    return () if given is None else price_tables.unknown(known_prices(job, given), job.resources.instance_type)


def priced(job: JobSpec, given: Given, hours: float | None) -> Priced:
    """Return the costs of a job as far as its prices are known; they must be if prices or hours are given.

    Raises:
        ProblemsFound: A price is missing or invalid, or the job has no instances that are billed (E806).
    """
    is_asked = given is not None or hours is not None
    if described(job.backend).runs_here and not is_asked:  # a job on this machine costs nothing
        return Priced()
    if not (is_asked or is_serverless(job) or instance_types(job)):  # a cluster that runs already
        return Priced({"costs": None})
    if is_serverless(job) and not is_asked:
        return Priced({"costs": None}, lines=(SERVERLESS,))
    known = known_prices(job, given)
    hint = "; give yours with --prices FILE" if given is None else ""
    lacking = [name for name in instance_types(job) if name not in known.per_hour]
    if lacking and given is None:
        return Priced({"costs": None}, lines=(f"no known price of {', '.join(lacking)}{hint}",))
    found = costs(job, known, hours)
    lines = tuple(f"{line}{hint}" for line in bases(job, known))
    return Priced({"costs": as_json(job, found, known)}, columns(found, known), lines)


def costs(job: JobSpec, prices: Prices, hours: float | None = None) -> tuple[Cost, ...]:
    """Return a job's cost at each size of its plan.

    Args:
        hours: Duration; None takes the time limit of a training job, if it has one. A warm pool is billed
            in addition.

    Raises:
        ProblemsFound: The table lacks an instance type of the job, its time limit is shorter, or its instances are
            unknown.
    """
    if is_serverless(job):
        raise fail("E806", "--prices", SERVERLESS, remedy="omit --prices and --hours")
    groups = _groups(job)
    bound = _bound_h(job, hours)
    if groups:
        per_hour = sum(count * prices.of(name) for name, count in groups)
        return (Cost(sum(count for _, count in groups), per_hour, bound),)
    if job.resources.instance_type is None:
        raise fail("E806", "--prices", "a job on this machine has no billed instances", remedy="cluster=sm_jobs")
    price = prices.of(job.resources.instance_type)
    return tuple(Cost(point.nodes, point.nodes * price, bound) for point in job.scales)


def instance_types(job: JobSpec) -> tuple[str, ...]:
    """Return the billed instance types of a job, each with its `ml.`; none on this machine."""
    names = [name for name, _ in _groups(job)] or [job.resources.instance_type or ""]
    return tuple(dict.fromkeys(canonical(name) for name in names if name))


def bases(job: JobSpec, prices: Prices) -> list[str]:
    """Return one line with the price of each instance type."""
    unit = f" {prices.currency}" if prices.currency else ""
    return [
        f"{name} {f'{prices.per_hour[name]:,.6f}'.rstrip('0').rstrip('.')}{unit} an hour: {prices.basis[name]}"
        for name in instance_types(job)
        if name in prices.per_hour
    ]


def columns(found: tuple[Cost, ...], prices: Prices) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings of the columns that costs add to a plan, and their cells for each size."""
    unit = f" {prices.currency}" if prices.currency else ""
    if any(cost.most is None for cost in found):
        return (f"per hour{unit}",), [(f"{cost.per_hour:,.2f}",) for cost in found]
    head = (f"per hour{unit}", "hours", "instance-hours", f"at most{unit}")
    return head, [
        (f"{cost.per_hour:,.2f}", f"{cost.hours:g}", f"{cost.instance_hours:g}", f"{cost.most:,.2f}")
        for cost in found
    ]


def as_json(job: JobSpec, found: tuple[Cost, ...], prices: Prices) -> dict[str, Any]:
    """Return costs, and the prices they are computed from, as plain data."""
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
    of_types = {
        name: {"per_hour": prices.per_hour[name], **asdict(prices.basis[name])} for name in instance_types(job)
    }
    return {"currency": prices.currency or None, "prices": of_types, "sizes": sizes}


def _groups(job: JobSpec) -> tuple[tuple[str, int], ...]:
    instances = described(job.backend).instances
    return instances.groups(job.settings) if instances else ()


def _bound_h(job: JobSpec, hours: float | None) -> float | None:
    """Return the billed hours: until the backend stops the job, plus those in which instances are kept."""
    if hours is not None and not (price_tables.is_amount(hours) and hours <= _MOST_HOURS):
        raise fail("E806", "--hours", "must be a number of hours", value=hours, allowed=f"0 to {_MOST_HOURS:,}")
    instances = described(job.backend).instances
    limit = instances.limit(job.settings) if instances else None
    if limit is None:
        return hours
    if hours is not None and hours > limit.hours:
        remedy = f"{limit.key}={math.ceil(hours * _SECONDS_PER_HOUR)}"
        message = "the job is stopped earlier"
        raise fail("E806", "--hours", message, value=hours, allowed=f"at most {limit.hours:g}", remedy=remedy)
    return (limit.hours if hours is None else hours) + limit.warm_hours
