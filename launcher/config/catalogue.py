"""The recipes of a collection, and what the collection's parts set below them, read from their files alone.

A listing needs nine facts of each recipe, not its composition, and must not wait for Hydra: the few forms of a
defaults list that recipes use are followed here. A recipe in any other form is composed, and so is one with a fault,
for the composition's words about it.
"""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.common import yaml_io
from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, ProblemsFound
from launcher.config.collection import recipe_names
from launcher.model.config_tree import ABSENT, child, get, leaves, merged, size_of

CONFIG_FILE = COLLECTION / "config.yaml"
CLUSTERS = COLLECTION / "cluster"
_NOT_KEYS = ("defaults", "hydra", "scale_config")
_FOLDER = "recipes"
_LARGEST = 1 << 16
"""Bytes of a file that is read here; the largest of the collection has 2,400."""
_REFERENCE = re.compile(r"\$\{(?P<dots>\.*)(?P<path>\w+(\.\w+)*)\}")
_REFERENCES = 8
"""References that are followed one after the other; more may be a circle."""
_FACTS = (
    "display_name",
    "run.name",
    "run.model_type",
    "instance_types",
    "elastic_policy",
    "training_config.model_config.model_name_or_path",
    "training_config.training_args.trainer_type",
    "training_config.model_config.peft_config.peft_type",
)
"""Keys of a recipe that a listing is made of."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recipe of a collection.

    Args:
        name: Path under `recipes/` without `.yaml`, as `recipes=` takes it.
        display_name: One line for people; empty when the recipe has none.
        family: Its folder.
        model: Its `run.name`; empty when the user must give one.
        model_name_or_path: The weights to start from; empty when the user must give them.
        technique: Objective and weights trained, e.g. `sft_lora` or `dpo_fft`; None if the recipe names none.
        is_elastic: Whether it has an `elastic_policy`, on or off.
        instance_types: The instance types it supports, in the recipe's order.
        model_type: Its recipe family in `launcher.families`; empty for a script of the user's own.
        path: Its file.
    """

    name: str
    display_name: str
    family: str
    model: str
    model_name_or_path: str
    technique: str | None
    is_elastic: bool
    instance_types: tuple[str, ...]
    model_type: str
    path: Path


def entries(folder: Path = COLLECTION) -> tuple[Entry, ...]:
    """Return every recipe under `folder`, sorted by name.

    Args:
        folder: Holds `recipes/`, and may hold parts of its own beside it, as a folder of `hydra.searchpath` does.

    Raises:
        ProblemsFound: A file is not YAML, or inherits a missing file or itself; every such file is reported.
    """
    folder = folder.resolve()
    files = Files(tuple(dict.fromkeys((COLLECTION, folder))), {})
    found: list[Entry] = []
    problems: list[Problem] = []
    for name in recipe_names(folder):
        try:
            found.append(_entry(name, folder / _FOLDER / f"{name}.yaml", files))
        except ProblemsFound as error:
            problems += error.problems
    if problems:
        raise ProblemsFound(tuple(problem for i, problem in enumerate(problems) if problem not in problems[:i]))
    return tuple(found)


class Unfamiliar(Exception):
    """A recipe has a form, or a fault, whose meaning only its composition shows."""


def _entry(name: str, path: Path, files: "Files") -> Entry:
    try:
        layers = [layer.recipe for layer in files.layers(path)]
        facts = {key: _value(layers, key) for key in _FACTS}
    except Unfamiliar:
        facts = _composed(name, path, files.roots)
    objective = facts["training_config.training_args.trainer_type"]
    weights = facts["training_config.model_config.peft_config.peft_type"] or "fft"
    types = facts["instance_types"]
    return Entry(
        name=name,
        display_name=str(facts["display_name"] or ""),
        family=path.parent.name,
        model=str(facts["run.name"] or ""),
        model_name_or_path=str(facts["training_config.model_config.model_name_or_path"] or ""),
        technique=f"{objective}_{weights}" if objective else None,
        is_elastic=facts["elastic_policy"] is not None,
        instance_types=tuple(map(str, types)) if isinstance(types, list) else (),
        model_type=str(facts["run.model_type"] or ""),
        path=path,
    )


