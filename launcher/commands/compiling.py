"""Commands that compile a recipe: check it, plan it, render it, or start one of your own."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.names import (
    AsJson,
    Overrides,
    Recipe,
    choice,
    complete_recipe,
    complete_recipe_or_override,
    full_name,
    parted,
)
from launcher.problems import fail


def check(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE]... [KEY=VALUE]...",
            help="Recipes, and overrides of them all.",
            autocompletion=complete_recipe_or_override,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every recipe, static and elastic, on every instance type it lists.")
    ] = False,
    as_json: AsJson = False,
    github: Annotated[bool, typer.Option("--github", help="Print annotations for GitHub Actions.")] = False,
) -> None:
    """Check recipes and write nothing. Exit code 2 where there are Problems."""
    from launcher import run
    from launcher.commands import checked
    from launcher.context import LaunchContext

    names, overrides = parted(words)
    if bool(names) is every:
        raise fail("E801", "recipes check", "give recipes, or --all", remedy="recipes check --all")
    context = LaunchContext.read()
    began_s = time.monotonic()
    if every:
        results = checked.swept(overrides, context, is_quiet=as_json or github)
    else:
        results = [checked.checked(name, [choice(name, overrides), *overrides], context) for name in names]
    if as_json:
        print(json.dumps(checked.as_json(results), indent=2, default=str))
    elif github:
        checked.annotate(results)
    else:
        checked.report(results)
        checked.count(results) if names else checked.summarize(results, time.monotonic() - began_s)
    if any(result.problems for result in results):
        raise typer.Exit(run.USER_ERROR)


def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw it, as .png or .svg.", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan every size of a recipe. Shows how samples fall on the ranks, and which sizes are worth allowing."""
    from launcher import console, pipeline, report, terminal
    from launcher.context import LaunchContext

    job = pipeline.prepare([choice(recipe, overrides or ()), *(overrides or ())], LaunchContext.read())
    if picture is not None:
        from launcher import plan_picture

        plan_picture.draw(job, picture)
    if as_json:
        print(json.dumps(report.plan_json(job), indent=2))
        return
    terminal.show_plan(job, in_full=True)
    if picture is not None:
        console.say(f"picture {console.shown_path(picture)}")


def render(
    recipe: Recipe,
    overrides: Overrides = None,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print the manifests only; write no bundle.")] = False,
) -> None:
    """Write the bundle of a recipe. With --stdout, print its manifests for kubectl apply -f - instead."""
    from launcher import pipeline, run
    from launcher.context import LaunchContext

    words = [choice(recipe, overrides or ()), *(overrides or ())]
    if not stdout:
        raise typer.Exit(run.main([*words, "dry_run=true"]))
    context = LaunchContext.read()
    job = pipeline.prepare(words, context)
    if job.backend != "local":  # a manifest is applied as it is printed, so its run must exist
        job = pipeline.track(job, context)
    files = pipeline.render(job, context).files
    manifests = [text for path, text in files.items() if path.startswith("manifests/")] or [files["run.sh"]]
    sys.stdout.write("---\n".join(manifests))


def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The recipe to write; it ends in .yaml.")],
    base: Annotated[
        str,
        typer.Option("--from", metavar="RECIPE", help="The recipe it inherits.", autocompletion=complete_recipe),
    ] = "training/tiny/tiny_lm_cpu",
) -> None:
    """Write a recipe of your own. It inherits another, and shows the keys that people change most."""
    from launcher import console
    from launcher import new as own

    written = own.write(path, full_name(base))
    console.say(f"recipe {console.shown_path(written)}   next: recipes plan {console.shown_path(written)}")
