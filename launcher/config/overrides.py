"""An override: its parsed form, what may be one, and what a word that is not one was probably meant to be.

Most overrides are plain and are read here; `hydra_overrides` reads the others by Hydra's grammar.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from launcher.common.problems import Problem, shown
from launcher.common.secret_names import names_secret
from launcher.common.suggestions import as_argument
from launcher.common.texts import start_of
from launcher.common.yaml_io import MAX_DEPTH
from launcher.config.collection import (
    ALL_RECIPES,
    GROUPS,
    PLAIN_NAME,
    clusters,
    recipe_names,
)

SEARCH_PATH = "hydra.searchpath"
_LONGEST_PLAIN = 1000
"""Characters of an override that is read here: too few to exceed a bound of `unreadable`."""
_NAME = r"[A-Za-z_]\w*"
_PLAIN = re.compile(rf"(?P<sign>\+{{0,2}}|~)(?P<key>{_NAME}(?:\.(?:{_NAME}|0|[1-9]\d*))*)(?:=(?P<value>.*))?", re.A)
INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.A)
_FLOAT = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?", re.A)
_QUOTED = re.compile(r"'([ -#%&(-\[\]-~]*)'")
"""A text in quotes, of characters that mean nothing else there."""
_WORD = re.compile(r"(?!(?:nan|inf)$)[A-Za-z_/][\w./:-]*", re.A | re.I)
_CONSTANTS = {"true": True, "false": False, "null": None}
DOTTED = re.compile(r"\w+(\.\w+)+")

REMEDY_SYNTAX = (
    "key=value sets a key, ~key removes one; quote values with spaces, commas or letters beyond ASCII: key='\"a, b\"'"
)
"""The remedy where an override is not written as one."""
_LONGEST = 1 << 16
"""Characters of an override. Longer values belong in a recipe's file, which takes 1 MiB."""

_MOST_PARTS = 2000
"""Separators outside quotes: Hydra's parser takes 0.3 s for so many, and the square of it for more."""

_SHORT = MAX_DEPTH
"""An override with at most this many characters cannot exceed any bound."""

_SHOWN = 60
"""Characters of an override that a Problem repeats when it refuses its length."""

_BEFORE_QUOTE = re.compile(r"(\\*)('|\Z)")
"""A quote of the text, or the one that closes it, with the backslashes before it."""
_PAIRS = {"[": "]", "{": "}", "(": ")"}
_OPENING, _CLOSING, _SEPARATORS = frozenset(_PAIRS), frozenset(_PAIRS.values()), frozenset("[{(,:")


@dataclass(frozen=True, slots=True, eq=False)
class Override:
    """One override, as typed and as understood.

    Args:
        text: As typed.
        sign: `+` and `++` before the key, `~` if it removes the key, or empty.
        key: The dotted path of a value, or the group of a choice; not removed of its package.
        value: Its value, whose keys are texts; None if it has none. Of a sweep, what the grammar makes of it.
        package: What follows an `@` in the key.
        is_sweep: Whether it sweeps over several values.
    """

    text: str
    sign: str
    key: str
    value: Any
    package: str | None = None
    is_sweep: bool = False

    @property
    def shown(self) -> str:
        """The override as it may be shown."""
        return shown(self.text)

    @property
    def is_delete(self) -> bool:
        """Whether it removes its key."""
        return self.sign == "~"

    @property
    def is_hydra(self) -> bool:
        """Whether it is one of Hydra's own settings."""
        return self.key.startswith(("hydra.", "hydra/"))

    @property
    def is_choice(self) -> bool:
        """Whether it chooses a file (`cluster=k8s`), and does not set a value."""
        return self.key in GROUPS or "/" in self.key

    @property
    def folders(self) -> list[str]:
        """The folders that it names, if it is one of the search path."""
        return [folder(place) for place in self.value]


def folder(place: str) -> str:
    """Return a folder of the search path without the scheme that Hydra allows before it."""
    return place.removeprefix("file://")


def typed_key(word: str) -> str:
    """Return what stands before the `=` of an override that sets a value, without its sign."""
    return word.lstrip("+").partition("=")[0]


def placed(key: str) -> str:
    """Return the path of a key: the published `training_cfg` is a part of the recipe."""
    return f"recipes.{key}" if key.partition(".")[0] == "training_cfg" else key


def plain(text: str) -> Override | None:
    """Return an override of the form `key=scalar` or `~key`; None if only Hydra's grammar can read it.

    Source: Hydra, Override grammar. A property test holds both to the same result.
    """
    found = _PLAIN.fullmatch(text) if len(text) <= _LONGEST_PLAIN else None
    if found is None or (found["sign"] == "~") != (found["value"] is None):
        return None
    word = found["value"]
    value: Any = word
    if word is None or word.lower() in _CONSTANTS:
        value = _CONSTANTS.get(word.lower()) if word else None
    elif INTEGER.fullmatch(word):
        value = int(word)
    elif _FLOAT.fullmatch(word):
        value = float(word)
    elif quoted := _QUOTED.fullmatch(word):
        value = quoted[1]
    elif not _WORD.fullmatch(word):
        return None
    return Override(text, found["sign"], placed(found["key"]), value)


