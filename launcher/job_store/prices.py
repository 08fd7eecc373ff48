"""Prices of instances: the dated ones of `prices.csv`, until the user gives a table. Sums are in `costs`."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import yaml

from launcher.common import yaml_io
from launcher.common.problems import Notice, Problem, fail, raise_any
from launcher.common.suggestions import did_you_mean
from launcher.model.instances import canonical, table

_CURRENCY = "currency"
_KINDS = {
    "training": "SageMaker training",
    "studio": "SageMaker Studio",
    "ec2": "EC2 on demand",
    "block": "EC2 Capacity Block",
}
_PREFERRED = {"training": ("training", "studio", "ec2", "block")}
"""Kinds of price for a use of instances, the closest to the charged price first."""
_OTHERS = ("ec2", "block")
_REMARKS = {
    "studio": "training's rates are within 0.4 % of it where both are known",
    "ec2": "SageMaker charges 1.15 to 1.40 times as much where both are known",
    "block": "no on-demand price exists",
}
"""Source: the types of `prices.csv` that have prices of two kinds."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The origin of a price.

    Args:
        kind: The service that charges it.
        region: The region; "" for the user's prices.
        date: Its date, as YYYY-MM-DD; "" for the user's prices.
        remark: How it differs from the price that the job pays; "" if it does not.
    """

    kind: str
    region: str = ""
    date: str = ""
    remark: str = ""

    def __str__(self) -> str:
        text = ", ".join(filter(None, (self.kind, self.region, self.date)))
        return f"{text} ({self.remark})" if self.remark else text


@dataclass(frozen=True, slots=True)
class Prices:
    """A price table.

    Args:
        per_hour: Price of one instance per hour, by its type with `ml.`.
        currency: Currency of the prices; "" if the table does not state it.
        basis: The origin of each price.
    """

    per_hour: Mapping[str, float]
    currency: str = ""
    basis: Mapping[str, Basis] = field(default_factory=dict)

    def of(self, instance_type: str) -> float:
        """Return the price of an instance per hour.

        Raises:
            ProblemsFound: The table does not have it.
        """
        name = canonical(instance_type)
        if name not in self.per_hour:
            raise_any(self._lacking(name))
        return self.per_hour[name]

    def _lacking(self, name: str) -> Iterator[Problem]:
        """Yield a Problem for each priced type that is probably meant to be one that has no price; else for that."""
        types = list(table())
        meant = {other: did_you_mean(other, [name, *types]) for other in self.per_hour if other not in types}
        for other, remedy in meant.items():
            if name in (remedy or ""):
                path = f"{self.basis[other].kind}: {other}" if other in self.basis else "--prices"
                yield Problem("E806", path, "is not an instance type", value=other, remedy=remedy)
        if not any(name in (remedy or "") for remedy in meant.values()):
            message, remedy = "the table has no price for that instance type", f"add {name}: <price per hour>"
            known = None if name in types else sorted(self.per_hour)
            allowed = ", ".join(known or ()) or None
            remedy = (known and did_you_mean(name, known)) or remedy
            yield Problem("E806", "--prices", message, value=name, allowed=allowed, remedy=remedy)


def shipped(use: str | None) -> Prices:
    """Return the dated prices in USD that are closest to those of a use, as in `instances.csv`; None is EC2's."""
    order = _PREFERRED.get(use or "", _OTHERS)
    text = Path(__file__).with_name("prices.csv").read_text(encoding="utf-8")
    rows = [line.split(",") for line in text.splitlines() if not line.startswith("#")][1:]
    found: dict[str, list[str]] = {}
    for kind in reversed(order):  # the closest one last, which replaces the others
        found |= {canonical(row[0]): row for row in rows if row[1] == kind}
    per_hour, basis = dict[str, float](), dict[str, Basis]()
    for name, (_, kind, price, region, date, _) in found.items():
        per_hour[name], basis[name] = float(price), Basis(_KINDS[kind], region, date, _REMARKS.get(kind, ""))
    return Prices(per_hour, "USD", basis)


def read(path: Path) -> Prices:
    """Read a price table: YAML, instance type to the price per hour, and optionally `currency`.

    Raises:
        ProblemsFound: It cannot be read, or every entry that is not a price.
    """
    try:
        tree = yaml_io.load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.MarkedYAMLError) as error:
        raise fail("E806", "--prices", f"cannot be read: {error}", value=str(path)) from error
    if not isinstance(tree, Mapping):
        allowed = "ml.p5.48xlarge: <price per hour>"
        raise fail("E806", "--prices", "is not a table", value=str(path), allowed=allowed)
    return stated(tree, path.name)


def stated(tree: Mapping[Any, Any], source: str = "prices") -> Prices:
    """Return the prices of a table as `read` describes it.

    Args:
        source: Its name, for its Problems and as the origin of its prices.

    Raises:
        ProblemsFound: Every entry that is not a price, or is there twice.
    """
    rows = {name: price for name, price in tree.items() if name != _CURRENCY}
    raise_any(
        Problem("E806", f"{source}: {name}", "is not a price per hour", value=price, allowed="a number, 0 or more")
        for name, price in rows.items()
        if not is_amount(price)
    )
    times = Counter(canonical(str(name)) for name in rows)
    for name in (name for name, count in times.items() if count > 1):
        raise fail("E806", f"{source}: {name}", "has two prices, with and without ml.", allowed="one of them")
    prices = {canonical(str(name)): float(price) for name, price in rows.items()}
    return Prices(prices, str(tree.get(_CURRENCY) or ""), dict.fromkeys(prices, Basis(source)))


def is_amount(value: object) -> bool:
    """Return whether a value is a number, 0 or more, that a float can hold; those of NumPy are."""
    if not isinstance(value, bool) and isinstance(value, Real):
        with contextlib.suppress(OverflowError):
            return 0 <= float(value) < math.inf
    return False


def unknown(prices: Prices, described: str | None = None) -> tuple[Notice, ...]:
    """Return a notice of the priced instance types that neither the table nor the job knows."""
    names = sorted({*prices.per_hour} - {*table(), described})
    return (Notice("N160", f"--prices has {', '.join(names)}, not in the table of instance types"),) if names else ()
