"""The declared type of a key, and what values of a type may be. Pure."""

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from launcher.model.config_tree import is_index


def type_at(model: type[BaseModel], loc: Sequence[int | str]) -> Any:
    """Return the type that `model` declares for the keys to a value; None if it declares none."""
    found: Any = model
    for part in map(str, loc):
        found = next(filter(None, (_type_below(member, part) for member in _members(found))), None)
    return found


def _type_below(member: Any, part: str) -> Any:
    """Return the type of a part of a value: of a key of a model or of a mapping, or of an item of a list."""
    if get_origin(member) is dict:
        return get_args(member)[1]
    if get_origin(member) is list:
        return get_args(member)[0] if is_index(part) else None
    if not (isinstance(member, type) and issubclass(member, BaseModel)):
        return None
    return next((i.annotation for name, i in member.model_fields.items() if part == (i.alias or name)), None)


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union, without what further restricts them; another type is its only member."""
    if get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from _members(each)
    else:
        yield annotation


def takes_text(annotation: Any) -> bool:
    """Return whether a value of this type may be any text."""
    return any(member in (str, Any) for member in _members(annotation))


def takes_words(annotation: Any) -> bool:
    """Return whether a value of this type may be a list of texts, numbers or choices."""
    lists = (member for member in _members(annotation) if get_origin(member) is list)
    return any(map(_is_scalar, (item for each in lists for item in _members(get_args(each)[0]))))


def _is_scalar(annotation: Any) -> bool:
    return annotation in (str, int, float, bool, Any) or get_origin(annotation) is Literal
