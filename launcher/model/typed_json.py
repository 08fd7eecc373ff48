"""Values of dataclasses and named tuples, of what JSON has of them."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Kind = TypeVar("Kind")


def as_type(kind: Callable[..., Kind], found: object) -> Kind:
    """Return the value of a type that was written as JSON.

    Args:
        kind: A dataclass or a named tuple.
        found: What `json.loads` returns of it, which also reads file names that are not UTF-8; pydantic's parser does
            not.

    Raises:
        ValueError: It is of another type; the message has one line.
    """
    from pydantic import ValidationError  # start-up time

    try:
        value: Kind = _adapter(kind).validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))) from error
    return value


@functools.cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
