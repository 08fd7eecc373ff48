"""Differences between two recipes, two sizes, or a recipe and a bundle: one line per key."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.bundle import store as bundles
from launcher.bundle.render import MANIFEST
from launcher.common import yaml_io
from launcher.common.names import BASE_CONFIG, CONFIG_DIR, config_name
from launcher.common.problems import Notice, fail
from launcher.common.text_table import value_text
from launcher.config.compose import compose
from launcher.model.config_tree import is_index, leaves, static_tree
from launcher.model.context import job_name
from launcher.planning.explain import Sizes
from launcher.planning.job_planner import LAUNCHER_KEYS, named
from launcher.rules import hardware

_HOW = ("dry_run", "server_dry_run", "wait")
"""Keys that define what a launch does, not the job."""
_AT_LAUNCH = tuple(
    f"recipes.training_config.mlflow.{key}" for key in ("run_id", "tracking_uri", "run_name", "experiment_name")
)
"""Keys that a launch fills in: a bundle has them, but composing the same overrides again does not."""
_UNSIZED = frozenset(LAUNCHER_KEYS) - {"checkpointing"}
"""Keys of a recipe that no configuration of a size has."""
_TITLE = "training_config"
"""The key of the top level that repeats the recipe's name."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Args:
        title: Short description.
        leaves: Dotted path to value.
        notices: Notices about it.
    """

    title: str
    leaves: Mapping[str, Any]
    notices: tuple[Notice, ...] = ()


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

    Raises:
        ProblemsFound: It does not compose, or has no such size.
    """
    sizes = Sizes(compose(words, Path.cwd(), suffix))
    notices = tuple(hardware.unknown(sizes.composition))
    if not is_sized:
        return Side(title, {path: value for path, value in sizes.base.items() if path != _TITLE}, notices)
    recipe = sizes.composition.tree["recipes"]
    tree = static_tree(recipe, recipe["trainer"]["num_nodes"]) if nodes is None else sizes.at(nodes)
    if suffix:
        tree = named(tree, sizes.composition, job_name(tree["run"]["name"], suffix))
    return Side(title, dict(leaves({key: value for key, value in tree.items() if key not in _UNSIZED})), notices)


def of_bundle(folder: Path, nodes: int | None, *, is_sized: bool) -> Side:
    """Return a bundle on disk: its complete configuration, or what the container reads at one size.

    Raises:
        ProblemsFound: It is not a bundle, or has no such size.
    """
    name = f"{CONFIG_DIR}/{config_name(nodes) if nodes else BASE_CONFIG}" if is_sized else "recipe.yaml"
    files = bundles.read(folder)[0].files
    if name not in files:
        allowed = ", ".join(str(point["nodes"]) for point in json.loads(files["plan.json"])["scales"])
        raise fail("E803", f"{folder}@{nodes}", f"the bundle has no size of {nodes} nodes", allowed=allowed)
    found = dict(leaves(yaml_io.load(files[name])))
    if not is_sized:
        found.pop(_TITLE, None)
    return Side(f"{folder}/{name}", found)


def cluster_of(folder: Path) -> str:
    """Return the choice of `cluster` that a bundle was rendered for.

    Raises:
        ProblemsFound: It is not a bundle.
    """
    return bundles.read(folder)[1]


def suffix_of(folder: Path) -> str:
    """Return the name suffix of a bundle's job, which is random for each launch.

    Raises:
        ProblemsFound: It is not a bundle.
    """
    return bundles.read(folder)[0].job_name.rpartition("-")[2]


def again(folder: Path) -> tuple[Side, Side]:
    """Return a bundle and what its overrides compose to now, without the keys that only a launch fills in.

    Raises:
        ProblemsFound: It is not a bundle, or its overrides no longer compose.
    """
    then = of_bundle(folder, None, is_sized=False)
    said = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    title = f"{said['recipe']}, now"
    now = of_recipe(title, said["overrides"], None, is_sized=False, suffix=suffix_of(folder))
    return without_launch(then), without_launch(now)


def without_launch(side: Side) -> Side:
    """Return a side without the keys that only a launch fills in."""
    kept = {path: value for path, value in side.leaves.items() if path not in (*_AT_LAUNCH, *_HOW)}
    return Side(side.title, kept, side.notices)


def changes(old: Side, new: Side) -> list[str]:
    """Return the difference as `- key: value` and `+ key: value` lines, sorted by key; none if equal."""
    lines = []
    for path in sorted({*old.leaves, *new.leaves}, key=_in_order):
        pair = [
            f"{sign} {path}: {value_text(side.leaves[path], path)}" if path in side.leaves else sign
            for sign, side in (("-", old), ("+", new))
        ]
        if pair[0][1:] != pair[1][1:]:
            lines += [line for line in pair if len(line) > 1]
    return lines


def _in_order(path: str) -> list[tuple[int, str]]:
    """Return a sort key: paths by their words, sizes by their number."""
    return [(int(word), "") if is_index(word) else (-1, word) for word in path.split(".")]
