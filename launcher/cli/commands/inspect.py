"""Commands that inspect recipes: list them, show one, explain where a value comes from, compare two."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.api import listing
from launcher.api.naming import CHOICE
from launcher.cli.commands.arguments import (
    AsJson,
    Overrides,
    SizedRecipe,
    complete_key,
    complete_recipe,
    composed,
    split_args,
)
from launcher.cli.output import print_json
from launcher.common import console, yaml_io
from launcher.common.problems import fail
from launcher.common.text_table import clipped, table

if TYPE_CHECKING:
    from launcher.api.composed import Composed

_ROOMY = 120
"""Minimum columns of a listing with instance types."""
_MOST_VALUES = 6
"""Values of a key that differs by size that are shown in one line."""
_DIFFERENT = 1
"""Exit code of a diff with --exit-code if there are differences. Source: diff(1), git-diff(1) --exit-code."""


def list_(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD]...", help="Parts of the name; hydra.searchpath=[FOLDER].")
    ] = None,
    family: Annotated[str | None, typer.Option("--family", metavar="NAME", help="Folder, e.g. llama.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Part of the model's name.")] = None,
    technique: Annotated[str | None, typer.Option("--technique", metavar="NAME", help="E.g. dpo, sft_lora.")] = None,
    elastic: Annotated[bool, typer.Option("--elastic", help="With elastic sizes.")] = False,
    static: Annotated[bool, typer.Option("--static", help="Without elastic sizes.")] = False,
    own: Annotated[bool, typer.Option("--own", help="Not of the published launcher.")] = False,
    instance: Annotated[str | None, typer.Option("--instance", metavar="TYPE", help="With or without ml.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the available recipes."""
    if elastic and static:
        raise fail("E801", "recipes list", "no recipe is both", allowed="one of --elastic and --static")
    parts, overrides = split_args(words)
    if unknown := [arg for arg in overrides if not arg.startswith("hydra.searchpath=")]:
        raise fail("E801", unknown[0], "a listing takes no overrides", allowed="hydra.searchpath=[FOLDER]")
    is_elastic = elastic if elastic or static else None
    given = {"family": family, "model": model, "technique": technique, "instance": instance}
    found = listing.recipes(*parts, **given, elastic=is_elastic, own=own or None, overrides=overrides)
    if as_json:
        print_json(found)
        return
    width = console.width()
    console.say_all(_lines(found) if width is None else _lines_by_folder(found, width))
    if width is not None or not found:
        num_elastic = sum(entry.is_elastic for entry in found)
        num_own = sum(not entry.is_published for entry in found)
        counts = f"{len(found)} of {len(listing.every(overrides))} recipes, {num_elastic} elastic, {num_own} own"
        console.say(counts, "dim", stderr=not found)


def _lines(found: Sequence[listing.Entry]) -> Iterable[tuple[str, str]]:
    """Yield one line per recipe for programs: full name, technique, elastic or static, instance types, origin."""
    for entry in found:
        kind = "elastic" if entry.is_elastic else "static"
        types, origin = ",".join(entry.instance_types) or "-", "published" if entry.is_published else "own"
        yield f"{entry.name}\t{entry.technique or '-'}\t{kind}\t{types}\t{origin}", ""


