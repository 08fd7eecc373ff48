"""The values of published recipes: those of our files, as they are written, and what identifies them."""

import functools
import hashlib
import json

from conftest import ROOT

from launcher.common import yaml_io
from launcher.common.paths import COLLECTION
from launcher.model.config_tree import leaves

GOLDEN = json.loads((ROOT / "tests" / "golden" / "published_digests.json").read_text())
"""Digest of each published recipe (release of 2026-06-22), and what it has where a value is corrected here."""


def recipe_file(name):
    return COLLECTION / "recipes" / f"{name}.yaml"


def part(file, name):
    """Return the file that a default of another file names."""
    return COLLECTION / f"{name[1:]}.yaml" if name[0] == "/" else file.with_name(f"{name}.yaml")


def over(tree, other):
    """Return `tree` with `other` over it."""
    both = isinstance(tree, dict) and isinstance(other, dict)
    return {**tree, **{key: over(tree.get(key), value) for key, value in other.items()}} if both else other


@functools.cache
def merged(file):
    """Return what a recipe or part and those it is made of set, with references as they are written."""
    tree, found = yaml_io.load(file.read_text()), {}
    for default in tree.pop("defaults", ["_self_"]):
        name, _, package = default.partition("@")
        if package != "_global_":  # keys outside the recipe
            found = over(found, tree if name == "_self_" else merged(part(file, name)))
    return found


def own_values(file):
    """Return what a recipe sets itself, by path."""
    return dict(leaves({key: value for key, value in yaml_io.load(file.read_text()).items() if key != "defaults"}))


def inherited_values(file):
    """Return what the parts of a recipe set, by path."""
    found = {}
    for name, package in defaults_of(file):
        if package != "_global_":
            found = over(found, merged(part(file, name)))
    return dict(leaves(found))


def defaults_of(file):
    """Return the names of the parts of a recipe or part, each with the package of its keys."""
    named = (default.partition("@") for default in yaml_io.load(file.read_text()).get("defaults", ()))
    return [(name, package) for name, _, package in named if name != "_self_"]


@functools.cache
def parts_of(file):
    """Return the files that a recipe or part is made of."""
    direct = [part(file, name) for name, _ in defaults_of(file)]
    return frozenset(direct).union(*map(parts_of, direct))


def text_of(value):
    """Return a value as text in which 1, 1.0 and true differ, as they do for the container."""
    return json.dumps(value, sort_keys=True)


def digest(tree):
    """Return the sha256 of a recipe's leaves without its labels, which are ours: 1, 1.0 and true are apart."""
    found = sorted(leaves({key: value for key, value in tree.items() if key != "labels"}))
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
