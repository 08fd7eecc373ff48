"""Faults of a configuration with the origin of each faulty value, and the place where an unknown key belongs."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.common.problems import Problem
from launcher.common.suggestions import question
from launcher.model.backend_registry import descriptions
from launcher.model.composition import Composition
from launcher.model.config_tree import get, leaves, prefixes
from launcher.model.recipe import RecipeBase
from launcher.model.validation import field_names, is_field

_NO_TEXT = re.compile(r"true|false|null|[-+.\de]{1,8}", re.I)
"""A value that cannot be a secret, whatever its name."""
_OF_SIZE = re.compile(r"recipes\.(scale_config\.[^.]+\.)?")


def with_origin(composition: Composition, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return faults with the origin of each faulty value, and the place where an unknown key belongs.

    A value that only refers to a faulty one is omitted: the fault is reported there.
    """
    faulty = {tuple(problem.path.split(".")) for problem in problems}
    located: list[Problem] = []
    for problem in problems:
        if problem.code == "E102" and composition.refers_to_one(problem.path, faulty):
            continue
        origin = problem.where or composition.origin(problem.path)
        if origin and not problem.where and problem.code == "E101" and origin in composition.explicit.values():
            key, _, text = origin.partition("=")
            origin = origin if _NO_TEXT.fullmatch(text) else f"{key}=…"  # the key may be that of a secret, misspelt
        located.append(dataclasses.replace(problem, where=origin))
    is_misspelt = any(problem.code == "E101" for problem in located)
    return tuple(_with_places(composition.tree, located) if is_misspelt else located)


def _with_places(tree: Mapping[str, Any], problems: Sequence[Problem]) -> list[Problem]:
    """Add to each unknown key the place where its name is known: `learning_rate=…` without its long path.

    If no place has its name, add how to declare all unknown keys of the recipe.
    """
    found = list(leaves(tree))
    known: dict[str, dict[str, None]] = {}  # name of a key to the paths that end in it, those of sizes left out
    for above in (above for path, _ in found if "scale_config" not in path for above in prefixes(path)):
        known.setdefault(above.rpartition(".")[2], {})[above] = None
    declared = get(tree, "recipes.extra_keys")
    placed = list(problems)
    for i, problem in enumerate(problems):
        unknown = problem.path
        if problem.code != "E101":
            continue
        if others := _clusters_with(unknown):
            placed[i] = dataclasses.replace(problem, remedy=f"only with cluster={' or cluster='.join(others)}")
        elif places := _known_places(known, unknown):
            inside = [path for path, _ in found if path == unknown or path.startswith(f"{unknown}.")]
            whole = inside[0] if len(inside) == 1 else unknown  # trainer.num_nodes=2 makes the key trainer
            rest = whole.removeprefix(unknown)
            remedy = question([f"{place}{rest}" for place in places[:3]])
            placed[i] = dataclasses.replace(problem, path=whole, remedy=remedy)
    unread = [p for p in placed if p.code == "E101" and not p.remedy and p.path.startswith("recipes.")]
    keys = [*(declared if isinstance(declared, list) else ()), *(_OF_SIZE.sub("", p.path, count=1) for p in unread)]
    remedy = f"recipes.extra_keys=[{','.join(dict.fromkeys(map(str, keys)))}] if your training code reads "
    remedy += "it" if len(unread) == 1 else "them"
    return [dataclasses.replace(p, remedy=remedy) if p in unread else p for p in placed]


def _clusters_with(path: str) -> list[str]:
    """Return the clusters whose settings have a key."""
    section, _, key = path.partition(".")
    if section != "cluster":
        return []
    return [each.choice for each in descriptions() if is_field(each.options(), key)]


def _known_places(known: Mapping[str, Iterable[str]], unknown: str) -> list[str]:
    """Return the other paths that end in the same name as an unknown key."""
    name = unknown.rpartition(".")[2]
    places = [p for p in known.get(name, ()) if p != unknown and not p.startswith(f"{unknown}.") and p != name]
    if not places and name == unknown and name in field_names(RecipeBase):
        return [f"recipes.{name}"]
    return places
