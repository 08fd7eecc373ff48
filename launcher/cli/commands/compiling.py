"""Commands that compile a recipe: check it, plan it, render it, or start one of your own."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from launcher.api.naming import choose
from launcher.cli.commands.arguments import (
    AsJson,
    GivenName,
    Overrides,
    Picture,
    Recipe,
    complete_recipe,
    complete_recipe_or_override,
    split_args,
)
from launcher.cli.output import print_json, say_picture
from launcher.common import console
from launcher.common.problems import fail
from launcher.common.process import USER_ERROR


def check(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE]... [KEY=VALUE]...",
            help="Recipes, and overrides for all of them.",
            autocompletion=complete_recipe_or_override,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every recipe, static and elastic, on every instance type it lists.")
    ] = False,
    as_json: AsJson = False,
    github: Annotated[bool, typer.Option("--github", help="Print annotations for GitHub Actions.")] = False,
) -> None:
    """Check recipes and write nothing. Exit code 2 if there are Problems."""
    from launcher.api import checking
    from launcher.cli.commands import check_report

    names, overrides = split_args(words)
    if as_json and github:
        raise fail("E801", "recipes check", "prints either JSON or annotations", allowed="one of --json and --github")
    if bool(names) is every:
        raise fail("E801", "recipes check", "give recipes, or --all", remedy="recipes check --all")
    began_s = time.monotonic()
    found = checking.check(*names, overrides=overrides)
    results = check_report.counted_off(found) if every and not (as_json or github) else list(found)
    if as_json:
        print_json(check_report.as_json(results))
    elif github:
        check_report.annotate(results)
    else:
        check_report.report(results)
        check_report.count(results) if names else check_report.summarize(results, time.monotonic() - began_s)
    if any(result.problems for result in results):
        raise typer.Exit(USER_ERROR)


def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    picture: Picture = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices",
            metavar="FILE",
            help="Your prices: YAML, instance type to price per hour. Default: dated ones.",
            dir_okay=False,
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option("--hours", min=0, help="Duration of the job, for its cost; default: a training job's limit."),
    ] = None,
    all_notes: Annotated[
        bool, typer.Option("--notes", help="Print in full the notes too that most elastic jobs have.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan every size of a recipe. Shows the samples per rank, idle time, and speedup."""
    from launcher.api.plan import compile
    from launcher.cli import terminal

    found = compile(recipe, overrides or ())
    console.show_notice(*found.price_notices(prices), stderr=True)
    cost = found.priced(prices, hours)
    if picture is not None:
        found.draw(picture)
    if as_json:
        print_json({**found.as_json, **cost.as_json})
        return
    terminal.show_plan(found.job, in_full=True, all_notes=all_notes, costs=cost.columns)
    for line in cost.lines:
        console.say_fitted(line)
    say_picture(picture)


def render(
    recipe: Recipe,
    overrides: Overrides = None,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print what the cluster gets; write no bundle.")] = False,
    name: GivenName = None,
) -> None:
    """Write the bundle of a recipe. With --stdout, print the manifests, request or script for its cluster."""
    from launcher.api.plan import compile
    from launcher.cli import launch

    words = choose(recipe, overrides)
    if not stdout:
        raise typer.Exit(launch.main([*words, "dry_run=true"], name))
    if name is not None:
        raise fail("E801", "--name", "--stdout writes no bundle to name", value=name)
    plan = compile(recipe, overrides or ())
    sys.stdout.write("---\n".join(plan.manifests()))
    sys.stdout.flush()  # the notices follow it also in a terminal; a lost output is the only error
    console.show_notice(*plan.notices, stderr=True)


def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The recipe to write; it ends in .yaml.")],
    base: Annotated[
        str, typer.Option("--from", metavar="RECIPE", help="The recipe it inherits.", autocompletion=complete_recipe)
    ] = "training/tiny/tiny_lm_cpu",
) -> None:
    """Write your own recipe. It inherits another one, and shows the keys that are changed most often."""
    from launcher.api import new_recipe as own

    schema = own.write(path, base)
    written = console.shown_path(path)
    words = own.compiles_with(path)
    typed = console.typed_path(path)
    complete, partial = f"recipes plan {typed}", f"recipes check {typed}, which lists the missing values"
    next_step = partial if words is None else " ".join([complete, *words])
    console.say(f"recipe {written}, and {console.shown_path(schema)} for editors   next: {next_step}")
