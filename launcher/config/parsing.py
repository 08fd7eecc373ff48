"""The words of a command line to parsed overrides, with every fault in them."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.common import redaction
from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, ProblemsFound, gathering, raise_any, shown
from launcher.common.texts import shell_word
from launcher.config.collection import ALL_RECIPES, GROUPS, PLAIN_NAME, clusters, recipe_file, recipe_in
from launcher.config.overrides import (
    REMEDY_SYNTAX,
    SEARCH_PATH,
    Override,
    folder,
    is_bare,
    is_key,
    plain,
    quoted,
    unreadable,
)

_CHOICE = re.compile(r"(\+{0,2}recipes=)(.*)", re.S)
_BARE_VALUE = re.compile(r"[\w./@:+-]+")
"""A value that needs no quotes in a suggestion."""
_ITEMS = re.compile(r"[^()\[\]{}'\"…]+")
"""Values after commas, which are a list between brackets."""
_REHEARSE, _MOST_RANKS = "rehearse", 1024
_IS_ELASTIC = "recipes.elastic_policy.is_elastic"


def parse(words: Sequence[str]) -> list[Override]:
    """Return overrides as Hydra understands them, with those that `rehearse` stands for.

    Raises:
        ProblemsFound: Every override that is not written as one, or that this program does not support.
    """
    parsed, problems = read(words)
    raise_any(problems)
    return parsed


def read(words: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    """Return what `parse` returns, without the overrides that have a fault; and every fault."""
    parsed: list[Override] = []
    texts, problems = joined(words)
    for text in texts:
        with gathering(problems):
            override, faults = _read(text)
            raise_any((*faults, *_faults(override)))
            parsed.append(override)
    return _completed(parsed), problems


def joined(words: Sequence[str]) -> tuple[list[str], list[Problem]]:
    """Return overrides with those put together that spaces have parted, and a Problem for each of these."""
    if all(not is_bare(word) for word in words):
        return list(words), []
    rest, found, problems = list(words), [], []
    while rest:
        count = _parted(rest)
        found.append(_joined(rest[:count]) if count > 1 else rest[0])
        if count > 1:
            problems.append(_parted_problem(rest[:count]))
        rest = rest[count:]
    return found, problems


def _parted(words: Sequence[str]) -> int:
    """Return how many words at the start of `words` are one override."""
    first, second, third = (*words[:3], "", "")[:3]
    if is_bare(first) and not first.startswith("=") and second.startswith("="):
        return 2 if second != "=" else 3 if third else 1  # `key =value`, `key = value`, or a key alone
    if not second or not is_bare(second) or second.startswith("="):
        return 1
    is_open = first.endswith("=") and first.count("=") == 1
    return 2 if is_open or (is_key(first.removesuffix(":")) and not is_key(second)) else 1


def _joined(words: Sequence[str]) -> str:
    first, last = words[0].rstrip("=:"), words[-1].removeprefix("=")
    return f"{first}={last if _BARE_VALUE.fullmatch(last) else quoted(last)}"


def _parted_problem(words: Sequence[str]) -> Problem:
    """Return the fault of words that are one override: where its = is missing or stands alone."""
    is_spaced = any("=" in word for word in words)
    absent = "has a : in place of its =" if words[0].endswith(":") else "lacks a = between key and value"
    message = "has a space before or after its =" if is_spaced else absent
    text = shown(_joined(words))
    return Problem("E001", text.partition("=")[0], message, remedy=shell_word(text))


def _completed(parsed: list[Override]) -> list[Override]:
    """Return overrides with those that a number of ranks stands for; `rehearse=true` beside its keys is left out."""
    ranks: object = None
    surplus: list[Override] = []  # rehearse=true, where keys below it say the same
    pending: list[Override] = []
    has_keys = False
    for each in parsed:
        key, value = each.key, None if each.is_delete else each.value
        if key.startswith(f"{_REHEARSE}.") or (key == _REHEARSE and isinstance(value, dict)):
            has_keys = True
            if key == f"{_REHEARSE}.ranks":
                ranks = value
            elif isinstance(value, dict):
                ranks = value.get("ranks", ranks)
        elif key == _REHEARSE and value is True:
            pending.append(each)
        elif key == _REHEARSE:  # undoes what came before
            ranks, has_keys, pending = None, False, []
        if has_keys:
            surplus, pending = [*surplus, *pending], []
    kept = [each for each in parsed if not any(each is other for other in surplus)]
    # Anything but a number of ranks is reported where it is typed, and ranks of an elastic job by a rule.
    is_number = isinstance(ranks, int) and not isinstance(ranks, bool) and 0 < ranks <= _MOST_RANKS
    if not is_number or any(each.key == _IS_ELASTIC and each.value is True for each in parsed):
        return kept
    texts = "recipes.trainer.num_nodes=1", f"recipes.trainer.devices={ranks}"
    return [*kept, *filter(None, map(plain, texts))]


def search_path(words: Sequence[str]) -> list[Path]:
    """Return the folders that `hydra.searchpath` adds among overrides.

    Raises:
        ProblemsFound: It is not a list of folders, or one does not exist.
    """
    parsed = parse([text for text in words if text.lstrip("+").startswith(f"{SEARCH_PATH}=")])
    return [Path(folder) for override in parsed for folder in override.folders]


def _read(text: str) -> tuple[Override, tuple[Problem, ...]]:
    if override := plain(text):
        redaction.learn(override.value, override.key)
        return override, ()
    if problem := unreadable(text):
        raise ProblemsFound((problem,))
    from launcher.config import hydra_overrides  # 0.2 s, which a plain command line does without

    return hydra_overrides.read(text)


def _faults(override: Override) -> Iterator[Problem]:
    """Yield the faults of a single override."""
    if problem := _hydra_problem(override) if override.is_hydra else _key_problem(override):
        yield problem
    if override.is_sweep:
        forms = ["one of them"] if override.is_choice else _in_one_value(override)
        remedy = "; ".join((*forms, "recipes run --multirun launches a job for each"))
        yield Problem("E002", override.shown, "sweeps over several values", remedy=remedy)


def _in_one_value(override: Override) -> Iterator[str]:
    """Yield the forms of one value for values after commas, as far as the key takes them."""
    key, _, value = override.shown.partition("=")
    if _ITEMS.fullmatch(value):
        from launcher.config.declared import takes  # imports every family, for a faulty command line alone

        has_list, has_text = takes(override.key)
        if has_list:
            yield f"{shell_word(f'{key}=[{value}]')} is a list"
        if has_text:
            yield f"{key}='\"{value}\"' is a text"


def _hydra_problem(override: Override) -> Problem | None:
    """Return the fault of an override of Hydra's own settings, of which only the search path is ours."""
    key, value, text = override.key, override.value, override.shown
    if key != SEARCH_PATH or override.package is not None:
        return Problem("E009", key, "is a Hydra setting that no launch reads", allowed=SEARCH_PATH, where=text)
    if not isinstance(value, list) or not all(isinstance(place, str) for place in value):
        return Problem(
            "E009", key, "must be a list of folders", value=value, remedy=f"{key}=[/path/to/folder]", where=text
        )
    absent = [place for place in value if not os.path.isdir(folder(place))]
    return Problem("E009", key, "no such folder", value=", ".join(absent), where=text) if absent else None