def _value(layers: Sequence[dict[str, Any]], key: str) -> Any:
    """Return the value of `key`, that of another key where it refers to one; None where nothing sets it."""
    for _ in range(_REFERENCES):
        value = _last(layers, key)
        if isinstance(value, dict) or "${" not in str(value):
            return value
        reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference is None:
            raise Unfamiliar
        key = _target(key, len(reference["dots"]), reference["path"])
    raise Unfamiliar


def _target(key: str, num_dots: int, path: str) -> str:
    """Return the key of the recipe that a reference at `key` means: one dot means the mapping `key` is in."""
    if num_dots == 0:
        head, _, path = path.partition(".")
        parents: list[str] | None = [] if head == _FOLDER and path else None
    else:
        around = key.split(".")
        parents = around[: len(around) - num_dots] if num_dots <= len(around) else None
    if parents is None:  # a key outside the recipe
        raise Unfamiliar
    return ".".join([*parents, path])


def _last(layers: Sequence[dict[str, Any]], key: str) -> Any:
    """Return what the last layer that sets `key` sets it to; None where none does."""
    for layer in reversed(layers):
        node: Any = layer
        for word in key.split("."):
            if (inside := child(node, word)) is ABSENT:
                break
            node = inside
        else:
            return node
        if isinstance(node, str):
            raise Unfamiliar  # it may refer to a mapping elsewhere
        if not isinstance(node, dict):
            return None  # this layer replaces a complete mapping on the way
    return None


def _composed(name: str, path: Path, roots: Sequence[Path]) -> dict[str, Any]:
    """Return the facts of a recipe from its composition."""
    from launcher.config.compose import compose  # Hydra takes longer to import than a listing takes without it

    folders = [str(folder).replace("\\", "\\\\").replace("'", "\\'") for folder in roots if folder != COLLECTION]
    search = [f"hydra.searchpath=['{folder}']" for folder in folders]
    tree = compose([f"recipes={name}", *search], path.parent).tree[_FOLDER]
    return {key: get(tree, key) for key in _FACTS}


@dataclass(frozen=True, slots=True)
class Layer:
    """One file of those that a recipe is made of.

    Args:
        path: The file.
        tree: Its content, without its `defaults`.
        is_global: Whether it sets keys of the top level, and not of the recipe.
    """

    path: Path
    tree: dict[str, Any]
    is_global: bool = False

    @property
    def recipe(self) -> dict[str, Any]:
        """The values it sets in the recipe."""
        return (self.tree.get(_FOLDER) if self.is_global else self.tree) or {}


@dataclass(frozen=True, slots=True)
class Files:
    """Recipe files and the parts they inherit, each read once.

    Args:
        roots: Folders that a path from / is looked up in, in this order.
        known: Layers of every file read so far; None while it is being read, and where it cannot be.
    """

    roots: tuple[Path, ...]
    known: dict[Path, list[Layer] | None]

    def layers(self, path: Path) -> list[Layer]:
        """Return a file and all that it inherits, lowest precedence first; a part may be there twice.

        Raises:
            Unfamiliar: It has a form or a fault that Hydra has to look at.
        """
        if path not in self.known:
            self.known[path] = None
            self.known[path] = self._read(path)
        if (layers := self.known[path]) is None:  # it leads back to itself, or was found unfamiliar before
            raise Unfamiliar
        return layers

    def _read(self, path: Path) -> list[Layer]:
        text, tree = _load(path)
        defaults = tree.pop("defaults", [])
        if not isinstance(defaults, list) or "@package" in text[:512]:  # as far as Hydra looks for it
            raise Unfamiliar
        layers = []
        for default in defaults if "_self_" in defaults else [*defaults, "_self_"]:
            layers += [Layer(path, tree)] if default == "_self_" else self._inherited(default, path)
        return layers

    def _inherited(self, default: Any, path: Path) -> list[Layer]:
        name, _, package = default.partition("@") if isinstance(default, str) else ("", "", "")
        if package not in ("_here_", "_global_") or "$" in name or " " in name:
            raise Unfamiliar
        inherited = self.layers(self._find(name, path))
        return inherited if package == "_here_" else [Layer(part.path, part.tree, True) for part in inherited]

    def _find(self, name: str, path: Path) -> Path:
        """Return the file that a defaults list names: from a root where it starts with /, else beside `path`.

        Where Hydra looks for what a recipe names without a / depends on how the recipe itself was chosen.
        """
        if not name.startswith("/"):
            parent = path.parent.relative_to(next(root for root in self.roots if path.is_relative_to(root)))
            if parent.parts[:1] == (_FOLDER,):
                raise Unfamiliar
            name = (parent / name).as_posix()
        for root in self.roots:
            if os.path.isfile(file := root / f"{name.lstrip('/')}.yaml"):
                return file
        raise Unfamiliar


