"""Commands that compile a recipe: check it, plan it, render it, or start one of your own."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import (
    AsJson,
    GivenName,
    Overrides,
    Picture,
    Recipe,
    choose,
    complete_recipe,
    complete_recipe_or_override,
    full_name,
    split_args,
)
from launcher.cli.output import print_json, say_picture
from launcher.common import console
from launcher.common.problems import ProblemsFound, fail
from launcher.common.process import USER_ERROR

if TYPE_CHECKING:
    from launcher.model.job_spec import JobSpec
    from launcher.planning.plan_report import Columns


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
    from launcher.cli.commands import check_report
    from launcher.model.context import LaunchContext

    names, overrides = split_args(words)
    if as_json and github:
        raise fail("E801", "recipes check", "prints either JSON or annotations", allowed="one of --json and --github")
    if bool(names) is every:
        raise fail("E801", "recipes check", "give recipes, or --all", remedy="recipes check --all")
    context = LaunchContext.read()
    began_s = time.monotonic()
    if every:
        results = check_report.swept(overrides, context, is_quiet=as_json or github)
    else:
        results = [check_report.checked(name, overrides, context) for name in names]
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
    from launcher import pipeline
    from launcher.cli import terminal
    from launcher.model.context import LaunchContext
    from launcher.planning import plan_report

    job = pipeline.prepare(choose(recipe, overrides), LaunchContext.read())
    cost, columns, paid = _costs(job, prices, hours)
    if picture is not None:
        from launcher.planning import plan_picture

        plan_picture.draw(job, picture)
    if as_json:
        print_json(plan_report.plan_json(job) | cost)
        return
    terminal.show_plan(job, in_full=True, all_notes=all_notes, costs=columns)
    for line in paid:
        console.say_fitted(line)
    say_picture(picture)


def _costs(job: "JobSpec", table: Path | None, hours: float | None) -> tuple[dict[str, Any], "Columns", list[str]]:
    """Return a job's costs as plain data, as columns of its plan, and as lines below it.

    They are computed by the user's prices, else by the dated ones; a notice names the user's unknown instance types.
    """
    from launcher.jobs import costs, prices
    from launcher.model.backend_registry import described
    from launcher.planning.plan_report import NO_COLUMNS

    is_asked = table is not None or hours is not None
    backend = described(job.backend)
    if backend.runs_here and not is_asked:  # a job on this machine costs nothing
        return {}, NO_COLUMNS, []
    if costs.is_serverless(job) and not is_asked:
        return {"costs": None}, NO_COLUMNS, [costs.SERVERLESS]
    use = backend.instances.price_use if backend.instances else None
    known = prices.read(table) if table else prices.shipped(use)
    for notice in prices.unknown(known, job.resources.instance_type):
        console.show_notice(notice, stderr=True)
    hint = "" if table else "; give yours with --prices FILE"
    lacking = [name for name in costs.instance_types(job) if name not in known.per_hour]
    if lacking and table is None:
        return {"costs": None}, NO_COLUMNS, [f"no known price of {', '.join(lacking)}{hint}"]
    found = costs.costs(job, known, hours)
    source = [f"{line}{hint}" for line in costs.bases(job, known)]
    return {"costs": costs.as_json(job, found, known)}, costs.columns(found, known), source


def render(
    recipe: Recipe,
    overrides: Overrides = None,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print the manifests only; write no bundle.")] = False,
    name: GivenName = None,
) -> None:
    """Write the bundle of a recipe. With --stdout, print its manifests for kubectl apply -f - instead."""
    from launcher import pipeline
    from launcher.cli import launch
    from launcher.model.backend_registry import described
    from launcher.model.context import LaunchContext

    words = choose(recipe, overrides)
    if not stdout:
        raise typer.Exit(launch.main([*words, "dry_run=true"], name))
    if name is not None:
        raise fail("E801", "--name", "--stdout writes no bundle to name", value=name)
    context = LaunchContext.read()
    job = pipeline.prepare(words, context)
    # printed manifests may be applied, so their MLflow run must exist
    if described(job.backend).files.has_containers:
        job = pipeline.track(job, context, is_visible=True)
    files = pipeline.render(job, context).files
    manifests = [text for path, text in files.items() if path.startswith("manifests/")] or [
        files[name] for name in ("request.json", "run.sh") if name in files
    ]
    sys.stdout.write("---\n".join(manifests))


def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The recipe to write; it ends in .yaml.")],
    base: Annotated[
        str, typer.Option("--from", metavar="RECIPE", help="The recipe it inherits.", autocompletion=complete_recipe)
    ] = "training/tiny/tiny_lm_cpu",
) -> None:
    """Write your own recipe. It inherits another one, and shows the keys that are changed most often."""
    from launcher.cli import new_recipe as own

    schema = own.write(path, full_name(base))
    written = console.shown_path(path)
    next_step = _next_step(path, written)
    console.say(f"recipe {written}, and {console.shown_path(schema)} for editors   next: {next_step}")


def _next_step(path: Path, written: str) -> str:
    """Return the next command for a new recipe: its plan, on this machine or a cluster, if it is complete."""
    from launcher import pipeline
    from launcher.model.context import LaunchContext

    for words in ([], ["cluster=k8s"]):
        try:
            pipeline.prepare(choose(str(path), words), LaunchContext.read())
        except ProblemsFound:
            continue
        return " ".join(["recipes plan", written, *words])
    return f"recipes check {written}, which lists the missing values"
