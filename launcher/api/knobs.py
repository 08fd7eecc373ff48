"""What may be moved in a plan: the keys of a recipe that determine its sizes and its cost, with their values."""

import contextlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from launcher.api import naming
from launcher.api.session import Session
from launcher.common.problems import ProblemsFound
from launcher.config.compose import compose
from launcher.model.config_tree import get
from launcher.model.family_registry import name_of, recipe_model
from launcher.model.instances import table as instance_table

Kind = Literal["number", "choice", "flag"]


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
    choices: tuple[str, ...] = ()

    def override(self, text: str) -> Any:
        """Return what a user typed as the value of an override: a number where it is one, else the text itself."""
        if self.kind == "flag":
            return {"true": True, "false": False}.get(text, text)
        return _number(text) if self.kind == "number" else text


_ELASTIC = "recipes.elastic_policy"


def knobs(recipe: str, cluster: str | None, session: Session) -> tuple[Knob, ...]:
    """Return what may be moved in a recipe on a cluster; none if it does not compose.

    Args:
        recipe: Its path under `recipes/`.
        cluster: None for the recipe's own.
    """
    words = [*naming.choose(recipe), *([f"cluster={cluster}"] if cluster else [])]
    tree: Mapping[str, Any] = {}
    with contextlib.suppress(ProblemsFound), session.active():
        tree = compose(words, session.context().cwd, cache=session.cache).tree
    return tuple(_knobs(tree)) if tree else ()


def _knobs(tree: Mapping[str, Any]) -> list[Knob]:
    def knob(name: str, key: str, label: str, kind: Kind, choices: tuple[str, ...] = ()) -> Knob:
        return Knob(name, key, label, _text(get(tree, key)), kind, choices)

    recipe = tree["recipes"]
    family = name_of(get(recipe, "run.model_type"))
    keys = recipe_model(family).keys if family else None
    own = tuple(str(each) for each in recipe.get("instance_types") or ())
    types = (*own, *(name for name in sorted(instance_table()) if name not in own))
    found = [
        knob("nodes", "recipes.trainer.num_nodes", "Nodes", "number"),
        knob("instance", "instance_type", "Instance type", "choice", types),
    ]
    if keys and keys.batch:
        batch = keys.batch
        found += [
            knob("batch", f"recipes.{batch.train_batch_size}", "Global batch", "number"),
            knob("micro", f"recipes.{batch.micro_train_batch_size}", "Micro batch", "number"),
            knob("rate", f"recipes.{batch.learning_rate}", "Learning rate", "number"),
        ]
    if isinstance(recipe.get("elastic_policy"), Mapping):
        found += [
            knob("elastic", f"{_ELASTIC}.is_elastic", "Elastic", "flag", ("true", "false")),
            knob("min", f"{_ELASTIC}.min_nodes", "At least", "number"),
            knob("max", f"{_ELASTIC}.max_nodes", "At most", "number"),
            knob("step", f"{_ELASTIC}.replica_increment_step", "In steps of", "number"),
        ]
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or isinstance(value, Mapping | list) else str(value)


def _number(text: str) -> int | float | str:
    """Return a finite number that a text writes, else the text, which a check refuses with its own words."""
    if len(text) < 40:
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                found = kind(text)
                if abs(found) < 1e300:
                    return found
    return text
