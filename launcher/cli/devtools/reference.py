"""The pages of docs/ that are generated from the code: recipes, keys, codes, commands, and two pictures."""

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import families
from launcher.cli.devtools import architecture, cluster_files, schema
from launcher.cli.devtools.codes import Code, all_codes
from launcher.cli.devtools.terminal_picture import plan_picture
from launcher.common import pictures
from launcher.common.paths import CHECKOUT, COLLECTION
from launcher.common.templating import render_template
from launcher.common.text_table import clipped, value_text
from launcher.config import catalogue
from launcher.model import backend_registry
from launcher.model.backend_registry import described
from launcher.model.base_model import INT64
from launcher.runtime.finetune import keys as finetune_keys
from launcher.runtime.finetune.key_terms import Key

DOCS = Path("docs")
PICTURE = DOCS / "pictures/plan.svg"
"""The README's."""
ARCHITECTURE = DOCS / "pictures/architecture.svg"
_CLUSTER_FILES = Path("recipes_collection/cluster")
_ROOT = CHECKOUT or Path()
_MOST_EXAMPLES = 4
_MOST_CHARACTERS = 60
"""Maximum characters of a default in a table."""


def pages() -> dict[Path, str]:
    """Return every generated text, by its path from the root of a checkout. Pure but for reading the code."""
    return _texts() | _terminal()


def stale(root: Path = _ROOT) -> list[Path]:
    """Return the pages and pictures under `root`, a checkout, that differ from what the code generates."""
    changed = _changed(root, _texts())
    # The picture's command fails while a cluster's file lacks a key that its options have.
    return (
        [*changed] if any(path.parent == _CLUSTER_FILES for path in changed) else [*changed, *_stale_pictures(root)]
    )


def write(root: Path = _ROOT) -> list[Path]:
    """Write the pages and pictures that are stale under `root`, a checkout; return their paths.

    Raises:
        ProblemsFound: A picture cannot be drawn, for instance without matplotlib.
    """
    texts = _changed(root, _texts())
    _write(root, texts)
    drawings = _stale_pictures(root)
    _write(root, drawings)
    return [*texts, *drawings]


def _write(root: Path, files: Mapping[Path, Callable[[Path], Any]]) -> None:
    for path, write_to in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        write_to(root / path)


def _texts() -> dict[Path, str]:
    made = {
        DOCS / "RECIPES.md": _recipes(),
        DOCS / "reference/keys.md": _keys(),
        DOCS / "reference/rules.md": _rules(),
        DOCS / "reference/commands.md": _commands(),
        DOCS / "reference/open-trainer.md": _open_trainer(),
        **{_CLUSTER_FILES / name: text for name, text in cluster_files.files().items()},
    }
    return {path: text.rstrip("\n") + "\n" for path, text in made.items()}


def _terminal() -> dict[Path, str]:
    return {PICTURE: plan_picture().rstrip("\n") + "\n"}


def _changed(root: Path, texts: Mapping[Path, str]) -> dict[Path, Callable[[Path], Any]]:
    """Return a writer for each text that differs from its file."""
    return {
        path: functools.partial(Path.write_text, data=text, encoding="utf-8")
        for path, text in texts.items()
        if not (root / path).is_file() or (root / path).read_text("utf-8") != text
    }


def _stale_pictures(root: Path) -> dict[Path, Callable[[Path], Any]]:
    """Return a drawer for each picture that is stale."""
    is_current = pictures.shows(root / ARCHITECTURE, repr(architecture.outline()))
    return _changed(root, _terminal()) | ({} if is_current else {ARCHITECTURE: architecture.draw})


def _cell(text: str) -> str:
    """Return a text as a table's cell holds it; outside of code, `<` would begin a tag."""
    return _code(text).replace("<", "&lt;")


def _code(text: str) -> str:
    """Return a text as code in a table's cell."""
    return text.replace("|", "\\|")


def _recipes() -> str:
    entries = catalogue.entries()
    place = os.path.relpath(COLLECTION, _ROOT / DOCS) if CHECKOUT else COLLECTION.name
    rows = [
        {
            "family": entry.name.rpartition("/")[0],
            "name": entry.name.rpartition("/")[2],
            "link": f"{place}/recipes/{entry.name}.yaml",
            "model": entry.model,
            "technique": (entry.technique or "").replace("_", " + "),
            "sizes": catalogue.sizes(entry.path),
            "instances": ", ".join(name.removeprefix("ml.") for name in entry.instance_types) or "any",
        }
        for entry in entries
    ]
    grouped = [
        {"name": name, "rows": list(group)} for name, group in itertools.groupby(rows, key=lambda row: row["family"])
    ]
    elastic = sum(bool(row["sizes"]) for row in rows)
    return render_template("docs/recipes.md.j2", families=grouped, count=len(rows), elastic=elastic)


def _rules() -> str:
    grouped = itertools.groupby(all_codes(), key=lambda code: code.subject)
    subjects = [(subject, [_code_row(code) for code in codes]) for subject, codes in grouped]
    return render_template("docs/rules.md.j2", subjects=subjects)


def _code_row(code: Code) -> dict[str, str]:
    where = f" Only on cluster={code.cluster}." if code.cluster else ""
    return {"code": code.code, "reason": _cell(code.reason + where), "source": _cell(code.source)}


