"""The recipes of the catalogue that meet some conditions."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from launcher.api import values
from launcher.api.arguments import checked
from launcher.api.naming import folders
from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, fail, raise_any
from launcher.common.suggestions import did_you_mean
from launcher.config import catalogue
from launcher.config.catalogue import Entry

__all__ = ["Entry", "every", "recipes", "stamp"]

_MOST_NAMES = 30
"""Names that a Problem lists."""


class _Condition(NamedTuple):
    name: str
    value: str | None
    is_met: Callable[[Entry], bool]
    known: Callable[[Entry], Iterable[str | None]]

    def refuse_unmet(self, entries: Sequence[Entry]) -> None:
        if any(map(self.is_met, entries)):
            return
        names = sorted({word for entry in entries for word in self.known(entry) if word})
        allowed = ", ".join(names) if len(names) <= _MOST_NAMES else None
        remedy = did_you_mean(str(self.value), names) or "list all: recipes list"
        raise fail("E802", self.name, "no recipe matches", value=self.value, allowed=allowed, remedy=remedy)


def every(overrides: Sequence[str] = ()) -> list[Entry]:
    """Return the recipes of the collection, and of the folders that `hydra.searchpath` adds."""
    return [entry for folder in folders(overrides) for entry in catalogue.entries(folder)]


def stamp() -> tuple[int, int]:
    """Return what changes with every file of the collection: their number, and the newest of their times."""
    files = [path.stat() for path in COLLECTION.rglob("*.yaml")]
    return len(files), max(each.st_mtime_ns for each in files)


@checked("E802", has_texts=True)
def recipes(
    *words: str,
    family: str | None = None,
    model: str | None = None,
    technique: str | None = None,
    instance: str | None = None,
    elastic: bool | None = None,
    own: bool | None = None,
    overrides: Sequence[str] = (),
) -> tuple[Entry, ...]:
    """Return the recipes that meet every condition.

    Args:
        words: Parts of its name.
        family: Its folder, such as `llama`.
        model: Part of the model's name.
        technique: Such as `dpo`, or `sft_lora`.
        instance: An instance type, with or without `ml.`.
        elastic: Whether it has elastic sizes; None for both.
        own: Whether it is ours, and not of the published launcher; None for both.
        overrides: `hydra.searchpath`, which adds folders.

    Raises:
        ProblemsFound: No recipe meets one of the conditions, whatever the others, or one is of another type (E802).
    """
    raise_any(Problem("E802", "word", "must be a text", value=word) for word in words if not isinstance(word, str))
    instance_type = instance and f"ml.{instance.removeprefix('ml.')}"
    conditions = (
        *(_Condition("word", word, _has_word(word), _words) for word in words),
        _Condition("--family", family, lambda entry: entry.family == family, lambda entry: (entry.family,)),
        _Condition("--model", model, _has_model(model or ""), lambda entry: (entry.model,)),
        _Condition("--technique", technique, lambda entry: technique in _techniques(entry), _techniques),
        _Condition(
            "--instance",
            instance_type,
            lambda entry: instance_type in entry.instance_types,
            lambda entry: entry.instance_types,
        ),
    )
    given, found = [condition for condition in conditions if condition.value], every(values.words(overrides))
    for condition in given:
        condition.refuse_unmet(found)
    return tuple(
        entry
        for entry in found
        if all(condition.is_met(entry) for condition in given)
        and elastic in (None, entry.is_elastic)
        and own in (None, not entry.is_published)
    )


def _techniques(entry: Entry) -> set[str]:
    name = entry.technique or ""
    return {name, *name.split("_")} - {""}


def _has_model(model: str) -> Callable[[Entry], bool]:
    return lambda entry: any(model.lower() in name.lower() for name in (entry.model, entry.model_name_or_path))


def _has_word(word: str) -> Callable[[Entry], bool]:
    return lambda entry: word.lower() in entry.name.lower()


def _words(entry: Entry) -> list[str]:
    return entry.name.replace("/", "_").split("_")
