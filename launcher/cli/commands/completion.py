"""Shell completion of overrides: keys, and the values of a key."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.common.secret_names import is_secret
from launcher.config.collection import recipe_names

if TYPE_CHECKING:
    from launcher.model.composition import Composition

_SIZE = re.compile(r"recipes\.scale_config\.\d+\.")
_PLAIN = re.compile(r"[\w./+-]+")
"""A value without special meaning in shells and in the grammar of overrides."""


def keys(composition: "Composition") -> Iterator[str]:
    """Yield the dotted path of every value of a composition."""
    from launcher.model.config_tree import leaves

    yield from (path for path, _ in leaves(composition.tree) if not path.startswith("recipes.scale_config."))


def complete(composition: "Composition", incomplete: str) -> list[str]:
    """Return completions of an override: keys, and after the `=`, values of the key."""
    signs = incomplete[: len(incomplete) - len(incomplete.lstrip("+~"))]
    key, equals, value = incomplete.removeprefix(signs).partition("=")
    if equals:
        offers = _values(composition, key, value) if "~" not in signs else ()
        return [f"{signs}{key}={offer}" for offer in dict.fromkeys(offers) if offer.startswith(value)]
    end = "" if "~" in signs else "="
    offers = ("cluster", *keys(composition), *_optional(composition, key))
    return [f"{signs}{path}{end}" for path in dict.fromkeys(offers) if path.startswith(key)]


def _optional(composition: "Composition", begin: str) -> Iterator[str]:
    """Yield the keys of the cluster that its file does not set."""
    if begin.startswith("cluster."):
        from launcher.cli.devtools.schema import cluster_schema

        yield from (f"cluster.{name}" for name in cluster_schema(composition.backend)["properties"])


def _values(composition: "Composition", key: str, begin: str) -> Sequence[str]:
    """Return the possible values of a key, or its current value if they cannot be listed."""
    if key in _NAMES:
        return _NAMES[key](begin)
    if key.startswith("cluster.") and (names := _of_clusters(key.removeprefix("cluster."))):
        return names
    path = _SIZE.sub("recipes.", key)
    found = list(_of_schema(_schema(composition, path), path.split(".")[1:] if "." in path else [path]))
    return found or _current(composition, path)


def _of_clusters(key: str) -> Sequence[str]:
    """Return the names that a key of the section may have on any cluster: the choice may follow on the line."""
    from launcher.model.backend_registry import descriptions

    return next(filter(None, (each.offers(key) for each in descriptions())), ())


def _clusters(_begin: str) -> list[str]:
    from launcher.config.catalogue import CLUSTERS

    return sorted(file.stem for file in CLUSTERS.glob("*.yaml"))


def _instance_types(begin: str) -> list[str]:
    """Return the known instance types, with their prefix too if the word may start with it."""
    from launcher.model.instances import table

    return [*(name.removeprefix("ml.") for name in table()), *(table() if begin.startswith("m") else ())]


_NAMES: dict[str, Callable[[str], list[str]]] = {
    "cluster": _clusters,
    "instance_type": _instance_types,
    "recipes": lambda _begin: recipe_names(),
}
"""Keys whose values are names of existing objects."""


def _schema(composition: "Composition", path: str) -> Mapping[str, Any]:
    from launcher.cli.devtools import schema

    section = path.partition(".")[0]
    if section == "recipes":
        return schema.recipe_schema(composition.tree["recipes"]["run"]["model_type"])
    return schema.cluster_schema(composition.backend) if section == "cluster" else schema.launch_schema()


def _of_schema(node: Any, names: Sequence[str]) -> Iterator[str]:
    """Yield the values that a key's schema lists: constants, true and false."""
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
    """Return a key's current value if it needs no quotes and is not a secret."""
    from launcher.common.text_table import value_text
    from launcher.model.config_tree import get

    value = get(composition.tree, path)
    if not isinstance(value, str | int | float) or is_secret(path):
        return []
    text = value_text(value, path)
    return [text] if _PLAIN.fullmatch(text) else []
