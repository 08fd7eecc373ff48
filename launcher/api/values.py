"""Values of Python as overrides of a command line.

A plan keeps its overrides as text, as a bundle does, so that both can be compiled again.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.common.problems import Problem, ProblemsFound, fail, raise_any
from launcher.common.texts import object_text
from launcher.config.collection import GROUPS
from launcher.config.overrides import top_level, written

Overrides = Mapping[str, Any] | Iterable[str]
"""Values by their keys, or overrides as on the command line."""
_KEY = re.compile(r"[^\W\d][\w-]*(?:[./@](?:[^\W\d][\w-]*|0|[1-9]\d*))*", re.A)
"""Source: Hydra, OverrideLexer.g4: ID, and INT_UNSIGNED after the first dot."""
_PLAIN_INNER_KEY = re.compile(r"(?ai)(?!(?:null|true|false|-?nan|-?inf)\Z)(?:-*[a-z_/][\w./-]*|0|[1-9]\d{0,17})")
"""A key within a value that needs no escapes, and that the grammar need not be asked about."""
_ESCAPED = re.compile(r"[\\()\[\]{}:=, \t]")
"""Source: Hydra, OverrideLexer.g4: ESC. Keys have no quotes."""
_RECIPE = "recipes"
_NAMED_LIKE_RECIPE = "training_config"
"""A key of the top level that only repeats the recipe's name; a user who names it means the recipe's section."""
_VALUES = "None, bool, int, float, str, paths, NumPy's numbers and arrays, and lists and mappings of these"
_KEYS = "words of letters, digits, '_' and '-' that start with no digit or '-', or numbers, with dots between"
_INNER_KEYS = r"ASCII letters, digits, blanks and _-./+$%*@?|\()[]{}:=, and numbers in their shortest form"


def words(overrides: Overrides) -> list[str]:
    """Return overrides of a command line that set values; text in Hydra's grammar is unchanged.

    A key of a mapping starts at the recipe, unless its first word is a key of the top level (`cluster`, `container`,
    `env_vars`, `dry_run` …). Its value is set whether the key exists or not (`++`); a key that no program reads is
    refused later, as on the command line.

    Raises:
        ProblemsFound: Every key and value that no override can state (E001).
    """
    found, unstated = read(overrides)
    raise_any(unstated)
    return found


def read(overrides: Overrides) -> tuple[list[str], list[Problem]]:
    """Return what `words` does, and the Problems of keys within values, which the words lack.

    Raises:
        ProblemsFound: Every other key and value that no override can state (E001), and those keys.
    """
    if isinstance(overrides, Mapping):
        return _of_mapping(overrides)
    return texts(overrides, "a list of overrides, or in a mapping"), []


def texts(given: object, allowed: str) -> list[str]:
    """Return words `key=value` of a list, which `allowed` names for people.

    Raises:
        ProblemsFound: It is not a list of texts (E001).
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        path = given if isinstance(given, str) else object_text(given)
        raise fail("E001", path, f"must be in {allowed}")
    found: list[str] = _items(given)
    raise_any(
        Problem("E001", object_text(each), "must be a text: key=value") for each in found if not isinstance(each, str)
    )
    return found


def _of_mapping(overrides: Mapping[str, Any]) -> tuple[list[str], list[Problem]]:
    found, problems, unstated = [], list[Problem](), list[object]()
    for key, value in _items(overrides):
        path = key if isinstance(key, str) else object_text(key)
        inner: list[object] = []
        try:
            found.append(_word(key, value, inner))
        except RecursionError:
            problems.append(Problem("E001", path, "contains itself, or is nested too deep", allowed=_VALUES))
        except _Unwritable as error:
            problems.append(Problem("E001", path, error.message, value=error.value, allowed=error.allowed))
        except Exception as error:  # of another program's class
            message = f"cannot be read: {type(error).__name__}: {error}"
            problems.append(Problem("E001", path, message, value=object_text(value), allowed=_VALUES))
        message = "has a key that no override can state"
        problems += [Problem("E001", path, message, object_text(each), _INNER_KEYS) for each in inner]
        unstated += inner
    if len(problems) > len(unstated):  # without all of a value, other values may seem wrong
        raise ProblemsFound(tuple(problems))
    return found, problems


def _items(overrides: Overrides) -> list[Any]:
    try:
        return list(overrides.items() if isinstance(overrides, Mapping) else overrides)
    except Exception as error:  # of another program's class
        raise fail("E001", object_text(overrides), f"cannot be read: {type(error).__name__}: {error}") from error


class _Unwritable(Exception):
    def __init__(self, message: str, value: object, allowed: str):
        super().__init__(message)
        self.message, self.value, self.allowed = message, object_text(value), allowed


def _word(key: object, value: Any, unstated: list[object]) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise _Unwritable("is not a key", key, _KEYS)
    if key in GROUPS:  # the choice of a file, not a value
        return f"{key}={_text(value, unstated)}"
    if "/" in key:
        return f"+{key}={_text(value, unstated)}"
    return f"++{_placed(key)}={_text(value, unstated)}"


def _placed(key: str) -> str:
    first = key.partition(".")[0]
    if first in (_RECIPE, *GROUPS, "hydra") or (first in top_level() and first != _NAMED_LIKE_RECIPE):
        return key
    return f"{_RECIPE}.{key}"


def _text(value: Any, unstated: list[object]) -> str:
    """Return a value in Hydra's grammar, without its keys that no override can state, which are added to a list.

    Source: Hydra, Override grammar, Basic examples: null, true, false, numbers, quoted strings, lists, dictionaries.
    """
    if hasattr(value, "tolist") and not isinstance(value, memoryview):  # a number or an array of NumPy
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int):
        return _digits(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return written(str.__str__(value))  # an enumeration's own text is another
    if isinstance(value, Mapping):
        named = [(key, _inner_key(key), each) for key, each in value.items()]
        unstated += [key for key, word, _ in named if word is None]
        items = [(word, _text(each, unstated)) for _, word, each in named if word is not None]
        if len(dict(items)) < len(items):
            raise _Unwritable("has two keys that an override states alike", list(value), "each key once")
        return "{" + ",".join(map(":".join, items)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(each, unstated) for each in value) + "]"
    raise _Unwritable("is not a value that a configuration has", value, _VALUES)


def _digits(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:  # more digits than Python converts; an override has a bound of its own
        from decimal import Decimal

        return str(Decimal(value))


def _inner_key(key: object) -> str | None:
    """Return a key of a mapping in Hydra's grammar; None if that has no such key."""
    text = str(key) if isinstance(key, int) and not isinstance(key, bool) else key
    if isinstance(text, str):
        text = str.__str__(text)
        if _PLAIN_INNER_KEY.fullmatch(text):
            return text
        from launcher.config import hydra_overrides  # 0.2 s, which keys without escapes do without

        if hydra_overrides.key_of(word := _ESCAPED.sub(r"\\\g<0>", text)) == text:
            return word
    return None