def _key_problem(override: Override) -> Problem | None:
    """Return the fault of the key of an override, or with the choice it makes, before any file is read."""
    key, where = override.key, override.shown
    if not key:
        return Problem("E001", where, "names no key", remedy=REMEDY_SYNTAX)
    if key in GROUPS and override.is_delete:
        return Problem("E005", key, "cannot be removed: a launch has one", where=where)
    if key in GROUPS and not isinstance(override.value, str):
        remedy = ALL_RECIPES if key == "recipes" else f"{key}=NAME, NAME one of {', '.join(clusters())}"
        return Problem("E005", key, "must name one", remedy=remedy, where=where)
    if key in GROUPS and override.package is not None:
        return Problem("E005", key, "must be chosen without a package: leave out the @", where=where)
    return None


def spelled(words: Sequence[str], cwd: Path) -> tuple[str, ...]:
    """Return overrides with quotes around the name of each recipe that Hydra's grammar would read in another way.

    Args:
        words: Overrides, as typed.
        cwd: Folder that relative recipe files are looked up in.
    """
    return tuple(_spelled(text, words, cwd) for text in words)


def _spelled(text: str, words: Sequence[str], cwd: Path) -> str:
    found = _CHOICE.fullmatch(text)
    if found is None or not found[2] or PLAIN_NAME.fullmatch(found[2]) or unreadable(text):
        return text
    name, folders = found[2], _search_path(words)
    if not (recipe_file(name, cwd) or recipe_in(name, folders)):
        from launcher.config import hydra_overrides  # as above

        if hydra_overrides.parsed(text):
            return text
    return f"{found[1]}{quoted(name)}"


def _search_path(words: Sequence[str]) -> list[str]:
    try:
        return list(map(str, (COLLECTION, *search_path(words))))
    except ProblemsFound:  # the composition reports it, among others
        return [str(COLLECTION)]