def _load(path: Path) -> tuple[str, dict[str, Any]]:
    if path.stat().st_size > _LARGEST:
        raise Unfamiliar
    try:
        text = path.read_text(encoding="utf-8-sig")
        tree = yaml_io.load(text) or {}
    except (UnicodeDecodeError, yaml.MarkedYAMLError) as error:
        raise Unfamiliar from error
    if not isinstance(tree, dict):
        raise Unfamiliar
    return text, tree


@dataclass(frozen=True, slots=True)
class Given:
    """The values that parts give one key.

    Args:
        default: The value in every recipe that no other part and not the recipe itself overrides; empty or one value.
        others: Values of parts that some recipes choose, in the order of the parts' names.
    """

    default: tuple[Any, ...]
    others: tuple[Any, ...]


def defaults(model_type: str) -> dict[str, Given]:
    """Return dotted path to the values that the parts of a family give it.

    A value in a part of every recipe is the default, and so is a value on which all alternative parts agree.
    """
    made_of = [_made_of(entry.path) for entry in entries() if entry.model_type == model_type]
    if not made_of:
        return {}
    everywhere = set.intersection(*map(set, made_of))
    chosen = {part for parts in made_of for part in parts if part.is_relative_to(COLLECTION / "base")}
    others = _values_by_path(sorted(chosen - everywhere))
    given = {path: _agreed(values) for path, values in others.items()}
    for part in (part for part in made_of[0] if part in everywhere):
        for path, value in values_of(part).items():
            given[path] = _overridden(value, others.get(path, []))
    return given


def _values_by_path(parts: Sequence[Path]) -> dict[str, list[Any]]:
    """Return dotted path to its value in each part that has one."""
    found: dict[str, list[Any]] = {}
    for part in parts:
        for path, value in values_of(part).items():
            found.setdefault(path, []).append(value)
    return found


def _overridden(value: Any, others: list[Any]) -> Given:
    return Given((value,), tuple(other for other in _distinct(others) if other != value))


def _agreed(values: list[Any]) -> Given:
    distinct = _distinct(values)
    return Given(distinct, ()) if len(distinct) == 1 else Given((), distinct)


def _distinct(values: list[Any]) -> tuple[Any, ...]:
    return tuple(value for i, value in enumerate(values) if value not in values[:i])


def values_of(file: Path) -> dict[str, Any]:
    """Return dotted path to value of every leaf of a file."""
    tree = {key: value for key, value in _tree_of(file).items() if key not in _NOT_KEYS}
    return {path: value for path, value in leaves(tree) if path}


def choices_of(file: Path) -> dict[str, str]:
    """Return what the `defaults` of a file choose, group to option."""
    return {
        group: name
        for entry in _tree_of(file)["defaults"]
        if isinstance(entry, dict)
        for group, name in entry.items()
    }


def sizes(recipe: Path) -> str:
    """Return the numbers of nodes an elastic recipe may have, in words; empty for one that never changes its size."""
    layers = (layer.recipe for layer in _collection().layers(recipe))
    tree = functools.reduce(merged, layers, dict[str, Any]())
    policy, table = tree.get("elastic_policy"), tree.get("scale_config")
    if not policy:
        return ""
    first, last, step = policy["min_nodes"], policy["max_nodes"], policy.get("replica_increment_step")
    if isinstance(table, Mapping):
        return ", ".join(str(n) for n in sorted(map(size_of, table)) if first <= n <= last)
    return f"{first} to {last}" + (f" by {step}" if step and step > 1 else "")


@functools.cache  # files of the installed collection, which do not change while a command runs
def _tree_of(file: Path) -> Mapping[str, Any]:
    return yaml_io.load(file.read_text(encoding="utf-8")) or {}


@functools.cache  # as above
def _collection() -> Files:
    return Files((COLLECTION,), {})


def _made_of(recipe: Path) -> list[Path]:
    """Return the files a recipe is made of, lowest precedence first; one that is named twice counts at its last."""
    paths = [layer.path for layer in _collection().layers(recipe)]
    return [path for i, path in enumerate(paths) if path not in paths[i + 1 :]]