def _lines_by_folder(found: Sequence[listing.Entry], width: int) -> Iterable[tuple[str, str]]:
    """Yield one heading per folder, and below it the last words of its recipes' names, which commands accept.

    On a wide terminal the instance types follow.
    """
    folder = ""
    rows = [
        (
            entry.path.stem,
            (entry.technique or "").replace("_", " "),
            "elastic" if entry.is_elastic else "",
            "" if entry.is_published else "own",
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


def show(
    recipe: SizedRecipe,
    overrides: Overrides = None,
    whole: Annotated[
        bool, typer.Option("--full", "--whole", help="With the cluster and all keys of the launch.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a resolved recipe. RECIPE@3 prints it for 3 nodes; without a size, the differences by size follow."""
    found = composed(recipe, overrides)
    tree = found.tree(full=whole)
    if as_json:
        print_json(tree if found.target.nodes else {"base": tree, "scales": found.trees})
        return
    (tree["recipes"] if whole else tree).pop("scale_config", None)
    sys.stdout.write(yaml_io.dump(tree))
    if found.target.nodes is None and found.sizes.trees:
        _say_differences(found)


def _say_differences(found: "Composed") -> None:
    from launcher.api.composed import spans

    rows = [(path, _difference(*values)) for path, values in found.differing.items()]
    off = "" if found.sizes.is_elastic else "; static unless ++recipes.elastic_policy.is_elastic=true"
    console.say(f"# {spans(found.sizes.trees)} nodes{off}", "bold")
    width = console.width()
    for line in table([("#", _short(path, rows), text) for path, text in rows]) if rows else ():
        console.say(clipped(line[1:], width) if width else line[1:])


def _difference(base: str, values: Mapping[str, Sequence[int]]) -> str:
    """Return the values of a key that differ from the base value, with their sizes."""
    from launcher.api.composed import spans

    own = [f"{text} at {spans(nodes)}" for text, nodes in values.items()]
    more = ["…"] if len(own) > _MOST_VALUES else []
    return "; ".join([*own[:_MOST_VALUES], *more, f"base {base}"])


def _short(path: str, rows: Sequence[tuple[str, str]]) -> str:
    """Return the shortest suffix of a path that no other row ends with."""
    words = path.split(".")
    for i in range(len(words) - 1, 0, -1):
        end = "." + ".".join(words[i:])
        if sum(other.endswith(end) for other, _ in rows) == 1:
            return end[1:]
    return path


def explain(
    recipe: SizedRecipe,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Its path, or the end of it.", autocompletion=complete_key)
    ],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Explain where a value comes from. At every size: the file and line, or your override, and what it overrides."""
    from launcher.api import composed as composing
    from launcher.cli.commands import explain_text

    recipe_found = composed(recipe, overrides)
    found = recipe_found.explain(key)
    if as_json:
        print_json([composing.as_json(path, values) for path, values in found.items()])
    elif len(found) == 1 or all(path.endswith(f".{key}") for path in found):
        for path, values in found.items():
            console.say_all(explain_text.one(path, values, console.width()))
            if not recipe_found.sizes.is_elastic and any(composing.differing(values)):
                console.say("the job is static and uses the base value", "yellow")
    else:
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
            help="The same; default: what the bundle's overrides compose to now.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    overrides: Overrides = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything differs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two recipes, sizes or jobs. Of jobs, code, data, packages and metrics are compared too; a single one is
    compared with what it would be now."""
    from launcher.api import comparing
    from launcher.cli.commands import reproduce

    are_jobs = comparing.are_jobs(old, new)
    if are_jobs and overrides and new is not None:
        remedy = "recipes diff BUNDLE RECIPE …"
        raise fail("E801", overrides[0], "changes nothing: both sides are jobs", remedy=remedy)
    if are_jobs and not overrides:
        has_difference = reproduce.difference(old, new, as_json=as_json)
    else:
        # `recipes diff BUNDLE KEY=VALUE` has nothing to apply the override to.
        if new is not None and "=" in new.removeprefix(CHOICE):
            raise fail("E801", new, "missing second argument: overrides follow two recipes or bundles")
        first, second = sides = comparing.both(old, new, overrides or ())
        lines = comparing.lines(*sides)
        has_difference = bool(lines)
        if as_json:
            print_json({"old": first.title, "new": second.title, "lines": lines})
        else:
            console.show_notice(*dict.fromkeys(notice for side in sides for notice in side.notices), stderr=True)
            reproduce.show_difference(first.title, second.title, lines)
    if has_difference and exit_code:
        raise typer.Exit(_DIFFERENT)
