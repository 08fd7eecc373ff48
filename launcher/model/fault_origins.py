"""Faults of a configuration with the origin of each faulty value, and the place where an unknown key belongs."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.common.problems import Problem
from launcher.model.backend_registry import descriptions
from launcher.model.composition import Composition
from launcher.model.config_tree import get, leaves, prefixes, targets
from launcher.model.recipe import RecipeBase
from launcher.model.validation import field_names, is_field

_NO_TEXT = re.compile(r"true|false|null|[-+.\de]{1,8}", re.I)
"""A value that cannot be a secret, whatever its name."""
_OF_SIZE = re.compile(r"recipes\.(scale_config\.[^.]+\.)?")


def with_origin(composition: Composition, problems: list[Problem]) -> tuple[Problem, ...]:
    """Return faults with the origin of each faulty value, and the place where an unknown key belongs.

    A value that only refers to a faulty one is omitted: the fault is reported there.
    """
    faulty = {tuple(problem.path.split(".")) for problem in problems}
    own = (p for p in problems if p.code != "E102" or not _repeats(composition, p.path, faulty))
    located = [p if p.where else dataclasses.replace(p, where=_origin(composition, p)) for p in own]
    if any(p.code == "E101" for p in located):
        located = _with_places(composition, located)
    return tuple(located)


def _origin(composition: Composition, problem: Problem) -> str | None:
    """Return the origin of a faulty value; without the text of an unknown key, which may be a misspelt secret."""
    origin = composition.origin(problem.path)
    if origin is None or problem.code != "E101" or origin not in composition.explicit.values():
        return origin
    key, _, text = origin.partition("=")
    return origin if _NO_TEXT.fullmatch(text) else f"{key}=…"


def _repeats(composition: Composition, path: str, faulty: set[tuple[str, ...]]) -> bool:
    places = composition.sources.settings(path)
    written = places[-1].value if places else None
    if not isinstance(written, str) or "${" not in written:
        return False
    return not faulty.isdisjoint(targets(written, tuple(path.split("."))))


def _with_places(composition: Composition, problems: list[Problem]) -> list[Problem]:
    """Add to each unknown key the place where its name is known, else how to declare all unknown keys of the
    recipe."""
    known = _paths_by_name(composition.tree)
    placed = [_with_place(composition, known, p) if p.code == "E101" else p for p in problems]
    unread = [p for p in placed if p.code == "E101" and not p.remedy and p.path.startswith("recipes.")]
    declared = get(composition.tree, "recipes.extra_keys")
    keys = [*(declared if isinstance(declared, list) else ()), *(_OF_SIZE.sub("", p.path, count=1) for p in unread)]
    remedy = f"recipes.extra_keys=[{','.join(dict.fromkeys(map(str, keys)))}] if your training code reads "
    remedy += "it" if len(unread) == 1 else "them"
    return [dataclasses.replace(p, remedy=remedy) if p in unread else p for p in placed]


def _paths_by_name(tree: Mapping[str, Any]) -> dict[str, dict[str, None]]:
    """Return each name of a key to the paths that end in it, those of sizes left out."""
    known: dict[str, dict[str, None]] = {}
    for path, _ in leaves(tree):
        if "scale_config" not in path:
            for prefix in prefixes(path):
                known.setdefault(prefix.rpartition(".")[2], {})[prefix] = None
    return known


def _clusters_with(path: str) -> list[str]:
    """Return the clusters whose settings have a key."""
    section, _, key = path.partition(".")
    if section != "cluster":
        return []
    return [each.choice for each in descriptions() if is_field(each.options(), key)]


def _with_place(composition: Composition, known: Mapping[str, Iterable[str]], problem: Problem) -> Problem:
    """Add the place where the name of an unknown key is known: `learning_rate=…` without its long path."""
    unknown = problem.path
    if others := _clusters_with(unknown):
        return dataclasses.replace(problem, remedy=f"only with cluster={' or cluster='.join(others)}")
    places = _known_places(known, unknown)
    if not places:
        return problem
    inside = [leaf for leaf, _ in leaves(get(composition.tree, unknown), unknown)]
    whole = inside[0] if len(inside) == 1 else unknown  # trainer.num_nodes=2 makes the key trainer
    rest = whole.removeprefix(unknown)
    remedy = f"did you mean {' or '.join(f'{place}{rest}' for place in places[:3])}?"
    return dataclasses.replace(problem, path=whole, remedy=remedy)


def _known_places(known: Mapping[str, Iterable[str]], unknown: str) -> list[str]:
    """Return the other paths that end in the same name as an unknown key."""
    name = unknown.rpartition(".")[2]
    places = [p for p in known.get(name, ()) if p != unknown and not p.startswith(f"{unknown}.") and p != name]
    if not places and name == unknown and name in field_names(RecipeBase):
        return [f"recipes.{name}"]
    return places