def _open_trainer() -> str:
    named = finetune_keys.SECTIONS.items()
    sections = [{"title": title, "rows": [_trainer_row(key) for key in keys]} for title, keys in named]
    return render_template("docs/open-trainer.md.j2", sections=sections)


def _trainer_row(key: Key) -> dict[str, str]:
    reasons = [(each, "" if each.reason == key.effect else f", {each.reason}") for each in key.conditions]
    others = "; ".join(f"{each.when}: {each.treatment}{reason}" for each, reason in reasons)
    return {"path": key.path, "treatment": key.treatment, "effect": _cell(key.effect), "others": _cell(others)}


@dataclass(frozen=True, slots=True)
class _Table:
    """The keys of one mapping: rows of name, kind of value, default and description."""

    path: str
    rows: tuple[tuple[str, str, str, str], ...]


def _keys() -> str:
    chapters = [("A launch", "`key=value` on the command line.", schema.launch_schema(), "")]
    for name in families.names():
        text = f"The keys of a recipe file; on the command line prefixed with `recipes.`. `run.model_type: {name}`."
        chapters.append((f"Recipes: {name}", text, schema.recipe_schema(name), ""))
    for name in backend_registry.names():
        tree, extended = schema.own_cluster_schema(name)
        text = f"Beside these, the keys of cluster={extended}." if extended else "Keys of the chosen cluster."
        chapters.append((f"cluster={described(name).choice}", text, tree, "cluster"))
    made = [
        {"title": title, "text": text, "tables": list(_tables(tree, path, tree))}
        for title, text, tree, path in chapters
    ]
    return render_template("docs/keys.md.j2", chapters=made)


def _tables(node: Mapping[str, Any], path: str, root: Mapping[str, Any]) -> Iterator[_Table]:
    """Yield the table of a mapping and of every mapping inside it."""
    if node is root or "properties" in node:
        rows = tuple(
            (name, _cell(_kind(child)), _code(_default(child, name)), _cell(child.get("description", "")))
            for name, child in node["properties"].items()
        )
        yield _Table(path, rows)
        for name, child in node["properties"].items():
            yield from _tables(_inside(child), f"{path}.{name}" if path else name, root)


def _inside(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping that a key holds, or that each item of its list is; else the node itself."""
    members: Sequence[Mapping[str, Any]] = node.get("anyOf", (node,))
    listed: Mapping[str, Any] = next((member["items"] for member in members if "items" in member), {})
    return listed if "properties" in listed else schema.mapping_in(node)


def _kind(node: Mapping[str, Any]) -> str:
    """Return a description of a value's type."""
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(_kind(member) for member in node["anyOf"]))
    if "enum" in node or "const" in node:
        return " or ".join(f"`{value}`" for value in node.get("enum", [node.get("const")]))
    kinds = {"boolean": "true or false", "string": "text", "null": "null", "object": "mapping"}
    kind = node.get("type")
    if kind == "array":
        return f"list of {_kind(node.get('items', {}))}"
    if kind in ("integer", "number"):
        return f"{'whole number' if kind == 'integer' else 'number'}{_bounds(node)}"
    return kinds.get(str(kind), "anything")


def _bounds(node: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    given = {sign: node[key] for key, sign in signs.items() if key in node and node[key] != INT64}
    return "".join(
        f", {sign} {bound if float(f'{bound:g}') != bound else f'{bound:g}'}" for sign, bound in given.items()
    )


def _default(node: Mapping[str, Any], name: str) -> str:
    """Return the default, and other values that parts of recipes have."""
    examples = [_value(value, name) for value in node.get("examples", ())]
    shown = [*examples[:_MOST_EXAMPLES], *(["…"] if len(examples) > _MOST_EXAMPLES else [])]
    if "default" not in node:
        return f"differs: {', '.join(shown)}" if shown else ""
    return _value(node["default"], name) + (f"; also {', '.join(shown[1:])}" if shown else "")


def _value(value: Any, name: str) -> str:
    return f"`{clipped(value_text(value, name), _MOST_CHARACTERS)}`"


def _commands() -> str:
    import typer

    from launcher.cli.main import app

    group: Any = typer.main.get_command(app)
    commands = []
    for name, command in group.commands.items():
        context = typer.Context(command, info_name=name)
        records = [record for param in command.params if (record := _record(param, context))]
        commands.append(
            {
                "name": name,
                "help": " ".join((command.help or "").split()),
                "usage": " ".join(["recipes", name, *_usage(command)]),
                "params": [(_code(spelling), _cell(text)) for spelling, text in records],
            }
        )
    return render_template("docs/commands.md.j2", commands=commands)


def _record(param: Any, context: Any) -> tuple[str, str] | None:
    """Return a parameter's spelling and description; an argument's without the type that typer adds."""
    is_argument = param.param_type_name == "argument"
    return (param.metavar, param.help or "") if is_argument else param.get_help_record(context)


def _usage(command: Any) -> Iterator[str]:
    """Yield the words of a command's usage line after its name."""
    if any(param.param_type_name == "option" for param in command.params):
        yield "[OPTIONS]"
    for param in command.params:
        if param.param_type_name == "argument":
            name = param.metavar or param.name.upper()
            yield name if param.required or name.startswith("[") else f"[{name}]"
