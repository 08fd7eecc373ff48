"""A recipe of the user's own, written from a template: it inherits another one and shows its most important keys."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from launcher.api.arguments import text_of
from launcher.api.files import writing
from launcher.api.generated.schema import descriptions, schema_file
from launcher.api.naming import ENDINGS, full_name
from launcher.api.plan import compile
from launcher.common import yaml_io
from launcher.common.problems import fail
from launcher.common.templating import render_template
from launcher.config.compose import compose
from launcher.config.overrides import quoted
from launcher.model.config_tree import get
from launcher.model.family_registry import recipe_model
from launcher.model.validation import submodel

SCHEMAS = ".schemas"
"""Folder beside the recipe for the schema that its first line names."""

_ARGS = "training_config.training_args"
_OF_DEFAULTS = re.compile(r"[@$\n\r\t]|^(?:optional|override) |^\s|\s$|^/|:/")
"""Names that Hydra interprets in `defaults`. Source: Hydra, The Defaults List."""
_OFTEN_CHANGED = (
    "instance_types",
    "trainer.devices",
    "trainer.num_nodes",
    "training_cfg.entry_script",
    "training_cfg.script_args",
    "training_cfg.run.nodes",
    "training_cfg.run.ntasks_per_node",
    "training_config.model_config.model_name_or_path",
    "training_config.model_config.model_save_name",
    "training_config.datasets.train_data.name",
    "training_config.datasets.train_data.file_path",
    "training_config.datasets.val_data.name",
    "training_config.datasets.val_data.file_path",
    *(
        f"{_ARGS}.{name}"
        for name in ("train_batch_size", "micro_train_batch_size", "learning_rate", "max_epochs", "max_len")
    ),
    f"{_ARGS}.save_steps",
    f"{_ARGS}.training_dir",
    "training_config.mlflow.tracking_uri",
    "elastic_policy.is_elastic",
    "elastic_policy.min_nodes",
    "elastic_policy.max_nodes",
)
"""Keys that a new recipe shows if its parent has them, before those of its family; related keys are adjacent."""


def compiles_with(path: Path) -> list[str] | None:
    """Return the overrides with which a recipe can be launched, here or on a cluster; None if it is not complete."""
    for words in ([], ["cluster=k8s"]):
        if not compile(str(path), words, strict=False).problems:
            return words
    return None


def write(path: Path | str, base: str) -> Path:
    """Write a recipe that inherits another, and beside it the schema for completion in editors.

    Args:
        path: The file to write; it ends in .yaml, and must not exist.
        base: The recipe it inherits: a name, as commands accept it, or a file in the same folder.

    Returns:
        The schema's file.
    """
    path, base = Path(text_of(path, "E805", "path")), full_name(base)
    if path.suffix not in ENDINGS:
        raise fail("E805", str(path), "a recipe's file must end in .yaml", remedy=f"{path}.yaml")
    if os.path.lexists(path):
        raise fail("E805", str(path), "exists and is never overwritten", remedy="another name, or remove it first")
    recipe = compose([f"recipes={quoted(base)}"], Path.cwd()).tree["recipes"]
    model_type = get(recipe, "run.model_type")
    schema = Path(SCHEMAS, f"{model_type}.json")
    text = render_template(
        "new/recipe.yaml.j2",
        schema=schema,
        file=path.name,
        inherits=_inherits(path, base),
        display_name=" ".join(path.stem.split()),
        name=re.sub(r"[^a-z0-9]+", "-", path.stem.lower())[:63].strip("-") or "my-run",
        keys=list(_lines(recipe, model_type)),
    )
    yaml_io.load(text)
    with writing(path):
        (path.parent / schema).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / schema).write_text(schema_file(model_type), encoding="utf-8")
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    return path.parent / schema


def _inherits(path: Path, base: str) -> str:
    """Return the entry of `defaults` that names the inherited recipe, quoted for YAML."""
    entry = f"/recipes/{base}"
    if base.endswith(ENDINGS):
        file = Path(base).expanduser()
        if file.resolve().parent != path.parent.resolve():
            remedy = f"write it into {file.parent}, or use that folder with hydra.searchpath"
            raise fail("E805", str(path), "can only inherit a file of its own folder", value=base, remedy=remedy)
        if found := _OF_DEFAULTS.search(file.stem):
            message = f"a name with {found[0]!r} has another meaning in defaults"
            raise fail("E805", str(path), message, value=base, remedy="rename the inherited file")
        entry = file.stem
    is_plain = re.fullmatch(r"/?[\w./-]+", entry, re.ASCII)
    return f"{entry}@_here_" if is_plain else yaml_io.dump_flow(f"{entry}@_here_")


def _lines(recipe: Mapping[str, Any], model_type: str) -> Iterator[str]:
    """Yield a recipe's often changed keys as lines of YAML, each with its meaning."""
    family = recipe_model(model_type)
    opened: tuple[str, ...] = ()
    for path in (*_OFTEN_CHANGED, *family.keys.often_changed):
        *parents, name = path.split(".")
        holder = get(recipe, ".".join(parents)) if parents else recipe
        if not isinstance(holder, Mapping) or name not in holder:
            continue
        shared = next((i for i, (a, b) in enumerate(zip(opened, parents, strict=False)) if a != b), len(opened))
        for depth, parent in enumerate(parents[shared:], shared):
            yield f"{'  ' * depth}{parent}:"
        opened = tuple(parents)
        value = holder[name]
        is_nested = isinstance(value, list | Mapping)  # in flow style, so that each key is a line
        text = (
            f"{name}: {json.dumps(value, ensure_ascii=False)}"
            if is_nested
            else yaml_io.dump({name: value}).rstrip("\n")
        )
        yield f"{'  ' * len(parents)}{text}{_meaning(family, parents, name)}"


def _meaning(model: type[BaseModel], parents: list[str], name: str) -> str:
    """Return the first sentence of a key's description, as a comment."""
    inner = submodel(model, *parents)
    text = descriptions(inner).get(name, "") if inner else ""
    return f"  # {re.split(r'(?<=[.;:]) ', text)[0].rstrip('.;:')}" if text else ""
