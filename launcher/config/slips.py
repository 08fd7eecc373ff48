"""Command lines that are nearly overrides, with the probable intention: `recipes = llama`, `--dry-run`."""

import re
from collections.abc import Sequence

from launcher.common.problems import Problem, shown
from launcher.common.secret_names import names_secret
from launcher.common.suggestions import nearest
from launcher.config.collection import ALL_RECIPES, clusters, recipe_names

_DOTTED = re.compile(r"\w+(\.\w+)+")
_PLAIN = re.compile(r"[\w./@:+-]+")


def joined(words: Sequence[str]) -> tuple[list[str], list[Problem]]:
    """Return overrides with those put together that spaces have parted, and a Problem for each of these."""
    if all(not _is_bare(word) for word in words):
        return list(words), []
    rest, found, problems = list(words), [], []
    while rest:
        count = _parted(rest)
        found.append(_joined(rest[:count]) if count > 1 else rest[0])
        if count > 1:
            problems.append(_problem(rest[:count]))
        rest = rest[count:]
    return found, problems


def _is_bare(word: str) -> bool:
    return word.startswith("=") or ("=" not in word and not word.startswith(("~", "-")))


def _parted(words: Sequence[str]) -> int:
    """Return how many words at the start of `words` are one override."""
    first, second, third = (*words[:3], "", "")[:3]
    if _is_bare(first) and not first.startswith("=") and second.startswith("="):
        return _num_to_value(second, third)
    if not second or not _is_bare(second) or second.startswith("="):
        return 1
    is_open = first.endswith("=") and first.count("=") == 1
    return 2 if is_open or (_is_key(first.removesuffix(":")) and not _is_key(second)) else 1


def _num_to_value(second: str, third: str) -> int:
    """Return how many words a key and its value are: `key =value`, `key = value`, or a key alone."""
    if second != "=":
        return 2
    return 3 if third else 1


def _is_key(word: str) -> bool:
    return word in _top_level() or _DOTTED.fullmatch(word) is not None or names_secret(word)


def _joined(words: Sequence[str]) -> str:
    first, last = words[0].rstrip("=:"), words[-1].removeprefix("=")
    return f"{first}={last if _PLAIN.fullmatch(last) else repr(last)}"


def _problem(words: Sequence[str]) -> Problem:
    is_spaced = any("=" in word for word in words)
    absent = "has a : in place of its =" if words[0].endswith(":") else "lacks a = between key and value"
    message = "has a space before or after its =" if is_spaced else absent
    text = shown(_joined(words))
    quoted = f'"{text}"' if "'" in text else text
    return Problem("E001", text.partition("=")[0], message, remedy=quoted)


def remedy(word: str) -> str | None:
    """Return the probable intention of a word that is not an override; None if unknown."""
    key, colon, _ = word.partition(":")
    if colon and _is_key(key):
        return f"{key}=…, with = in place of the colon"
    if word in _switches():
        return f"{word}=true"
    if word in clusters():
        return f"cluster={word}"
    if word == "recipes":
        return ALL_RECIPES
    if word.endswith((".yaml", ".yml")):
        return f"recipes={word}"
    names = [name for name in recipe_names() if word in (name, name.rpartition("/")[2])]
    return f"recipes={names[0]}" if names else None


def of_flags(words: Sequence[str]) -> tuple[Problem, ...]:
    """Return a Problem for each flag that is a key of a launch, as `--recipes llama` or `--dry-run`."""
    found = [_flag(word, after) for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("-")]
    return tuple(problem for problem in found if problem)


def _flag(word: str, after: str) -> Problem | None:
    name, equals, value = word.lstrip("-").partition("=")
    key = _key_of(name)
    if key is None:
        return None
    if not equals:
        is_switch = key in _switches()
        value = "true" if is_switch else after if re.match("[^=-]", after) and _is_bare(after) else "…"
    text = shown(f"{key}={value}")
    message = "is not a flag: a key is set by key=value"
    return Problem("E801", word.partition("=")[0], message, remedy=text)


def _key_of(name: str) -> str | None:
    """Return the key that a flag's name spells; None for Hydra's own flags and for words that resemble no key."""
    from hydra._internal.utils import get_args_parser  # 0.2 s, which a command without a faulty flag does without

    key = name.replace("-", "_")
    if key in _top_level() or _DOTTED.fullmatch(key):
        return key
    flags = [option.lstrip("-") for action in get_args_parser()._actions for option in action.option_strings]
    is_flag = any(flag.startswith(name) for flag in flags)  # argparse takes the beginning of one for it
    near = [] if is_flag else nearest(key, _top_level(), count=1, cutoff=0.8)
    return near[0] if near else None


def _top_level() -> list[str]:
    from launcher.model.recipe import (
        Launch,  # its models take 0.1 s to build, which an override that is one does without
    )
    from launcher.model.validation import field_names

    return field_names(Launch)


def _switches() -> list[str]:
    from launcher.model.recipe import Launch  # as above

    return [name for name, info in Launch.model_fields.items() if info.annotation is bool]
