"""What may be moved in a plan: the keys of a recipe that determine its sizes and its cost, with their values."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from launcher.api import naming, values
from launcher.api.session import Session
from launcher.common.problems import ProblemsFound
from launcher.config.compose import compose
from launcher.model.config_tree import AUTO, get
from launcher.model.family_registry import name_of, recipe_model
from launcher.model.instances import table as instance_table
from launcher.model.recipe import USEFUL
from launcher.model.recipe_keys import RecipeKeys

Kind = Literal["number", "choice", "flag", "planned", "sizes"]
Group = Literal["where", "batch", "training", "elastic"]

_ELASTIC = "recipes.elastic_policy"
_SCALES = "recipes.scale_config"
_PLANNED = "recipes.planner.sizes"
_TABLE = "table"
_REFERENCE = re.compile(r"(\\*)\$\{")
_MOST_SIZES = 64
"""Sizes that one text may name."""


class Choice(NamedTuple):
    """A value to choose, as people read it, and the heading it belongs to."""

    value: str
    label: str
    heading: str = ""


class Knob(NamedTuple):
    """A key that may be moved.

    Args:
        name: In an address.
        key: As an override names it.
        value: What the recipe sets, as text; "" for nothing.
        choices: Values to choose from, the recipe's own first; none for a key that takes others, too.
    """

    name: str
    key: str
    label: str
    value: str
    kind: Kind
    group: Group
    choices: tuple[Choice, ...] = ()

    def is_moved(self, text: str) -> bool:
        """Return whether a text states another value than the recipe; an empty one states none."""
        if self.kind == "number" and _number(text) == _number(self.value):
            return False
        return text not in ("", self.value)

    def settings(self, text: str) -> dict[str, Any]:
        """Return the overrides that set what a user typed, as data: a reference in it is not resolved.

        Those of `sizes` are returned by `only`.
        """
        if self.kind == "sizes":
            return {}
        if self.kind == "planned" and text in USEFUL:
            return {_SCALES: AUTO, _PLANNED: text}
        if self.kind == "planned" and text == AUTO and self.value in USEFUL:
            return {_PLANNED: "all"}
        if self.kind == "flag":
            return {self.key: {"true": True, "false": False}.get(text, literal(text))}
        return {self.key: _number(text) if self.kind == "number" else literal(text)}


def literal(text: str) -> str:
    """Return a text as a value that is read as it is: its references `${…}` are escaped.

    Source: OmegaConf, Variable interpolation, Escaping: `\\${` is not an interpolation, and backslashes before one
    count.
    """
    return _REFERENCE.sub(lambda found: found[1] * 2 + r"\${", text)


def only(planned: Sequence[int], text: str) -> list[str]:
    """Return the overrides that leave the sizes which a text names, in nodes, of those of an elastic plan.

    Raises:
        ProblemsFound: A size cannot be a key (E001).
    """
    wanted = dict.fromkeys(filter(None, re.split(r"[\s,;]+", text)[:_MOST_SIZES]))
    added: dict[str, Any] = {f"{_SCALES}.{size}": {} for size in wanted if size not in map(str, planned)}
    return [*(f"~{_SCALES}.{size}" for size in planned if str(size) not in wanted), *values.words(added)]


def knobs(recipe: str, cluster: str | None, session: Session) -> tuple[Knob, ...]:
    """Return what may be moved in a recipe on a cluster; none if it does not compose.

    Args:
        recipe: Its path under `recipes/`.
        cluster: None for the recipe's own.
    """
    tree: Mapping[str, Any] = {}
    with contextlib.suppress(ProblemsFound), session.active():
        words = [*naming.choose(recipe), *([f"cluster={cluster}"] if cluster else [])]
        tree = compose(words, session.context().cwd, cache=session.cache).tree
    return tuple(_knobs(tree)) if tree else ()


def _knobs(tree: Mapping[str, Any]) -> list[Knob]:
    recipe = tree["recipes"]
    family = name_of(get(recipe, "run.model_type"))
    keys = recipe_model(family).keys if family else None
    own = tuple(str(each) for each in recipe.get("instance_types") or ())
    found = [
        _knob(tree, "nodes", "recipes.trainer.num_nodes", "Nodes", "number", "where"),
        _knob(tree, "instance", "instance_type", "Instance type", "choice", "where", _types(own)),
    ]
    if keys and keys.batch:
        batch = keys.batch
        found += [
            _knob(tree, "batch", f"recipes.{batch.train_batch_size}", "Global batch", "number", "batch"),
            _knob(tree, "micro", f"recipes.{batch.micro_train_batch_size}", "Micro batch", "number", "batch"),
            _knob(tree, "rate", f"recipes.{batch.learning_rate}", "Learning rate", "number", "batch"),
        ]
    elif keys:
        found += _further(tree, keys)
    if isinstance(recipe.get("elastic_policy"), Mapping):
        found += _of_sizes(tree)
    return found


def _knob(
    tree: Mapping[str, Any],
    name: str,
    key: str,
    label: str,
    kind: Kind,
    group: Group,
    choices: tuple[Choice, ...] = (),
) -> Knob:
    return Knob(name, key, label, _text(get(tree, key)), kind, group, choices)


def _types(own: Sequence[str]) -> tuple[Choice, ...]:
    """Return every instance type, those of the recipe first and with their devices."""
    every = instance_table()
    others = (Choice(name, name.removeprefix("ml."), "others") for name in sorted(every) if name not in own)
    return (*(Choice(name, _devices(name), "of the recipe") for name in own), *others)


def _devices(name: str) -> str:
    found, short = instance_table().get(name), name.removeprefix("ml.")
    if not found or not found.accelerators:
        return short
    return f"{short}, {found.accelerators} × {found.accelerator.removeprefix('NVIDIA ')}"


def _further(tree: Mapping[str, Any], keys: RecipeKeys) -> list[Knob]:
    """Return the numbers that users of a family often change, for one whose batch is not planned."""
    every = {key: get(tree, f"recipes.{key}") for key in keys.often_changed}
    numbers = [key for key, value in every.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    return [
        _knob(tree, key, f"recipes.{key}", ".".join(key.split(".")[-2:]), "number", "training") for key in numbers
    ]


def _of_sizes(tree: Mapping[str, Any]) -> list[Knob]:
    """Return how far a recipe scales, and at which sizes."""
    flag = (Choice("true", "yes"), Choice("false", "no"))
    found = [
        _knob(tree, "elastic", f"{_ELASTIC}.is_elastic", "Elastic", "flag", "elastic", flag),
        _knob(tree, "min", f"{_ELASTIC}.min_nodes", "At least", "number", "elastic"),
        _knob(tree, "max", f"{_ELASTIC}.max_nodes", "At most", "number", "elastic"),
        _knob(tree, "step", f"{_ELASTIC}.replica_increment_step", "In steps of", "number", "elastic"),
    ]
    scales, planned = get(tree, _SCALES), get(tree, _PLANNED)
    if not scales:
        return found
    value = _TABLE if isinstance(scales, Mapping) else planned if planned in USEFUL else AUTO
    useful = value if value in USEFUL else USEFUL[0]
    own = (Choice(_TABLE, "the recipe's own"),) if value == _TABLE else ()
    choices = (*own, Choice(AUTO, "every one that fits"), Choice(useful, "those that train faster"))
    return [
        *found,
        Knob("planned", _SCALES, "Sizes", value, "planned", "elastic", choices),
        Knob("only", _SCALES, "Only these sizes", "", "sizes", "elastic"),
    ]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or isinstance(value, Mapping | list) else str(value)


def _number(text: str) -> int | float | str:
    """Return a finite number that a text writes, else the text as it is, which a check refuses with its own words."""
    if len(text) < 40:
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                found = kind(text)
                if abs(found) < 1e300:
                    return found
    return literal(text)
