"""Shell completion of overrides: keys, and the values of a key; and completion in bash.

bash splits words at `=`, `:` and `@`, which typer's own completion does not handle.

Source: Bash manual, Programmable Completion, and Bash Variables, COMP_WORDBREAKS.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from click.shell_completion import CompletionItem, add_completion_class, split_arg_string
from typer import _completion_classes, _completion_shared

from launcher.api import offers
from launcher.common.secret_names import is_secret
from launcher.common.text_table import value_text

if TYPE_CHECKING:
    from launcher.api.offers import Composition

_SIZE = re.compile(r"recipes\.scale_config\.\d+\.")
_PLAIN = re.compile(r"[\w./+-]+")
"""A value without special meaning in shells and in the grammar of overrides."""
_BASH = "bash"
_LINE, _BREAKS = "COMP_LINE", "COMP_WORDBREAKS"
_SCRIPT = """
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   COMP_LINE="${COMP_LINE:0:COMP_POINT}" \\
                   COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
                   %(autocomplete_var)s=complete_bash $1 ) )
    if [[ ${COMPREPLY[0]-} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
"""typer's script, with the line as typed, and without a blank after a key that needs a value."""


def complete(composition: "Composition", incomplete: str) -> list[str]:
    """Return completions of an override: keys, and after the `=`, values of the key."""
    signs = incomplete[: len(incomplete) - len(incomplete.lstrip("+~"))]
    key, equals, value = incomplete.removeprefix(signs).partition("=")
    if equals:
        found = _values(composition, key, value) if "~" not in signs else ()
        return [f"{signs}{key}={each}" for each in dict.fromkeys(found) if each.startswith(value)]
    paths = ["cluster", *offers.keys(composition)]
    if key.startswith("cluster."):  # also those that the cluster's file does not set
        from launcher.api.generated.schema import cluster_schema

        paths += [f"cluster.{name}" for name in cluster_schema(composition.backend)["properties"]]
    end = "" if "~" in signs else "="
    return [f"{signs}{path}{end}" for path in dict.fromkeys(paths) if path.startswith(key)]


def _values(composition: "Composition", key: str, begin: str) -> Sequence[str]:
    """Return the possible values of a key, or its current value if they cannot be listed."""
    if key in _NAMES:
        return _NAMES[key](begin)
    # on any cluster: the choice may follow on the line
    if key.startswith("cluster.") and (names := offers.cluster_values(key.removeprefix("cluster."))):
        return names
    path = _SIZE.sub("recipes.", key)
    found = list(_of_schema(_schema(composition, path), path.split(".")[1:] if "." in path else [path]))
    return found or _current(composition, path)


def _instance_types(begin: str) -> list[str]:
    """Return the known instance types, with their prefix too if the word may start with it."""
    names = offers.instance_types()
    return [*(name.removeprefix("ml.") for name in names), *(names if begin.startswith("m") else ())]


_NAMES: dict[str, Callable[[str], list[str]]] = {
    "cluster": lambda _begin: offers.clusters(),
    "instance_type": _instance_types,
    "recipes": lambda _begin: offers.recipe_names(),
}
"""Keys whose values are names of existing objects."""


def _schema(composition: "Composition", path: str) -> Mapping[str, Any]:
    from launcher.api.generated import schema

    section = path.partition(".")[0]
    if section == "recipes":
        return schema.recipe_schema(composition.tree["recipes"]["run"]["model_type"])
    return schema.cluster_schema(composition.backend) if section == "cluster" else schema.launch_schema()


def _of_schema(node: Any, names: Sequence[str]) -> Iterator[str]:
    """Yield the values that a key's schema lists: constants, true and false."""
    from launcher.api.generated.schema import mapping_in

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
    value = offers.get(composition.tree, path)
    if not isinstance(value, str | int | float) or is_secret(path):
        return []
    text = value_text(value, path)
    return [text] if _PLAIN.fullmatch(text) else []


class BashComplete(_completion_classes.BashComplete):
    """Reads the line up to the cursor, and returns the part after the last character at which bash splits a word."""

    def get_completion_args(self) -> tuple[list[str], str]:
        if not os.environ.get(_LINE):  # a script of an earlier version
            return super().get_completion_args()
        line = os.environ[_LINE]
        words = split_arg_string(line)[1:]
        return (words[:-1], words[-1]) if words and not line[-1:].isspace() else (words, "")

    def format_completion(self, item: CompletionItem) -> str:
        incomplete = self.get_completion_args()[1] if os.environ.get(_LINE) else ""
        breaks = os.environ.get(_BREAKS, "")
        kept = max((i + 1 for i, sign in enumerate(incomplete) if sign in breaks), default=0)
        value = str(item.value)
        return value[kept:] if value.startswith(incomplete[:kept]) else value


def register_bash() -> None:
    """Register bash's completion in place of typer's; call it after typer has registered its own."""
    add_completion_class(BashComplete, _BASH)
    _completion_shared._completion_scripts[_BASH] = _SCRIPT
