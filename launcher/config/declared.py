"""What a key takes, as far as the families and clusters declare it."""

from types import NoneType
from typing import Any, NamedTuple

from pydantic import BaseModel

from launcher.model import backend_registry, family_registry
from launcher.model.launch import Launch
from launcher.model.validation import members, takes_words, type_at, without_size


class Takes(NamedTuple):
    """What a key takes.

    Args:
        has_list: Whether each family or cluster that declares it takes a list of words, and one does.
        has_text: Whether one of them takes any text; also if none declares it.
    """

    has_list: bool
    has_text: bool


def takes(key: str) -> Takes:
    """Return what a key takes, whatever recipe and cluster are chosen."""
    section, _, rest = key.partition(".")
    models: list[type[BaseModel]] = [Launch]
    if section == "cluster":
        models = [each.options() for each in backend_registry.descriptions()]
    elif section == "recipes":
        models = [family_registry.recipe_model(name) for name in family_registry.names()]
        rest = without_size(key)
    known = [type_at(model, (key if models == [Launch] else rest).split(".")) for model in models]
    found = [each for each in known if each not in (None, NoneType)]
    return Takes(bool(found) and all(map(takes_words, found)), not found or any(map(_takes_text, found)))


def _takes_text(annotation: Any) -> bool:
    """Return whether a value of this type may be any text."""
    return any(member in (str, Any) for member in members(annotation))
