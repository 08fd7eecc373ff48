"""References `${…}`, checked before they are resolved: OmegaConf follows each reference again wherever it appears,
so that a dozen lines that each repeat the previous one would exhaust the memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from launcher.common.problems import Problem
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
    if not isinstance(name, str) or not name:
        return {}, {}
    is_script_name = isinstance(written, str) and "${" in written and script_name == name
    stated = dict.fromkeys((RUN_NAME, _SCRIPT_NAME) if is_script_name else (RUN_NAME,), name)
    named = dict.fromkeys(stated, job_name(name, suffix))
    return stated, named if experiment is None else {**named, _EXPERIMENT: experiment}
