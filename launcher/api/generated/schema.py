"""JSON Schema of recipe files, for editors: every key with its type, unit, effect and default.

Descriptions are the docstrings of the models' fields, read from the source only when a schema is generated; defaults
are the values in the collection's parts. A launch does not use this module.

Source: JSON Schema, draft 2020-12. Only two references are used, for editors that support no later draft than 07.
"""

import ast
import inspect
import itertools
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from launcher.common.problems import Problem, ProblemsFound
from launcher.config import catalogue
from launcher.config.catalogue import Given
from launcher.model import backend_registry
from launcher.model.backend_registry import described
from launcher.model.config_tree import get
from launcher.model.family_registry import family_of
from launcher.model.launch import Launch
from launcher.model.validation import field_names

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = r"^(\$\{.+\}|\?\?\?)$"
"""A value that refers to another value, or that an inheriting file must set.

Source: OmegaConf documentation, Variable interpolation and Mandatory missing values.
"""
_SIZE = "^[1-9][0-9]*$"
_DEFAULTS = {
    "description": "Files this one is made of, lowest precedence first, e.g. /base/llmft/common@_here_: a path from"
    " recipes_collection/ or the search path, without .yaml. _self_ is this file; last, it overrides the others.",
    "type": "array",
    "items": {"type": ["string", "object"]},
}


def json_schema(model_type: str) -> dict[str, Any]:
    """Return the schema of a recipe file of a known family. Nothing is required: a recipe inherits what it omits.

    Unknown keys are refused, unless the file declares `extra_keys`, which a schema cannot look up.
    """
    schema = recipe_schema(model_type)
    schema["properties"] = {"defaults": _DEFAULTS, **schema["properties"]}
    known = _known_properties(schema)
    _describe_sizes(schema["properties"]["scale_config"], known["properties"])
    return {
        "$schema": DIALECT,
        "title": f"Recipe of model_type {model_type}",
        **_with_references(schema),
        "type": "object",  # of the file itself, which cannot be a reference
        "if": {"not": {"required": ["extra_keys"]}},
        "then": {"$ref": "#/$defs/known_keys"},
        "$defs": {"known_keys": known},
    }


def schema_file(model_type: str) -> str:
    """Return the text of a file that holds the schema."""
    return json.dumps(json_schema(model_type), indent=2, ensure_ascii=False) + "\n"


def recipe_schema(model_type: str) -> dict[str, Any]:
    """Return the schema of a complete recipe of a family: only its own keys, and no references.

    Raises:
        ProblemsFound: The family is unknown (E104).
    """
    family = family_of({"run": {"model_type": model_type}})
    if isinstance(family, Problem):
        raise ProblemsFound((family,))
    return _of_model(family, catalogue.defaults(model_type))


def cluster_schema(backend: str) -> dict[str, Any]:
    """Return the schema of the `cluster` section of a backend, by its name."""
    return _of_model(described(backend).options(), {})


def own_cluster_schema(backend: str) -> tuple[dict[str, Any], str | None]:
    """Return the schema of a backend's `cluster` section without the keys of the backend that it extends.

    Returns:
        The schema, and the choice of `cluster` whose keys are left out; None if it extends none.
    """
    schema, options = cluster_schema(backend), described(backend).options()
    for each in backend_registry.descriptions():
        if each.name != backend and issubclass(options, each.options()):
            inherited = field_names(each.options())
            own = {name: node for name, node in schema["properties"].items() if name not in inherited}
            return schema | {"properties": own}, each.choice
    return schema, None


def launch_schema() -> dict[str, Any]:
    """Return the schema of the top level of a launch."""
    values = catalogue.values_of(catalogue.CONFIG_FILE)
    schema = _of_model(Launch, {path: Given((value,), ()) for path, value in values.items()})
    for group, name in catalogue.choices_of(catalogue.CONFIG_FILE).items():
        schema["properties"][group] |= {"type": "string", "default": name}
    return schema


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the text about each field by its name: its docstring, a subclass's first, or its own description."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            found |= _field_docstrings(inspect.getsourcefile(owner)).get(owner.__name__, {})
    texts = {name: found.get(name) or info.description for name, info in model.model_fields.items()}
    return {name: text for name, text in texts.items() if text}