def unreadable(text: str) -> Problem | None:
    """Return why an override must not reach Hydra's parser; None if it may."""
    try:
        text.encode()
    except UnicodeEncodeError:
        readable = text.encode("utf-8", "backslashreplace").decode()
        return Problem("E001", start_of(readable, _SHOWN), "is not valid UTF-8", allowed="text in UTF-8")
    if "\0" in text and "." not in text.partition("=")[0]:  # the name of a file: E324 is about the other keys
        return Problem("E001", start_of(shown(text.replace("\0", "\\0")), _SHOWN), "contains a NUL character")
    if len(text) <= _SHORT:
        return None
    if len(text) > _LONGEST:
        return _refused(text, f"has {len(text)} characters", f"at most {_LONGEST}; a recipe file takes more")
    depth, parts = _measured(text)
    if depth > MAX_DEPTH:
        return _refused(text, f"is nested {depth} levels deep", f"at most {MAX_DEPTH} levels")
    if parts > _MOST_PARTS:
        return _refused(text, f"has {parts} parts", f"at most {_MOST_PARTS}; a recipe file takes more")
    return None


def written(text: str) -> str:
    """Return a text as the value of an override: as it is where that is read as text, else in quotes."""
    return text if PLAIN_NAME.fullmatch(text) else quoted(text)


def quoted(text: str) -> str:
    """Return a text as the value of an override, whatever characters it has.

    Source: Hydra, Override grammar, Quoted values: a quote is escaped, and so are backslashes before one.
    """
    escaped = _BEFORE_QUOTE.sub(lambda found: found[1] * 2 + (r"\'" if found[2] else ""), text)
    return f"'{escaped}'"


def _measured(text: str) -> tuple[int, int]:
    """Return how deep an override nests and how many separators it has, both outside quotes."""
    depth = deepest = parts = 0
    for character in _unquoted(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        deepest, parts = max(deepest, depth), parts + (character in _SEPARATORS)
    return deepest, parts


def unclosed(text: str) -> str:
    """Return the brackets that a text lacks at its end; "" if others, or quotes, do not match."""
    open_ = ""
    if text.count("'") % 2 or text.count('"') % 2:
        return ""
    for character in _unquoted(text):
        if character in _OPENING:
            open_ += _PAIRS[character]
        elif character in _CLOSING:
            if not open_.endswith(character):
                return ""
            open_ = open_[:-1]
    return open_[::-1]


def _unquoted(text: str) -> Iterator[str]:
    """Yield the characters of a text that are neither in quotes nor escaped."""
    quote, is_escaped = "", False
    for character in text:
        if is_escaped:
            is_escaped = False
        elif character == "\\":
            is_escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            yield character


def _refused(text: str, message: str, allowed: str) -> Problem:
    return Problem("E001", start_of(shown(text), _SHOWN), message, allowed=allowed)


def is_bare(word: str) -> bool:
    """Return whether a word lacks a key or a `=`, so that another beside it may belong to it."""
    return word.startswith("=") or ("=" not in word and not word.startswith(("~", "-")))


def is_key(word: str) -> bool:
    """Return whether a word looks like a key of a recipe or of a launch."""
    return word in top_level() or DOTTED.fullmatch(word) is not None or names_secret(word)


def remedy_of(word: str) -> str | None:
    """Return the probable intention of a word that is not an override; None if unknown."""
    name, equals, value = word.partition("=")
    key, colon, _ = word.partition(":")
    if colon and "=" not in key and is_key(key):
        return f"{key}=…, with = in place of the colon"
    if word in switches():
        return f"{word}=true"
    if word in clusters():
        return f"cluster={word}"
    if word == "recipes":
        return ALL_RECIPES
    if word.endswith((".yaml", ".yml")):
        return f"recipes={word}"
    if equals and (remedy := _of_a_list(name, value)):
        return remedy
    if is_key(name.lstrip("+")) and not names_secret(name) and re.fullmatch(r"\[[^][{}\"']+\]", value):
        words = (item.strip() for item in value[1:-1].split(","))
        items = (
            item if re.fullmatch(r"\w[\w./-]*", item) else json.dumps(item, ensure_ascii=False) for item in words
        )
        return f"'{name}=[{', '.join(items)}]'"
    if value and is_key(name.lstrip("+")) and not re.search("[\"']", value):
        brackets = " for a text with brackets" if re.search(r"[][{}]", value) else ""
        if value.startswith(("[", "{")) and not _takes_text(name):
            return None
        return f"{name}='\"{'…' if shown(word) != word else value}\"'{brackets}"
    names = [name for name in recipe_names() if word in (name, name.rpartition("/")[2])]
    return f"recipes={names[0]}" if names else None


def _takes_text(name: str) -> bool:
    from launcher.config.declared import takes  # imports every family, for a faulty command line alone

    return takes(placed(name.lstrip("+"))).has_text


def _of_a_list(name: str, value: str) -> str | None:
    """Return the form of arguments or variables that are given as words: [--lr=3]; None if the key takes others."""
    if name.endswith("script_args") and value.startswith(("[", "-")):
        items = list(map(as_argument, value.strip("[] ").split(",")))
        return f"'{name}=[{', '.join(map(str, items)) if all(items) else '{--lr: 0.1}'}]'"
    if name.lstrip("+") == "env_vars" and value.startswith("["):
        return f"'{name}={{NAME: value}}'"
    return None


def top_level() -> list[str]:
    """Return the keys of the top level."""
    from launcher.model.launch import Launch  # its models take 0.1 s to build, which most launches do later
    from launcher.model.validation import field_names

    return field_names(Launch)


def switches() -> list[str]:
    """Return those that are true or false."""
    from launcher.model.launch import Launch  # as above

    return [name for name, info in Launch.model_fields.items() if info.annotation is bool]
