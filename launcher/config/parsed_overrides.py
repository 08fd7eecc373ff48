"""Words of a command line to Hydra's overrides, and every fault in how they are written."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from launcher.common import redaction
from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, ProblemsFound, fail, first_line, shown
from launcher.config import override_text, recipe_files, slips
from launcher.config.collection import ALL_RECIPES, GROUPS, clusters
from launcher.config.override_text import REMEDY_SYNTAX, text_of

SEARCH_PATH = "hydra.searchpath"
_CHOICE = re.compile(r"(\+{0,2}recipes=)(.*)", re.S)


def parse(overrides: Sequence[str]) -> list[Override]:
    """Return overrides as Hydra reads them.

    Raises:
        ProblemsFound: Every override that is not written as one, or that this program does not support.
    """
    parser, parsed = OverridesParser.create(), []
    words, problems = slips.joined(overrides)
    for text in words:
        try:
            parsed.append(_read(parser, text))
        except ProblemsFound as error:
            problems += error.problems
        else:
            problems += _faults(parsed[-1])
    if problems:
        raise ProblemsFound(tuple(problems))
    return parsed


def search_path(overrides: Sequence[str]) -> list[Path]:
    """Return the folders that `hydra.searchpath` adds among overrides.

    Raises:
        ProblemsFound: It is not a list of folders, or one does not exist.
    """
    parsed = parse([text for text in overrides if text.lstrip("+").startswith("hydra.searchpath=")])
    return [Path(folder) for override in parsed for folder in override_text.folders(override)]


def is_choice(override: Override) -> bool:
    """Tell an override that chooses a file (`cluster=k8s`) from one that sets a value."""
    return override.key_or_group in GROUPS or "/" in override.key_or_group


def _read(parser: OverridesParser, text: str) -> Override:
    if problem := override_text.unreadable(text):
        raise ProblemsFound((problem,))
    try:
        override = parser.parse_override(text)
    except (HydraException, RecursionError) as error:
        message = first_line(error) if "=" in text and shown(text) == text else "is not written as an override"
        remedy = slips.remedy(text) or REMEDY_SYNTAX
        raise fail("E001", shown(text), message, remedy=remedy) from error
    except ValueError as error:  # of a number that Python does not convert
        raise fail("E001", shown(text), override_text.TOO_LONG_A_NUMBER) from error
    override.key_or_group = _placed(override.key_or_group)
    redaction.learn(override.value() if override.value_type else None, override.key_or_group)
    return override


def _faults(override: Override) -> Iterator[Problem]:
    """Yield the faults of a single override, and convert the keys in its value to text."""
    text = text_of(override)
    if problem := override_text.respelled(override):
        yield problem
    if problem := override_text.hydra_fault(override) if override.is_hydra_override() else _key_problem(override):
        yield problem
    if override.is_sweep_override():
        yield Problem("E002", text, "sweeps over several values", remedy="add --multirun, or quote the value")


def _placed(key: str) -> str:
    """Return the path of a key: the published `training_cfg` is a part of the recipe."""
    return f"recipes.{key}" if key.partition(".")[0] == "training_cfg" else key


def _key_problem(override: Override) -> Problem | None:
    """Return the fault of the key of an override, or with the choice it makes, before any file is read."""
    key, where = override.key_or_group, text_of(override)
    if not key:
        return Problem("E001", where, "names no key", remedy=REMEDY_SYNTAX)
    if key in GROUPS and override.is_delete():
        return Problem("E005", key, "cannot be removed: a launch has one", where=where)
    if key in GROUPS and not isinstance(override.value(), str):
        remedy = ALL_RECIPES if key == "recipes" else f"{key}=NAME, NAME one of {', '.join(clusters())}"
        return Problem("E005", key, "must name one", remedy=remedy, where=where)
    if key in GROUPS and override.package is not None:
        return Problem("E005", key, "must be chosen without a package: leave out the @", where=where)
    return None


def spelled(overrides: Sequence[str], cwd: Path) -> tuple[str, ...]:
    """Return overrides with quotes around the name of each recipe that Hydra's grammar would read in another way.

    Args:
        overrides: As typed.
        cwd: Folder that relative recipe files are looked up in.
    """
    return tuple(_spelled(text, overrides, cwd) for text in overrides)


def _spelled(text: str, overrides: Sequence[str], cwd: Path) -> str:
    found = _CHOICE.fullmatch(text)
    if found is None or not found[2] or recipe_files.PLAIN.fullmatch(found[2]) or override_text.unreadable(text):
        return text
    name = found[2]
    file = recipe_files.existing(name, cwd) or recipe_files.in_folders(name, _search_path(overrides))
    is_literal = file is not None or not _is_readable(text)
    return f"{found[1]}{override_text.quoted(found[2])}" if is_literal else text


def _search_path(overrides: Sequence[str]) -> list[str]:
    try:
        return list(map(str, (COLLECTION, *search_path(overrides))))
    except ProblemsFound:  # the composition reports it, among others
        return [str(COLLECTION)]


def _is_readable(text: str) -> bool:
    try:
        OverridesParser.create().parse_override(text)
    except (HydraException, RecursionError, ValueError):
        return False
    return True
