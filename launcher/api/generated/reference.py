"""What `recipes docs` generates: the pages of recipes, keys, codes and commands, two pictures, and the files of
`recipes_collection/cluster`."""

import itertools
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from launcher.api.files import changed, write_file
from launcher.api.generated import architecture, schema
from launcher.api.generated.codes import Code, all_codes
from launcher.api.generated.terminal_picture import plan_picture
from launcher.common import pictures, yaml_io
from launcher.common.paths import CHECKOUT, COLLECTION
from launcher.common.templating import render_template
from launcher.common.text_table import clipped, value_text
from launcher.config import catalogue
from launcher.model import backend_registry, family_registry
from launcher.model.backend_registry import described
from launcher.model.base_model import INT64
from launcher.model.validation import submodel
from launcher.runtime.finetune.key_terms import Key

DOCS, README = Path("docs"), Path("README.md")
PICTURE = DOCS / "pictures/plan.svg"
"""The README's."""
ARCHITECTURE = DOCS / "pictures/architecture.svg"
_CLUSTER_FILES = Path("recipes_collection/cluster")
_MOST_EXAMPLES = 4
_COMMENT_WIDTH = 110
_MOST_CHARACTERS = 60
"""Maximum characters of a default in a table."""


def pages(group: click.Group) -> dict[Path, str]:
    """Return every generated text, by its path from the root of a checkout. `group` has the commands."""
    return _texts(group) | _terminal(group)


def stale(root: Path, group: click.Group) -> list[Path]:
    """Return the pages and pictures under `root`, a checkout, that differ from what the code generates."""
    texts = changed(root, _texts(group) | _readme(root))
    # The picture's command fails while a cluster's file lacks a key that its options have.
    is_faulty = any(path.parent == _CLUSTER_FILES for path in texts)
    return [*texts, *([] if is_faulty else _stale_pictures(root, group))]


def write(root: Path, group: click.Group) -> list[Path]:
    """Write the pages and pictures that are stale under `root`, a checkout; return their paths."""
    texts = changed(root, _texts(group) | _readme(root))
    for path, text in texts.items():
        write_file(root / path, text)
    drawings = _stale_pictures(root, group)  # after the texts: see `stale`
    for path, drawn in drawings.items():
        if drawn is None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            architecture.draw(root / path)
        else:
            write_file(root / path, drawn)
    return [*texts, *drawings]


def _texts(group: click.Group) -> dict[Path, str]:
    made = {
        DOCS / "RECIPES.md": _recipes(),
        DOCS / "reference/keys.md": _keys(),
        DOCS / "reference/rules.md": _rules(),
        DOCS / "reference/commands.md": _commands(group),
        DOCS / "reference/open-trainer.md": _open_trainer(),
        **{
            _CLUSTER_FILES / f"{each.choice}.yaml": _cluster(each.options())
            for each in backend_registry.descriptions()
        },
    }
    return {path: text.rstrip("\n") + "\n" for path, text in made.items()}


def _readme(root: Path) -> dict[Path, str]:
    """Return the README of a checkout, if it has one, with the number of recipes in the collection."""
    if not (root / README).is_file():
        return {}
    text, number = (root / README).read_text("utf-8"), len(catalogue.entries())
    return {README: re.sub(r"\*\*\d+ recipes\*\*", f"**{number} recipes**", text)}


def _terminal(group: click.Group) -> dict[Path, str]:
    return {PICTURE: plan_picture(group).rstrip("\n") + "\n"}


def _stale_pictures(root: Path, group: click.Group) -> Mapping[Path, str | None]:
    """Return the pictures that are stale, with their text; None for one that matplotlib draws."""
    is_current = pictures.shows(root / ARCHITECTURE, repr(architecture.outline()))
    return changed(root, _terminal(group)) | ({} if is_current else {ARCHITECTURE: None})


def _code(text: str) -> str:
    """Return a text as code in a table's cell."""
    return text.replace("|", "\\|")


def _cell(text: str) -> str:
    """Return a text as a table's cell; outside of code, `<` would begin a tag."""
    return _code(text).replace("<", "&lt;")


