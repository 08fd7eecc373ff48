"""Commands that inspect recipes: list them, show one, explain where a value comes from, compare two."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import (
    AsJson,
    Overrides,
    SizedRecipe,
    Target,
    complete_key,
    complete_recipe,
    composed,
    folders,
    say_unknown_instance,
    split_args,
)
from launcher.cli.output import print_json
from launcher.common import console, yaml_io
from launcher.common.problems import fail
from launcher.common.redaction import masked
from launcher.common.secret_names import is_secret
from launcher.common.suggestions import did_you_mean
from launcher.common.text_table import HIDDEN, clipped, table, value_text
from launcher.config import catalogue

if TYPE_CHECKING:
    from launcher.config.catalogue import Entry
    from launcher.planning.explain import Sizes

_ROOMY = 120
"""Minimum columns of a listing with instance types."""
_MOST_NAMES = 30
"""Names that a Problem lists."""
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
    instance: Annotated[str | None, typer.Option("--instance", metavar="TYPE", help="With or without ml.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the available recipes."""
    if elastic and static:
        raise fail("E801", "recipes list", "no recipe is both", allowed="one of --elastic and --static")
    parts, overrides = split_args(words)
    if unknown := [arg for arg in overrides if not arg.startswith("hydra.searchpath=")]:
        raise fail("E801", unknown[0], "a listing takes no overrides", allowed="hydra.searchpath=[FOLDER]")
    every = [entry for folder in folders(overrides) for entry in catalogue.entries(folder)]
    tests = _filters(every, parts, family, model, technique, instance)
    if elastic or static:
        tests.append(lambda entry: entry.is_elastic is elastic)
    found = [entry for entry in every if all(test(entry) for test in tests)]
    if as_json:
        print_json(found)
        return
    width = console.width()
    console.say_all(_lines(found) if width is None else _lines_by_folder(found, width))
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
    """Return the tests that listed recipes must pass; a filter that no recipe passes is an error."""

    def techniques(entry: "Entry") -> set[str]:
        name = entry.technique or ""
        return {name, *name.split("_")} - {""}

    def has_model(entry: "Entry") -> bool:
        return any((model or "").lower() in name.lower() for name in (entry.model, entry.model_name_or_path))

    def has_word(word: str) -> Callable[["Entry"], bool]:
        return lambda entry: word.lower() in entry.name.lower()

    def words_of(entry: "Entry") -> list[str]:
        return entry.name.replace("/", "_").split("_")

    wanted = instance and f"ml.{instance.removeprefix('ml.')}"
    known: list[tuple[str, str | None, Callable[[Entry], bool], Callable[[Entry], Iterable[str | None]]]] = [
        *(("word", word, has_word(word), words_of) for word in words),
        ("--family", family, lambda e: e.family == family, lambda e: (e.family,)),
        ("--model", model, has_model, lambda e: (e.model,)),
        ("--technique", technique, lambda e: technique in techniques(e), techniques),
        ("--instance", wanted, lambda e: wanted in e.instance_types, lambda e: e.instance_types),
    ]
    given = [(name, value, test, values) for name, value, test, values in known if value]
    for name, value, test, values in given:
        if not any(map(test, every)):
            names = sorted({known for entry in every for known in values(entry) if known})
            allowed = ", ".join(names) if len(names) <= _MOST_NAMES else None
            remedy = did_you_mean(value, names) or "list all: recipes list"
            raise fail("E802", name, "no recipe matches", value=value, allowed=allowed, remedy=remedy)
    return [test for _, _, test, _ in given]


def _lines(found: Sequence["Entry"]) -> Iterable[tuple[str, str]]:
    """Yield one line per recipe for programs: full name, technique, elastic or static, instance types."""
    for entry in found:
        kind = "elastic" if entry.is_elastic else "static"
        yield f"{entry.name}\t{entry.technique or '-'}\t{kind}\t{','.join(entry.instance_types) or '-'}", ""


def _lines_by_folder(found: Sequence["Entry"], width: int) -> Iterable[tuple[str, str]]:
    """Yield one heading per folder, and below it the last words of its recipes' names, which commands accept.

    On a wide terminal the instance types follow.
    """
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


