"""An override of a command line: one parsed form, whether its text was plain or needed Hydra's grammar."""

import re
from dataclasses import dataclass
from typing import Any

from launcher.common.problems import shown
from launcher.config.collection import GROUPS

SEARCH_PATH = "hydra.searchpath"
_LONGEST_PLAIN = 1000
"""Characters of an override that is read here: too few to exceed any bound of `override_text`."""
_NAME = r"[A-Za-z_]\w*"
_PLAIN = re.compile(rf"(?P<sign>\+{{0,2}}|~)(?P<key>{_NAME}(?:\.(?:{_NAME}|0|[1-9]\d*))*)(?:=(?P<value>.*))?", re.A)
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.A)
_FLOAT = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?", re.A)
_QUOTED = re.compile(r"'([ -#%&(-\[\]-~]*)'")
"""A text in quotes, of characters that mean nothing else there."""
_WORD = re.compile(r"(?!(?:nan|inf)$)[A-Za-z_/][\w./:-]*", re.A | re.I)
_CONSTANTS = {"true": True, "false": False, "null": None}


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
    elif _INTEGER.fullmatch(word):
        value = int(word)
    elif _FLOAT.fullmatch(word):
        value = float(word)
    elif quoted := _QUOTED.fullmatch(word):
        value = quoted[1]
    elif not _WORD.fullmatch(word):
        return None
    return Override(text, found["sign"], placed(found["key"]), value)
