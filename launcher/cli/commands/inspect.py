"""Commands that look: at the recipes there are, at one of them, at where a value comes from, at what differs."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import (
    AsJson,
    Overrides,
    SizedRecipe,
    Target,
    choice,
    complete_key,
    complete_recipe,
    composed,
    folders,
    parted,
    say_unknown_instance,
)
from launcher.common.problems import ProblemsFound, fail
from launcher.common.redaction import masked
from launcher.common.secret_names import is_secret
from launcher.config import catalogue

if TYPE_CHECKING:
    from launcher.config.catalogue import Entry
    from launcher.planning.explain import Sizes

_DIFFERENT = 1
"""Exit code of a diff that is asked whether there is one. Source: diff(1), git-diff(1) --exit-code."""
_ROOMY = 120
"""Columns from which a listing has room for instance types."""
_MOST_NAMES = 30
"""Names that a Problem lists."""
_MOST_VALUES = 6
"""Values of a key that differs by size that are shown in one line."""


def list_(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD]...", help="Parts of the name; hydra.searchpath=[FOLDER].")
    ] = None,
    family: Annotated[str | None, typer.Option("--family", metavar="NAME", help="Folder, e.g. llama.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Part of the model's name.")] = None,
    technique: Annotated[str | None, typer.Option("--technique", metavar="NAME", help="E.g. dpo, sft_lora.")] = None,
    elastic: Annotated[bool, typer.Option("--elastic", help="With elastic sizes.")] = False,
    static: Annotated[bool, typer.Option("--static", help="Without elastic sizes.")] = False,
    instance: Annotated[str | None, typer.Option("--instance", metavar="TYPE", help="With or without ml.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes there are."""
    from launcher.common import console

    if elastic and static:
        raise fail("E801", "recipes list", "no recipe is both", allowed="one of --elastic and --static")
    parts, overrides = parted(words)
    if strange := [word for word in overrides if not word.startswith("hydra.searchpath=")]:
        raise fail("E801", strange[0], "a listing reads recipes as they are", allowed="hydra.searchpath=[FOLDER]")
    every = [entry for folder in folders(overrides) for entry in catalogue.entries(folder)]
    tests = _filters(every, parts, family, model, technique, instance)
    found = [entry for entry in every if all(test(entry) for test in tests)]
    found = [entry for entry in found if entry.is_elastic or not elastic]
    found = [entry for entry in found if not (entry.is_elastic and static)]
    if as_json:
        print(json.dumps([_entry_json(entry) for entry in found], indent=2))
        return
    width = console.width()
    console.say_all(_listed(found) if width is None else _listed_for_people(found, width))
    if width is not None or not found:
        num_elastic = sum(entry.is_elastic for entry in found)
        console.say(f"{len(found)} of {len(every)} recipes, {num_elastic} elastic", "dim", stderr=not found)


def _filters(
    every: Sequence["Entry"],
    words: Sequence[str],
    family: str | None,
    model: str | None,
    technique: str | None,
    instance: str | None,
) -> list[Callable[["Entry"], bool]]:
    """Return what the listed recipes must pass; a filter that no recipe passes is a mistake.

    Raises:
        ProblemsFound: No recipe has the word, the family, the technique, …
    """

    def techniques(entry: "Entry") -> set[str]:
        name = entry.technique or ""
        return {name, *name.split("_")} - {""}

    def has_model(entry: "Entry") -> bool:
        return any(model.lower() in name.lower() for name in (entry.model, entry.model_name_or_path))

    wanted = instance and f"ml.{instance.removeprefix('ml.')}"
    known: list[tuple[str, str | None, Callable, Callable]] = [
        *(("word", word, lambda e, w=word: w.lower() in e.name.lower(), _words) for word in words),
        ("--family", family, lambda e: e.family == family, lambda e: (e.family,)),
        ("--model", model, has_model, lambda e: (e.model,)),
        ("--technique", technique, lambda e: technique in techniques(e), techniques),
        ("--instance", wanted, lambda e: wanted in e.instance_types, lambda e: e.instance_types),
    ]
    given = [(name, value, test, values) for name, value, test, values in known if value]
    for name, value, test, values in given:
        if not any(map(test, every)):
            raise _no_such(name, value, sorted({known for entry in every for known in values(entry) if known}))
    return [test for _, _, test, _ in given]


def _no_such(name: str, value: str, known: Sequence[str]) -> Exception:
    from launcher.common.suggestions import did_you_mean

    return fail(
        "E802",
        name,
        "no recipe has this",
        value=value,
        allowed=", ".join(known) if len(known) <= _MOST_NAMES else None,
        remedy=did_you_mean(value, known) or "recipes list shows all",
    )


