"""A recipe with overrides, composed but not checked: its values, their origins, and how its sizes differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.api import values
from launcher.api.arguments import checked, of_type
from launcher.api.naming import Target, choose
from launcher.common.problems import Notice, raise_any
from launcher.common.redaction import masked
from launcher.common.secret_names import is_secret
from launcher.common.text_table import HIDDEN, value_text
from launcher.config.compose import compose
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.composition import Composition, Setting
from launcher.model.config_tree import ABSENT
from launcher.model.size_plan import spans
from launcher.planning import explain
from launcher.planning.check import check, unread
from launcher.planning.explain import Sizes, Value, as_json, differing
from launcher.rules import hardware

__all__ = [
    "ABSENT", "Composed", "Composition", "Setting", "Value", "as_json", "compose", "composed", "differing",
    "only_read", "spans",
]  # fmt: skip


@checked()
@dataclass(frozen=True)
class Composed:
    """A composition, which may be faulty.

    Args:
        target: The recipe as the user names it, and the size that is asked for.
    """

    target: Target
    composition: Composition

    @property
    def notices(self) -> tuple[Notice, ...]:
        """That the table lacks its instance type, if so."""
        return tuple(hardware.unknown(self.composition))

    @cached_property
    def sizes(self) -> Sizes:
        """The recipe at each of its sizes."""
        return Sizes(self.composition)

    @cached_property
    def checked(self) -> CheckedRecipe:
        """The typed recipe.

        Raises:
            ProblemsFound: Every fault in it.
        """
        return check(self.composition)

    def tree(self, *, full: bool = False) -> dict[str, Any]:
        """Return the recipe, at the size that is asked for, without plain-text secrets.

        Args:
            full: With the cluster and all keys of the launch, the recipe as `recipes`.

        Raises:
            ProblemsFound: It has no such size (E803).
        """
        recipe = self.sizes.at(self.target.nodes) if self.target.nodes else self.composition.tree["recipes"]
        return _hidden({**self.composition.tree, "recipes": recipe} if full else recipe)

    @property
    def trees(self) -> dict[str, dict[str, Any]]:
        """The recipe at each size, by its number of nodes, without plain-text secrets."""
        return {str(nodes): _hidden(tree) for nodes, tree in self.sizes.trees.items()}

    @property
    def differing(self) -> dict[str, tuple[str, dict[str, list[int]]]]:
        """The keys that differ between sizes: the base value as text, and each other one with its sizes in nodes."""
        return {
            path: found
            for path in dict.fromkeys(path for tree in self.sizes.scales.values() for path in tree)
            if path != "recipes.trainer.num_nodes" and (found := self._values(path))[1]
        }

    def _values(self, path: str) -> tuple[str, dict[str, list[int]]]:
        def text_in(tree: Mapping[str, Any]) -> str:
            return value_text(tree[path], path) if path in tree else "absent"

        base, values = text_in(self.sizes.base), dict[str, list[int]]()
        for nodes, tree in self.sizes.scales.items():
            if (text := text_in(tree)) != base:
                values.setdefault(text, []).append(nodes)
        return base, values

    def explain(self, key: str) -> dict[str, tuple[Value, ...]]:
        """Return for each leaf that a key names its value, at every size or the one asked for, and who set it.

        Raises:
            ProblemsFound: It has no such key (E101) or size (E803).
        """
        key, nodes = of_type(str, key, "E101", "explain", "a key"), self.target.nodes
        if nodes is not None:
            self.sizes.at(nodes)
        found = {path: explain.explain(self.sizes, path) for path in explain.find(self.sizes, key)}
        if nodes is None:
            return found
        return {path: tuple(v for v in values if v.nodes in (nodes, None))[-1:] for path, values in found.items()}


def composed(recipe: str, overrides: Sequence[str] | None = None) -> Composed:
    """Compose a recipe, or one size of it, as a user names it.

    Raises:
        ProblemsFound: It is unknown, cannot be composed, or an override sets a key that nothing reads (E101).
    """
    target = Target.read(recipe)
    return Composed(target, only_read(compose(choose(target.name, values.words(overrides or ())), Path.cwd())))


def only_read(composition: Composition) -> Composition:
    """Return a composition, which may be faulty, whose overrides set keys that are read.

    Raises:
        ProblemsFound: An override sets a key that nothing reads (E101).
    """
    raise_any(unread(composition))
    return composition


def _hidden(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a copy of a tree without plain-text secrets."""

    def hide(value: Any, here: str) -> Any:
        if isinstance(value, Mapping):
            return _hidden(value, here)
        if isinstance(value, str):
            return HIDDEN if value and is_secret(here) else masked(value)
        return [hide(each, here) for each in value] if isinstance(value, list) else value

    return {key: hide(value, f"{path}.{key}" if path else key) for key, value in tree.items()}
