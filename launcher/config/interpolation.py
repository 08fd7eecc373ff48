"""References `${…}`, checked before they are resolved: OmegaConf follows each reference again wherever it appears,
so that a dozen lines that each repeat the previous one would exhaust the memory."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from launcher.common.problems import Problem
from launcher.common.secret_names import is_secret
from launcher.common.texts import start_of
from launcher.model.composition import RUN_NAME
from launcher.model.config_tree import ABSENT, child, targets

FEW = 16
"""Number of references that need no check: in any combination they repeat a value some 250 times at most."""

_MOST = 100_000
"""Values of a configuration with references written out, a hundred characters of text counted as one."""

_SCRIPT_NAME, _EXPERIMENT = "recipes.training_cfg.run.name", "recipes.training_config.mlflow.experiment_name"
NAMES = RUN_NAME, _SCRIPT_NAME, _EXPERIMENT
"""Keys that hold a name of the job, and the one that does so for many jobs."""


ARITHMETIC: Mapping[str, Callable[..., int]] = {
    "multiply": lambda a, b: a * b,
    "add": lambda *numbers: sum(numbers),
    "divide_ceil": lambda a, b: -(-a // b),
    "divide_floor": lambda a, b: a // b,
}
"""Functions of numbers that a reference may call, as `${multiply:2,3}`."""
_BRACE = re.compile(r"(\\*)\$\{|[{}]")
_UNQUOTED = re.compile(r"(?:[\w./:-]|\\?\$\{[\w.]+\})+", re.A)
"""A text with references that an override has without quotes."""
_NAMES = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)*", re.A | re.I)
"""A path that an override can set: without items of lists."""
_SHOWN = 60
"""Characters of a reference that a Problem repeats."""


class _Fault(Exception):
    def __init__(self, path: str, message: str, **details: Any):
        super().__init__(message)
        self.problem = Problem("E007", path, message, **details)


def faults(tree: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a Problem for the first reference that leads back to itself or repeats too much, if there is one.

    Args:
        tree: The full configuration, unresolved.
    """
    try:
        _size(tree, (), tree, {})
    except _Fault as fault:
        yield fault.problem
    except RecursionError:
        yield Problem("E007", "recipes", "refers to another value through too many others")


def _size(value: Any, path: tuple[str, ...], tree: Any, known: dict[tuple[str, ...], int | None]) -> int:
    """Return how many values one becomes when every reference in it is written out."""
    if path in known:
        if (found := known[path]) is None:
            raise _Fault(".".join(path), "leads back to itself", value=value if isinstance(value, str) else None)
        return found
    known[path] = None
    total = 1 + (len(value) // 100 if isinstance(value, str) else 0)
    for inner, below in _inside(value, path, tree):
        total += _size(inner, below, tree, known)
        if total > _MOST:
            message = "refers to values that repeat each other"
            allowed = f"{_MOST} values in all, each written out wherever it is referred to"
            raise _Fault(".".join(path), message, allowed=allowed)
    known[path] = total
    return total


def _inside(value: Any, path: tuple[str, ...], tree: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield the values that one holds or refers to, each with its path."""
    if isinstance(value, Mapping):
        yield from ((child, (*path, str(key))) for key, child in value.items())
    elif isinstance(value, list):
        yield from ((child, (*path, str(i))) for i, child in enumerate(value))
    elif isinstance(value, str) and "${" in value:
        yield from (_target(target, tree) for target in targets(value, path))


def unreadable(path: str, text: str) -> Problem | None:
    """Return why a reference in the text at `path` cannot be read; None if each can."""
    if "${" not in text:
        return None
    from omegaconf import OmegaConf  # only a faulty value pays for it
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.create([text])
    except (OmegaConfBaseException, RecursionError):
        if reference := _unclosed(text):
            message, remedy = "has a reference that is not closed", "close it with }"
            if not is_secret(path):
                message += f": {start_of(reference, _SHOWN)}"
                remedy += f", or {as_text(path, text, reference)}"
            return Problem("E003", path, message, value=text, remedy=remedy)
        message, remedy = "has a reference that cannot be read", "\\${ for a literal ${"
        allowed = "${key.of.the.configuration} or ${function:argument}"
        return Problem("E003", path, message, value=text, allowed=allowed, remedy=remedy)
    return None


def _unclosed(text: str) -> str | None:
    """Return a text from its first reference that is not closed."""
    begun: list[int] = []
    for found in _BRACE.finditer(text):
        if found[0] == "}":
            begun = begun[:-1]
        elif found[0] == "{":
            begun += [found.start()] if begun else []
        elif len(found[1]) % 2 == 0:  # else the $ is escaped
            begun.append(found.end() - 2)
    return text[begun[0] :] if begun else None


def as_text(path: str, text: str, reference: str) -> str | None:
    """Return how to write a text that only looks like a reference; None if that is unclear.

    Args:
        path: Of its key.
        reference: The part of it from the `${`.
    """
    if reference not in text:
        return None
    literal = reference.replace("${", "\\${")
    if is_secret(path) or not _NAMES.fullmatch(path) or "'" in text or '"' in text:
        return f"{literal} is the text itself"
    escaped = text.replace(reference, literal)
    written = escaped if _UNQUOTED.fullmatch(escaped) else f'"{escaped}"'
    return f"'{path}={written}' for the text itself"


def absent(text: str, path: tuple[str, ...], tree: Mapping[str, Any]) -> str | None:
    """Return the first key that the text at `path` refers to and the tree does not have."""
    for target in targets(text, path):
        node: Any = tree
        for key in target:
            if isinstance(node, str):
                break  # it leads on through another reference
            if (node := child(node, key)) is ABSENT:
                return ".".join(target)
    return None


def leads_back(path: tuple[str, ...], tree: Mapping[str, Any]) -> bool:
    """Return whether what the value at `path` refers to refers, through any others, to that value."""
    seen: set[tuple[str, ...]] = set()
    ahead = [path]
    while ahead:
        here = ahead.pop()
        value, _ = _target(here, tree)
        further = set(targets(value, here)) if isinstance(value, str) else set()
        if path in further:
            return True
        ahead += further - seen
        seen |= further
    return False


def _target(path: tuple[str, ...], tree: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the value at a path, or the text that blocks the way to it; and where that is."""
    value = tree
    for i, key in enumerate(path):
        if (inside := child(value, key)) is ABSENT:
            return (value, path[:i]) if isinstance(value, str) else (None, path)
        value = inside
    return value, path


def job_names(found: Sequence[Any], written: Any, suffix: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the names that the job's replaces, and the values to set, so that references follow; both by path.

    An MLflow experiment keeps the stated name: it holds the runs of many jobs. A faulty name is unchanged.

    Args:
        found: The value of each of `NAMES`.
        written: run.name as it is written.
        suffix: End of the job's name.
    """
    from launcher.model.context import job_name  # it loads pydantic, which a listing of recipes does without

    name, script_name, experiment = found
    if not isinstance(name, str) or not name or "${" in name:  # the latter of an escaped reference
        return {}, {}
    is_script_name = isinstance(written, str) and "${" in written and script_name == name
    stated = dict.fromkeys((RUN_NAME, _SCRIPT_NAME) if is_script_name else (RUN_NAME,), name)
    named = dict.fromkeys(stated, job_name(name, suffix))
    return stated, named if experiment is None else {**named, _EXPERIMENT: experiment}
