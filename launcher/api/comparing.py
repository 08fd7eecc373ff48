"""Differences between two recipes, two sizes, or a recipe and a bundle: one line per key."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.api.composed import compose, only_read
from launcher.api.naming import ENDINGS, Target, choose, recipe_names
from launcher.bundle import store
from launcher.common import yaml_io
from launcher.common.names import BASE_CONFIG, CONFIG_DIR, config_name
from launcher.common.problems import Notice, Problem, ProblemsFound, fail, gathering, raise_any
from launcher.common.text_table import value_text
from launcher.model.config_tree import is_index, leaves, static_tree
from launcher.model.context import job_name
from launcher.model.job_spec import Bundle
from launcher.model.recipe_keys import LAUNCHER_KEYS
from launcher.planning.explain import Sizes
from launcher.planning.job_planner import named
from launcher.rules import hardware

HOW = ("dry_run", "server_dry_run", "wait")
"""Keys that define what a launch does, not the job."""
AT_LAUNCH = tuple(
    f"recipes.training_config.mlflow.{key}" for key in ("run_id", "tracking_uri", "run_name", "experiment_name")
)
"""Keys that a launch fills in: a bundle has them, but composing the same overrides again does not."""
_UNSIZED = frozenset(LAUNCHER_KEYS) - {"checkpointing"}
"""Keys of a recipe that no configuration of a size has."""
_TITLE = "training_config"
"""The key of the top level that repeats the recipe's name."""
JOB = "<job>"
"""In place of a job's name, of which many values are made."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value that differs; None where it does not exist."""

    key: str
    before: str | None
    after: str | None

    @property
    def sides(self) -> Iterator[tuple[str, str]]:
        """The sign and the text of each side that has the value."""
        return ((sign, text) for sign, text in (("-", self.before), ("+", self.after)) if text is not None)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its title, its values by their dotted paths, and notices about it.

    A job's name, if it is given, counts as equal to that of the other side.
    """

    title: str
    leaves: Mapping[str, Any]
    notices: tuple[Notice, ...] = ()
    job_name: str | None = None

    def texts(self) -> dict[str, str]:
        """Return the values as text, by their paths."""
        found = {path: value_text(value, path) for path, value in self.leaves.items()}
        return {path: text.replace(self.job_name, JOB) for path, text in found.items()} if self.job_name else found


def of_tree(title: str, tree: Mapping[str, Any], job_name: str) -> Side:
    """Return a composed configuration, without the keys that define what a launch does."""
    found = {path: value for path, value in leaves(tree) if path != _TITLE}
    return without_launch(Side(title, found, job_name=job_name))


def of_recipe(
    title: str, words: Sequence[str], nodes: int | None, *, is_sized: bool, suffix: str | None = None
) -> Side:
    """Return a composed recipe.

    Args:
        title: Its title.
        words: Overrides, including the one that chooses the recipe.
        nodes: Its size; None for the base recipe.
        is_sized: Whether only the recipe is compared, as for one size, not the complete configuration.
        suffix: Name suffix of the job that it is compared with; None if it is not compared with a bundle.
    """
    sizes = Sizes(only_read(compose(words, Path.cwd(), suffix)))
    notices = tuple(hardware.unknown(sizes.composition))
    if not is_sized:
        return Side(title, {path: value for path, value in sizes.base.items() if path != _TITLE}, notices)
    recipe = sizes.composition.tree["recipes"]
    tree = static_tree(recipe, recipe["trainer"]["num_nodes"]) if nodes is None else sizes.at(nodes)
    if suffix:
        tree = named(tree, sizes.composition, job_name(tree["run"]["name"], suffix))
    return Side(title, dict(leaves({key: value for key, value in tree.items() if key not in _UNSIZED})), notices)


def of_bundle(folder: Path, nodes: int | None, *, is_sized: bool) -> Side:
    """Return a bundle on disk: its complete configuration, or what the container reads at one size."""
    name = f"{CONFIG_DIR}/{config_name(nodes) if nodes else BASE_CONFIG}" if is_sized else "recipe.yaml"
    bundle, _ = store.read(folder)
    if name not in bundle.files:
        allowed = ", ".join(str(point["nodes"]) for point in bundle.plan["scales"])
        raise fail("E803", f"{folder}@{nodes}", f"the bundle has no size of {nodes} nodes", allowed=allowed)
    found = dict(leaves(yaml_io.load(bundle.files[name])))
    if not is_sized:
        found.pop(_TITLE, None)
    return Side(f"{folder}/{name}", found)


def are_jobs(old: str, new: str | None) -> bool:
    """Return whether all names, one or two, are of jobs with a bundle."""
    return all(name is None or store.find(name) for name in (old, new))


def both(old: str, new: str | None, overrides: Sequence[str]) -> tuple[Side, Side]:
    """Return both sides as a user names them, or raise the Problems of both, each once."""
    if new is None:
        raise _alone(old)
    # A bundle whose name ends like a size is that bundle.
    targets = [Target(name, None) if store.find(name) else Target.read(name) for name in (old, new)]
    is_sized = any(target.nodes is not None for target in targets)
    folders = [store.find(target.name) for target in targets]
    bundles = [folder for folder in folders if folder]
    args, suffix = list(overrides), None
    if bundles:
        bundle, cluster = store.read(bundles[0])
        args, suffix = [f"cluster={cluster}", *overrides], suffix_of(bundle)
    sides: list[Side] = []
    problems: list[Problem] = []
    for title, target, folder in zip((old, new), targets, folders, strict=True):
        with gathering(problems):
            if folder:
                sides.append(of_bundle(folder, target.nodes, is_sized=is_sized))
            else:
                words = choose(target.name, args)
                sides.append(of_recipe(title, words, target.nodes, is_sized=is_sized, suffix=suffix))
    raise_any(dict.fromkeys(problems))
    if len(bundles) == 1 and not is_sized:
        sides = list(map(without_launch, sides))
    return sides[0], sides[1]


def _alone(name: str) -> ProblemsFound:
    """Return why a name that is not of a job is compared with nothing."""
    if os.path.isdir(name):
        return fail("E801", name, "is not a bundle directory", remedy="recipes diff A B, or recipes diff BUNDLE")
    target = Target.read(name)
    if folder := store.find(target.name):
        message = "missing second argument: one size of a job is compared with another"
        return fail("E801", name, message, remedy=f"recipes diff {folder.name}, or a second size")
    known = {each for path in recipe_names() for each in (path, path.rpartition("/")[2])}
    if target.name in known or target.name.endswith(ENDINGS):
        message = "missing second argument: a recipe is compared with another, or with a bundle"
        return fail("E801", name, message, remedy="recipes diff A B, or recipes diff BUNDLE")
    return store.unknown(name)


def suffix_of(bundle: Bundle) -> str:
    """Return the name suffix of a bundle's job, which is random for each launch."""
    return bundle.job_name.rpartition("-")[2]


def without_launch(side: Side) -> Side:
    kept = {path: value for path, value in side.leaves.items() if path not in (*AT_LAUNCH, *HOW)}
    return replace(side, leaves=kept)


def in_order(path: str) -> list[tuple[int, str]]:
    """Return what a path is sorted by: its words, and sizes by their number."""
    return [(int(word), "") if is_index(word) else (-1, word) for word in path.split(".")]


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    """Yield the texts that differ, in the order of their keys."""
    for key in sorted({*old, *new}, key=in_order):
        if old.get(key) != new.get(key):
            yield Change(key, old.get(key), new.get(key))


def lines(old: Side, new: Side) -> list[str]:
    """Return the difference as `- key: value` and `+ key: value` lines, sorted by key; none if equal."""
    return [f"{sign} {each.key}: {text}" for each in changes(old.texts(), new.texts()) for sign, text in each.sides]