def _words(entry: "Entry") -> list[str]:
    return entry.name.replace("/", "_").split("_")


def _listed(found: Sequence["Entry"]) -> Iterable[tuple[str, str]]:
    """Yield one line a recipe for programs: whole name, technique, elastic or static, instance types."""
    for entry in found:
        kind = "elastic" if entry.is_elastic else "static"
        yield f"{entry.name}\t{entry.technique or '-'}\t{kind}\t{','.join(entry.instance_types) or '-'}", ""


def _listed_for_people(found: Sequence["Entry"], width: int) -> Iterable[tuple[str, str]]:
    """Yield a heading a folder, and below it the last words of its recipes' names: any of them names its recipe.

    Where the terminal has room, the instance types follow.
    """
    from launcher.common.text_table import clipped, table

    folder = ""
    rows = [
        (
            entry.path.stem,
            (entry.technique or "").replace("_", " "),
            "elastic" if entry.is_elastic else "",
            " ".join(name.removeprefix("ml.") for name in entry.instance_types) if width >= _ROOMY else "",
        )
        for entry in found
    ]
    for entry, line in zip(found, table(rows) if rows else (), strict=True):
        parent = entry.name.rpartition("/")[0]
        if parent != folder:
            folder = parent
            yield folder, "bold"
        yield clipped(line, width), ""


def _entry_json(entry: "Entry") -> dict[str, Any]:
    return dataclasses.asdict(entry) | {"path": str(entry.path)}


