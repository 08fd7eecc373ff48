"""The `recipes` command."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from launcher import bundle as bundles
from launcher import pipeline, run, terminal
from launcher.context import LaunchContext
from launcher.problems import ProblemsFound

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, as for main.py.")]


@app.command()
def render(
    recipe: Annotated[str, typer.Argument(help="Path under recipes/, or a YAML file.")],
    overrides: Overrides = None,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print the manifests only; write no bundle.")] = False,
) -> None:
    """Write the bundle of a recipe, or print its manifests for `kubectl apply -f -`."""
    words = [f"recipes={recipe}", *(overrides or ())]
    if not stdout:
        raise typer.Exit(run.main([*words, "dry_run=true"]))
    context = LaunchContext.read()
    job = pipeline.prepare(words, context)
    if job.backend != "local":  # a manifest is applied as it is printed, so its run must exist
        job = pipeline.track(job, context)
    files = pipeline.render(job, context).files
    manifests = [text for path, text in files.items() if path.startswith("manifests/")] or [files["run.sh"]]
    sys.stdout.write("---\n".join(manifests))


@app.command()
def launch(directory: Annotated[Path, typer.Argument(help="A bundle that was rendered earlier.")]) -> None:
    """Launch a bundle and follow the job."""
    raise typer.Exit(run.launch(*bundles.read(directory)))


def main() -> None:
    """Run the command; a user's mistake is Problems and exit code 2."""
    try:
        app()
    except ProblemsFound as error:
        terminal.show_problems(error.problems, "nothing was submitted")
        sys.exit(run.USER_ERROR)
