"""Reads external values as the type they should have. Nothing here raises: a wrong type is read as empty.

An operator, Kueue or a later version of either may write anything into a status; commands must still work.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeGuard

from launcher.common.quantities import UnreadableQuantity, amount
from launcher.common.texts import printable


def mapping(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at `keys` below a value; empty if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def conditions(owner: object, status: str = "True") -> dict[str, Mapping[str, Any]]:
    """Return the conditions in an object's status that are True, or False or Unknown, by their types."""
    found = mappings(mapping(owner, "status").get("conditions"))
    return {text(each.get("type")): each for each in found if each.get("status") == status}


def items(value: object) -> Sequence[Any]:
    """Return a list; empty if the value is not one."""
    return value if isinstance(value, (list, tuple)) else ()


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the mappings in a list."""
    return [each for each in items(value) if isinstance(each, Mapping)]


def texts(value: object) -> tuple[str, ...]:
    """Return the non-empty strings in a list."""
    return tuple(filter(None, map(text, items(value))))


def text(value: object) -> str:
    """Return a string with blanks in place of control characters; empty if the value is not a string."""
    return printable(value) if isinstance(value, str) else ""


def quantity(value: str | int) -> Fraction:
    """Return a Kubernetes quantity as a number; 0 if the value is not one."""
    try:
        return amount(value)
    except UnreadableQuantity:
        return Fraction()


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def count(value: object) -> int:
    """Return a whole number of at least 0; 0 if the value is not one."""
    return value if is_count(value) else 0