def show(
    recipe: SizedRecipe,
    overrides: Overrides = None,
    whole: Annotated[bool, typer.Option("--whole", help="With the cluster and all keys of the launch.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a recipe resolved. RECIPE@3 is that on 3 nodes; without a size, what differs by size follows."""
    from launcher.common import yaml_io
    from launcher.planning.explain import Sizes

    target = Target.read(recipe)
    sizes = Sizes(composed(target.name, overrides))
    say_unknown_instance(sizes.composition)
    recipe_tree = sizes.composition.tree["recipes"] if target.nodes is None else sizes.at(target.nodes)
    tree = _hidden({**sizes.composition.tree, "recipes": recipe_tree} if whole else recipe_tree)
    if as_json:
        trees = {str(nodes): _hidden(tree) for nodes, tree in sizes.trees.items()}
        print(json.dumps(tree if target.nodes else {"base": tree, "scales": trees}, indent=2, default=str))
        return
    (tree["recipes"] if whole else tree).pop("scale_config", None)
    sys.stdout.write(yaml_io.dump(tree))
    if target.nodes is None and sizes.trees:
        _say_differences(sizes)


def _say_differences(sizes: "Sizes") -> None:
    from launcher.common import console
    from launcher.common.text_table import clipped, table, value_text
    from launcher.model.size_plan import spans

    rows = []
    for path in dict.fromkeys(path for tree in sizes.scales.values() for path in tree):
        values: dict[str, list[int]] = {}
        for nodes, tree in sizes.scales.items():
            text = value_text(tree[path], path) if path in tree else "absent"
            values.setdefault(text, []).append(nodes)
        base = value_text(sizes.base[path], path) if path in sizes.base else "absent"
        if path != "recipes.trainer.num_nodes" and values.keys() != {base}:
            own = [f"{text} at {spans(nodes)}" for text, nodes in values.items() if text != base]
            more = ["…"] if len(own) > _MOST_VALUES else []
            said = [*own[:_MOST_VALUES], *more, f"base {base}"]
            rows.append((path, "; ".join(said)))
    off = "" if sizes.is_elastic else "; static unless ++recipes.elastic_policy.is_elastic=true"
    console.say(f"# {spans(sizes.trees)} nodes{off}", "bold")
    width = console.width()
    for line in table([("#", _short(path, rows), said) for path, said in rows]) if rows else ():
        console.say(clipped(line[1:], width) if width else line[1:])


def _short(path: str, rows: Sequence[tuple[str, str]]) -> str:
    """Return the last word of a path, or more where another row ends in it too."""
    words = path.split(".")
    for i in range(len(words) - 1, 0, -1):
        end = "." + ".".join(words[i:])
        if sum(other.endswith(end) for other, _ in rows) == 1:
            return end[1:]
    return path


def _hidden(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a copy of a tree without the secrets that somebody wrote into it."""
    from launcher.common.text_table import HIDDEN

    def hide(value: Any, here: str) -> Any:
        if isinstance(value, Mapping):
            return _hidden(value, here)
        if isinstance(value, str):
            return HIDDEN if value and is_secret(here) else masked(value)
        return [hide(each, here) for each in value] if isinstance(value, list) else value

    return {key: hide(value, f"{path}.{key}" if path else key) for key, value in tree.items()}


def explain(
    recipe: SizedRecipe,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Its path, or the end of it.", autocompletion=complete_key)
    ],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Tell where a value comes from. At every size: the file and line, or your override, and what it wins over."""
    from launcher.cli.commands import explain_text
    from launcher.common import console
    from launcher.planning import explain as explanations

    target = Target.read(recipe)
    sizes = explanations.Sizes(composed(target.name, overrides))
    say_unknown_instance(sizes.composition)
    if target.nodes is not None:
        sizes.at(target.nodes)
    found = {path: explanations.explain(sizes, path) for path in explanations.find(sizes, key)}
    if target.nodes is not None:
        found = {path: [v for v in values if v.nodes in (target.nodes, None)][-1:] for path, values in found.items()}
    if as_json:
        listed = [explanations.as_json(path, values) for path, values in found.items()]
        print(json.dumps(listed, indent=2, default=str))
        return
    is_name = len(found) == 1 or all(path.endswith(f".{key}") for path in found)
    for path, values in found.items() if is_name else ():
        console.say_all(explain_text.one(path, values, console.width()))
        if not sizes.is_elastic and any(explanations.differing(values)):
            console.say("the job is static and takes the base value", "yellow")
    if not is_name:
        console.say_all(explain_text.several(found, console.width()))


def diff(
    old: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE[@NODES]|BUNDLE", help="A recipe, or a bundle's folder.", autocompletion=complete_recipe
        ),
    ],
    new: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE[@NODES]|BUNDLE]",
            help="The same; without it, what the bundle's overrides give now.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    overrides: Overrides = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 where anything differs.")] = False,
) -> None:
    """Compare two recipes, sizes or bundles. A bundle alone is compared with what its overrides give now."""
    from launcher.cli import diff as diffs
    from launcher.common import console

    if new is not None and "=" in new:  # an override: `recipes diff BUNDLE KEY=VALUE` has nothing to apply it to
        raise fail("E801", new, "two recipes or bundles are compared; overrides follow them")
    if new is None and _bundle(old) is None:
        message = "is no bundle" if os.path.isdir(old) else "what shall it be compared with?"
        raise fail("E801", old, message, remedy="recipes diff A B, or a bundle alone")
    sides = diffs.again(_bundle(old)) if new is None else _sides(old, new, overrides or ())
    lines = diffs.changes(*sides)
    for notice in dict.fromkeys(notice for side in sides for notice in side.notices):
        console.show_notice(notice, stderr=True)
    styles = {"-": "red", "+": "green"}
    if lines:
        console.say_all([(f"--- {sides[0].title}", "bold"), (f"+++ {sides[1].title}", "bold")])
        console.say_all((line, styles[line[0]]) for line in lines)
    else:
        console.say("no difference", "dim", stderr=True)
    if lines and exit_code:
        raise typer.Exit(_DIFFERENT)


def _sides(old: str, new: str, overrides: Sequence[str]) -> tuple[Any, Any]:
    from launcher.cli import diff as diffs

    targets = [_target(old), _target(new)]
    is_sized = any(target.nodes is not None for target in targets)
    folders = [_bundle(target.name) for target in targets]
    cluster = next((f"cluster={diffs.cluster_of(folder)}" for folder in folders if folder), None)
    suffix = next((diffs.suffix_of(folder) for folder in folders if folder), None)
    words = [*([cluster] if cluster else []), *overrides]
    sides, problems = [], []
    for name, target, folder in zip((old, new), targets, folders, strict=True):
        try:
            if folder:
                sides.append(diffs.of_bundle(folder, target.nodes, is_sized=is_sized))
            else:
                chosen = [choice(target.name, words), *words]
                sides.append(diffs.of_recipe(name, chosen, target.nodes, is_sized=is_sized, suffix=suffix))
        except ProblemsFound as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ProblemsFound(tuple(problems))
    if any(folders) and not all(folders) and not is_sized:
        sides = [diffs.without_launch(side) for side in sides]
    return sides[0], sides[1]


def _target(text: str) -> Target:
    """Read a name; a folder whose name ends like a size is that folder."""
    return Target(text, None) if _bundle(text) else Target.read(text)


def _bundle(name: str) -> Path | None:
    """Return the folder of a bundle of this name; None if there is none."""
    from launcher.bundle import store as bundles

    return bundles.find(name)