def show(
    recipe: SizedRecipe,
    overrides: Overrides = None,
    whole: Annotated[
        bool, typer.Option("--full", "--whole", help="With the cluster and all keys of the launch.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a resolved recipe. RECIPE@3 prints it for 3 nodes; without a size, the differences by size follow."""
    from launcher.planning.explain import Sizes

    target = Target.read(recipe)
    sizes = Sizes(composed(target.name, overrides))
    say_unknown_instance(sizes.composition)
    recipe_tree = sizes.composition.tree["recipes"] if target.nodes is None else sizes.at(target.nodes)
    tree = _hidden({**sizes.composition.tree, "recipes": recipe_tree} if whole else recipe_tree)
    if as_json:
        trees = {str(nodes): _hidden(tree) for nodes, tree in sizes.trees.items()}
        print_json(tree if target.nodes else {"base": tree, "scales": trees})
        return
    (tree["recipes"] if whole else tree).pop("scale_config", None)
    sys.stdout.write(yaml_io.dump(tree))
    if target.nodes is None and sizes.trees:
        _say_differences(sizes)


def _say_differences(sizes: "Sizes") -> None:
    from launcher.model.size_plan import spans

    paths = dict.fromkeys(path for tree in sizes.scales.values() for path in tree)
    rows = [(path, text) for path in paths if (text := _difference(sizes, path))]
    off = "" if sizes.is_elastic else "; static unless ++recipes.elastic_policy.is_elastic=true"
    console.say(f"# {spans(sizes.trees)} nodes{off}", "bold")
    width = console.width()
    for line in table([("#", _short(path, rows), text) for path, text in rows]) if rows else ():
        console.say(clipped(line[1:], width) if width else line[1:])


def _difference(sizes: "Sizes", path: str) -> str | None:
    """Return a key's values that differ from the base value, with their sizes; None if all are equal."""
    from launcher.model.size_plan import spans

    def text_in(tree: Mapping[str, Any]) -> str:
        return value_text(tree[path], path) if path in tree else "absent"

    values: dict[str, list[int]] = {}
    for nodes, tree in sizes.scales.items():
        values.setdefault(text_in(tree), []).append(nodes)
    base = text_in(sizes.base)
    if path == "recipes.trainer.num_nodes" or values.keys() == {base}:
        return None
    own = [f"{text} at {spans(nodes)}" for text, nodes in values.items() if text != base]
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


def _hidden(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a copy of a tree without plain-text secrets."""

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
    """Explain where a value comes from. At every size: the file and line, or your override, and what it overrides."""
    from launcher.cli.commands import explain_text
    from launcher.planning import explain as explanations

    target = Target.read(recipe)
    sizes = explanations.Sizes(composed(target.name, overrides))
    say_unknown_instance(sizes.composition)
    if target.nodes is not None:
        sizes.at(target.nodes)
    found = {path: explanations.explain(sizes, path) for path in explanations.find(sizes, key)}
    if target.nodes is not None:
        at_size = (target.nodes, None)
        found = {path: tuple(v for v in values if v.nodes in at_size)[-1:] for path, values in found.items()}
    if as_json:
        print_json([explanations.as_json(path, values) for path, values in found.items()])
    elif len(found) == 1 or all(path.endswith(f".{key}") for path in found):
        for path, values in found.items():
            console.say_all(explain_text.one(path, values, console.width()))
            if not sizes.is_elastic and any(explanations.differing(values)):
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
) -> None:
    """Compare two recipes, sizes or bundles. A single bundle is compared with what its overrides compose to now."""
    from launcher.cli import diff as diffs

    if new is not None and "=" in new:  # an override: `recipes diff BUNDLE KEY=VALUE` has nothing to apply it to
        raise fail("E801", new, "missing second argument: overrides follow two recipes or bundles")
    sides = diffs.bundle_and_now(old) if new is None else diffs.both(old, new, overrides or ())
    lines = diffs.changes(*sides)
    for notice in dict.fromkeys(notice for side in sides for notice in side.notices):
        console.show_notice(notice, stderr=True)
    styles = {"-": "red", "+": "green"}
    if lines:
        heads = [(f"--- {sides[0].title}", "bold"), (f"+++ {sides[1].title}", "bold")]
        console.say_all([*heads, *((line, styles[line[0]]) for line in lines)])
    else:
        console.say("no difference", "dim", stderr=True)
    if lines and exit_code:
        raise typer.Exit(_DIFFERENT)