def _recipes() -> str:
    place = os.path.relpath(COLLECTION, CHECKOUT / DOCS) if CHECKOUT else COLLECTION.name
    rows = [
        {
            "family": entry.name.rpartition("/")[0],
            "name": entry.name.rpartition("/")[2],
            "link": f"{place}/recipes/{entry.name}.yaml",
            "model": entry.model,
            "origin": "" if entry.is_published else "own",
            "technique": (entry.technique or "").replace("_", " + "),
            "sizes": catalogue.sizes(entry.path),
            "instances": ", ".join(name.removeprefix("ml.") for name in entry.instance_types) or "any",
        }
        for entry in catalogue.entries()
    ]
    by_family = itertools.groupby(rows, key=lambda row: row["family"])
    grouped = [{"name": name, "rows": list(group)} for name, group in by_family]
    counts = {"elastic": sum(bool(row["sizes"]) for row in rows), "own": sum(bool(row["origin"]) for row in rows)}
    return render_template("docs/recipes.md.j2", families=grouped, count=len(rows), **counts)


def _rules() -> str:
    def row(code: Code) -> dict[str, str]:
        where = f" Only on cluster={code.cluster}." if code.cluster else ""
        return {"code": code.code, "reason": _cell(code.reason + where), "source": _cell(code.source)}

    grouped = itertools.groupby(all_codes(), key=lambda code: code.subject)
    subjects = [(subject, list(map(row, codes))) for subject, codes in grouped]
    return render_template("docs/rules.md.j2", subjects=subjects)


def _open_trainer() -> str:
    """Return the page of what the open trainer does with each key of the families that it trains."""

    def row(key: Key) -> dict[str, str]:
        others = ""
        if found := key.condition:
            reason = "" if found.reason == key.effect else f", {found.reason}"
            others = f"{found.when}: {found.treatment}{reason}"
        return {"path": key.path, "treatment": key.treatment, "effect": _cell(key.effect), "others": _cell(others)}

    families = [
        {
            "name": name,
            "sections": [
                {"title": title, "rows": list(map(row, keys))} for title, keys in given.table().sections.items()
            ],
        }
        for name in family_registry.names()
        if (given := family_registry.open_recipe_of(name))
    ]
    return render_template("docs/open-trainer.md.j2", families=families)


def _keys() -> str:
    chapters = [("A launch", "`key=value` on the command line.", schema.launch_schema(), "")]
    for name in family_registry.names():
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


def _tables(node: Mapping[str, Any], path: str, root: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the table of a mapping and of every mapping inside it: rows of name, kind, default and description."""
    if node is root or "properties" in node:
        rows = [
            (name, _cell(_kind(child)), _code(_default(child, name)), _cell(child.get("description", "")))
            for name, child in node["properties"].items()
        ]
        yield {"path": path, "rows": rows}
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


def _commands(group: click.Group) -> str:
    commands = []
    for name, command in group.commands.items():
        context = click.Context(command, info_name=name)
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


def _record(param: Any, context: click.Context) -> tuple[str, str] | None:
    """Return a parameter's spelling and description; an argument's without the type that typer adds."""
    is_argument = param.param_type_name == "argument"
    return (param.metavar, param.help or "") if is_argument else param.get_help_record(context)


def _usage(command: click.Command) -> Iterator[str]:
    """Yield the words of a command's usage line after its name."""
    if any(param.param_type_name == "option" for param in command.params):
        yield "[OPTIONS]"
    for param in command.params:
        if param.param_type_name == "argument":
            name = param.metavar or (param.name or "").upper()
            yield name if param.required or name.startswith("[") else f"[{name}]"


def _cluster(options: type[BaseModel]) -> str:
    """Return a file of `recipes_collection/cluster`: every key that a backend's options declare with `default`."""
    source = f"launcher/{options.__module__.removeprefix('launcher.').replace('.', '/')}.py"
    head = (*_comment(options.__doc__ or "", ""), f"# Written by `recipes docs` from {source}.")
    return "\n".join((*head, *_options(options, ""), ""))


def _options(model: type[BaseModel], indent: str) -> Iterator[str]:
    """Yield the lines of a mapping; a key that is absent unless a user sets it is described in a comment."""
    texts = schema.descriptions(model)
    for name, info in model.model_fields.items():
        key, inner = info.alias or name, submodel(model, info.alias or name)
        extra = info.json_schema_extra
        yield from _comment(texts[name], indent)
        if isinstance(extra, dict) and "default" in extra:
            yield f"{indent}{yaml_io.dump({key: extra['default']}).rstrip()}"
        elif inner and info.is_required():
            yield f"{indent}{key}:"
            yield from _options(inner, f"{indent}  ")
        else:
            yield f"{indent}# {key}: left out"


def _comment(text: str, indent: str) -> list[str]:
    width = _COMMENT_WIDTH - len(indent)
    lines = textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)
    return [f"{indent}# {line}" for line in lines]