@cache
def _field_docstrings(file: str) -> dict[str, dict[str, str]]:
    """Return class name to field name to docstring, for every class of a file."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return {
        node.name: {
            ast.unparse(field.target): " ".join(str(text.value.value).split())
            for field, text in itertools.pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


class _Generator(GenerateJsonSchema):
    """pydantic's own, with descriptions, without titles, and with nothing required."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> dict[str, Any]:
        model: type[BaseModel] = schema["cls"]
        made = dict(super().model_schema(schema))
        texts = descriptions(model)
        for name, info in model.model_fields.items():
            node = made["properties"][info.alias or name]
            made["properties"][info.alias or name] = {"description": texts.get(name, ""), **node}
        return {key: value for key, value in made.items() if key not in ("required", "title")}


def _of_model(model: type[BaseModel], values: Mapping[str, Given]) -> dict[str, Any]:
    """Return a model's schema as one tree, with the values that parts set for its keys."""
    made = model.model_json_schema(by_alias=True, schema_generator=_Generator)
    schema: dict[str, Any] = _inlined(made, made.get("$defs", {}))
    for path, given in values.items():
        _set_values(schema, path.split("."), given)
    return schema


def _set_values(node: Any, keys: list[str], given: Given) -> None:
    """Write the values of a dotted path into the schema of its key, or of the free-form mapping that holds it."""
    for i, key in enumerate(keys):
        properties = get(mapping_in(node), "properties")
        if properties is None and given.default:
            inside = node["default"] if isinstance(node.get("default"), dict) else {}
            node["default"] = inside | {".".join(keys[i:]): given.default[0]}
            return
        if key not in (properties or ()):
            return  # a key outside the recipe, such as the image that its parts choose
        node = properties[key]
    node.pop("default", None)
    node |= {"default": given.default[0]} if given.default else {}
    node |= {"examples": [*given.default, *given.others]} if given.others else {}


def _inlined(node: Any, defs: Mapping[str, Any]) -> Any:
    """Return a copy of a schema with every reference replaced by its target; a field's own text takes precedence."""
    if isinstance(node, list):
        return [_inlined(item, defs) for item in node]
    if not isinstance(node, dict):
        return node
    copied = {key: _inlined(value, defs) for key, value in node.items() if key not in ("$ref", "$defs")}
    if "$ref" in node:
        return _inlined(defs[node["$ref"].rpartition("/")[2]], defs) | copied
    return copied


def mapping_in(node: Any) -> Any:
    """Return the member of an optional mapping that has properties, or the schema itself."""
    members = node.get("anyOf", ()) if isinstance(node, dict) else ()
    return next((member for member in members if "properties" in member), node)


def _known_properties(mapping: dict[str, Any]) -> dict[str, Any]:
    """Move `additionalProperties` from a mapping's schema into one that only lists the known keys.

    It is true for a section that is passed on, whose keys are not all known.
    """
    has_others = mapping.pop("additionalProperties")
    inner = {key: mapping_in(node) for key, node in mapping["properties"].items()}
    known = {key: _known_properties(node) if "properties" in node else True for key, node in inner.items()}
    return {"properties": known, "additionalProperties": has_others}


def _describe_sizes(node: dict[str, Any], known: dict[str, Any]) -> None:
    """Describe the keys of a scale_config entry: training settings of a size, and its number of nodes."""
    own = {key: names for key, names in {"trainer": ("num_nodes",), "training_config": None}.items() if key in known}

    def entry(root: str) -> dict[str, Any]:
        return {
            "properties": {
                key: {"properties": {name: {"$ref": f"{root}/{key}/properties/{name}"} for name in names}}
                if names
                else {"$ref": f"{root}/{key}"}
                for key, names in own.items()
            }
        }

    table = next(member for member in node["anyOf"] if member.get("type") == "object")
    table |= {
        "patternProperties": {_SIZE: {"type": "object", **entry("#/properties")}},
        "additionalProperties": False,
    }
    closed = entry("#/$defs/known_keys/properties") | {"additionalProperties": False}
    closed["properties"]["trainer"]["additionalProperties"] = False
    known["scale_config"] = {"patternProperties": {_SIZE: closed}}


def _with_references(node: Any) -> Any:
    """Allow `${…}` and `???` wherever anything other than a text is expected."""
    if isinstance(node, list):
        return [_with_references(item) for item in node]
    if not isinstance(node, dict):
        return node
    allowed = {key: value if key in _LITERAL else _with_references(value) for key, value in node.items()}
    if isinstance(node.get("type"), str) and node["type"] not in ("string", "null") and "const" not in node:
        allowed |= {"type": [node["type"], "string"], "pattern": _REFERENCE}
    return allowed


_LITERAL = ("default", "examples", "enum", "const", "description")
"""Keywords whose values are not schemas."""
