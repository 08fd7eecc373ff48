"""The recipes of a collection, and what the collection's parts set below them, read from their files alone.

A listing needs ten facts of each recipe, not its composition. A recipe that `composed_files` does not follow is
composed by Hydra, and so is one with a fault, for the composition's words about it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, gathering, raise_any
from launcher.config import plain_values
from launcher.config.collection import recipe_names
from launcher.config.composed_files import Part, Parts, merged
from launcher.config.files import FileCache
from launcher.config.overrides import quoted
from launcher.config.plain_values import NotPlain
from launcher.model.config_tree import ABSENT, child, get, leaves, size_of
from launcher.model.family_registry import name_of

CONFIG_FILE = COLLECTION / "config.yaml"
_NOT_KEYS = ("defaults", "hydra", "scale_config")
_FOLDER = "recipes"
_MODELS = ("training_config.actor_rollout_ref.model.path", "training_config.model.path", "run.model_name_or_path")
"""Keys of other families for the model."""
_FACTS = (
    "display_name",
    "run.name",
    "run.model_type",
    "instance_types",
    "elastic_policy",
    "training_config.model_config.model_name_or_path",
    "training_config.training_args.trainer_type",
    "training_config.model_config.peft_config.peft_type",
    "labels",
    *_MODELS,
)
"""Keys of a recipe that a listing is made of."""
_FILES = FileCache()
"""The files that were read here; one that has changed on disk is read again."""


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
        is_published: Whether it is of the published launcher, and not of this collection or a user's own.
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
    is_published: bool
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
    roots = [str(folder)] if folder != COLLECTION else []
    parts = Parts(roots, _FILES)
    found: list[Entry] = []
    problems: list[Problem] = []
    for name in recipe_names(folder):
        with gathering(problems):
            found.append(_entry(name, folder / _FOLDER / f"{name}.yaml", parts, roots))
    raise_any(_distinct(problems))
    return tuple(found)


def _entry(name: str, path: Path, parts: Parts, folders: Sequence[str]) -> Entry:
    try:
        tree = merged(parts.of(f"{_FOLDER}/{name}", path, _FOLDER))
        facts = {key: _fact(tree, key) for key in _FACTS}
    except (NotPlain, RecursionError):
        facts = _composed(name, path, folders)
    objective = facts["training_config.training_args.trainer_type"]
    weights = facts["training_config.model_config.peft_config.peft_type"] or "fft"
    labels = facts["labels"] or {}
    labelled = "_".join(filter(None, (labels.get("objective"), labels.get("weights"))))
    models = (facts[key] for key in ("training_config.model_config.model_name_or_path", *_MODELS))
    types = facts["instance_types"]
    return Entry(
        name=name,
        display_name=str(facts["display_name"] or ""),
        family=path.parent.name,
        model=str(facts["run.name"] or ""),
        model_name_or_path=str(next(filter(None, models), "")),
        technique=f"{objective}_{weights}" if objective else labelled or None,
        is_elastic=facts["elastic_policy"] is not None,
        is_published=not folders and labels.get("published", True),
        instance_types=tuple(map(str, types)) if isinstance(types, list) else (),
        model_type=str(facts["run.model_type"] or ""),
        path=path,
    )


def recipe_tree(entry: Entry) -> Mapping[str, Any]:
    """Return a recipe of the collection as its files have it, with its references."""
    recipe: Mapping[str, Any] = merged(_parts_of(entry.path))[_FOLDER]
    return recipe


def _fact(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value of a recipe's key, that of another key where it refers to one; None where nothing sets it."""
    path = (_FOLDER, *key.split("."))
    value: Any = tree
    for word in path:
        if isinstance(value, str):
            raise NotPlain  # it may refer to a mapping elsewhere
        if (value := child(value, word)) is ABSENT:
            return None
    return value if isinstance(value, dict) or "${" not in str(value) else plain_values.resolved(value, path, tree)


def _composed(name: str, path: Path, folders: Sequence[str]) -> dict[str, Any]:
    """Return the facts of a recipe from its composition."""
    from launcher.config.compose import compose  # Hydra takes longer to import than a listing takes without it

    search = [f"hydra.searchpath=[{quoted(folder)}]" for folder in folders]
    tree = compose([f"recipes={name}", *search], path.parent).tree[_FOLDER]
    return {key: get(tree, key) for key in _FACTS}


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
    made_of = [_made_of(entry.path) for entry in entries() if name_of(entry.model_type) == name_of(model_type)]
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
    tree = merged(_parts_of(recipe))[_FOLDER]
    policy, table = tree.get("elastic_policy"), tree.get("scale_config")
    if not policy:
        return ""
    first, last, step = policy["min_nodes"], policy["max_nodes"], policy.get("replica_increment_step")
    if isinstance(table, Mapping):
        return ", ".join(str(n) for n in sorted(map(size_of, table)) if first <= n <= last)
    return f"{first} to {last}" + (f" by {step}" if step and step > 1 else "")


def _tree_of(file: Path) -> Mapping[str, Any]:
    return _FILES.read(file).tree


def _parts_of(recipe: Path) -> tuple[Part, ...]:
    """Return the parts of a recipe of the collection, lowest precedence first."""
    config = recipe.relative_to(COLLECTION).with_suffix("").as_posix()
    return Parts((), _FILES).of(config, recipe, _FOLDER)


def _made_of(recipe: Path) -> list[Path]:
    """Return the files a recipe is made of, lowest precedence first; one that is named twice counts at its last."""
    paths = [part.file.path for part in _parts_of(recipe)]
    return [path for i, path in enumerate(paths) if path not in paths[i + 1 :]]
