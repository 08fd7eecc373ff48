"""What a shell completes in overrides: keys, and the values that a key may have."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.common.problems import ProblemsFound
from launcher.common.secret_names import is_secret
from launcher.config.collection import recipe_names

if TYPE_CHECKING:
    from launcher.model.composition import Composition

_SIZE = re.compile(r"recipes\.scale_config\.\d+\.")
_PLAIN = re.compile(r"[\w./+-]+")
"""A value that no shell and no part of the grammar of overrides reads as something else."""
_SIGNS = re.compile(r"[+~]*")


def keys(composition: "Composition") -> Iterator[str]:
    """Yield the dotted path of every value of a composition."""
    from launcher.model.config_tree import leaves

    yield from (path for path, _ in leaves(composition.tree) if not path.startswith("recipes.scale_config."))


def complete(composition: "Composition", incomplete: str) -> list[str]:
    """Return the overrides that a word may become: keys, and once it has its `=`, values of the key."""
    signs = _SIGNS.match(incomplete)[0]
    key, equals, value = incomplete.removeprefix(signs).partition("=")
    if equals:
        offers = _values(composition, key, value) if "~" not in signs else ()
        return [f"{signs}{key}={offer}" for offer in dict.fromkeys(offers) if offer.startswith(value)]
    end = "" if "~" in signs else "="
    offers = ("cluster", *keys(composition), *_optional(composition, key))
    return [f"{signs}{path}{end}" for path in dict.fromkeys(offers) if path.startswith(key)]


def _optional(composition: "Composition", begin: str) -> Iterator[str]:
    """Yield the keys of the cluster that its file leaves out."""
    if begin.startswith("cluster."):
        from launcher.cli.devtools.schema import cluster_schema

        yield from (f"cluster.{name}" for name in cluster_schema(composition.backend)["properties"])


def _values(composition: "Composition", key: str, begin: str) -> Sequence[str]:
    """Return the values that a key may have: those there are, or the one it has if there are too many to list."""
    if key in _NAMES:
        return _NAMES[key](begin)
    path = _SIZE.sub("recipes.", key)
    found = list(_of_schema(_schema(composition, path), path.split(".")[1:] if "." in path else [path]))
    return found or _current(composition, path)


def _clusters(_begin: str) -> list[str]:
    from launcher.config.recipe_parts import CLUSTERS

    return sorted(file.stem for file in CLUSTERS.glob("*.yaml"))


def _instance_types(begin: str) -> list[str]:
    """Return the known instance types, with their prefix too if the word may begin with it."""
    from launcher.model.instances import table

    return [*(name.removeprefix("ml.") for name in table()), *(table() if begin.startswith("m") else ())]


def _scenarios(_begin: str) -> list[str]:
    from launcher.backends.local.scenario_files import shipped_names

    return shipped_names()


_NAMES = {
    "cluster": _clusters,
    "instance_type": _instance_types,
    "cluster.scenario": _scenarios,
    "recipes": lambda _begin: recipe_names(),
}
"""Keys whose values are names of things that exist."""


def _schema(composition: "Composition", path: str) -> Mapping[str, Any]:
    from launcher.cli.devtools import schema

    section = path.partition(".")[0]
    if section == "recipes":
        return schema.recipe_schema(composition.tree["recipes"]["run"]["model_type"])
    return schema.cluster_schema(composition.backend) if section == "cluster" else schema.launch_schema()


def _of_schema(node: Any, names: Sequence[str]) -> Iterator[str]:
    """Yield the values that the schema of a key lists: words, true and false."""
    from launcher.cli.devtools.schema import mapping_in

    for name in names:
        node = mapping_in(node).get("properties", {}).get(name)
        if node is None:
            return
    for member in node.get("anyOf", (node,)):
        if member.get("type") == "boolean":
            yield from ("true", "false")
        listed = member.get("enum", [member["const"]] if "const" in member else ())
        yield from (str(value).lower() if isinstance(value, bool) else str(value) for value in listed)


def _current(composition: "Composition", path: str) -> list[str]:
    """Return the value that a key has, if it can be typed as it is and is not a secret."""
    from launcher.common.text_table import value_text
    from launcher.model.config_tree import get

    value = get(composition.tree, path)
    if not isinstance(value, str | int | float) or is_secret(path):
        return []
    text = value_text(value, path)
    return [text] if _PLAIN.fullmatch(text) else []


def composed(name: str, overrides: Sequence[str]) -> "Composition | None":
    """Return a recipe with the overrides that stand before the word; without them, or None, while they are faulty."""
    from launcher.cli.commands import arguments

    for given in (overrides, ()):
        try:
            return arguments.composed(arguments.Target.read(name).name, given)
        except ProblemsFound:
            continue
    return None
