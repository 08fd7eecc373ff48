"""The `recipes` command."""

import sys
from typing import Annotated

import typer

from launcher import bundle as bundles
from launcher import pipeline, run, terminal
from launcher.context import LaunchContext
from launcher.contract import EVENTS_FILE, RUN_DIR, TIMELINE
from launcher.problems import ProblemsFound, fail

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, as for main.py.")]
BundleName = Annotated[str, typer.Argument(metavar="BUNDLE", help="Its folder, or a job's name under results/.")]


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
def launch(bundle: BundleName) -> None:
    """Launch a bundle that was rendered earlier and follow the job."""
    try:
        code = run.launch(*bundles.read(bundles.locate(bundle)))
    except KeyboardInterrupt:
        code = run.INTERRUPTED
    raise typer.Exit(code)


@app.command()
def logs(
    bundle: BundleName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job has ended.")] = False,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Whose lines.")] = 0,
    all_ranks: Annotated[bool, typer.Option("--all-ranks", help="Those of all ranks.")] = False,
    attempt: Annotated[int | None, typer.Option("--attempt", min=0, help="One start of the workers only.")] = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="What they wrote to standard error.")] = False,
) -> None:
    """Show what the workers of a job on this machine wrote, attempt after attempt."""
    from launcher.backends.local.logs import STDERR, STDOUT, Selection, read_logs

    ranks = None if all_ranks else (rank,)
    selection = Selection(ranks, attempt, STDERR if stderr else STDOUT, headings=True)
    try:
        for line in read_logs(bundles.locate(bundle), selection, follow=follow):
            terminal.say(line)
    except KeyboardInterrupt:
        raise typer.Exit(run.INTERRUPTED) from None


@app.command()
def scale(
    bundle: BundleName,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes it shall have; a size of its plan.")],
) -> None:
    """Ask a job that runs on this machine for another size. Where a scenario plays, it is the most it may have."""
    from launcher.specs import JobHandle

    folder = bundles.locate(bundle).resolve()
    pipeline.load_backend("local").scale(JobHandle("local", folder.name, folder), nodes)
    terminal.say(f"asked for {nodes} node{'s' if nodes > 1 else ''}; follow it where it runs, or with recipes logs")


@app.command()
def timeline(
    bundle: BundleName,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show when a job on this machine scaled and why, what that took, and what was lost."""
    from launcher import timeline as timelines

    run_dir = bundles.locate(bundle) / RUN_DIR
    if not (run_dir / EVENTS_FILE).exists():
        raise fail("E705", bundle, "its job was never launched on this machine")
    try:
        course = timelines.write(run_dir)
    except OSError as error:
        raise fail("E708", str(run_dir), f"the timeline cannot be written: {error}") from error
    if as_json:
        sys.stdout.write((run_dir / TIMELINE).with_suffix(".json").read_text(encoding="utf-8") + "\n")
    else:
        terminal.show_timeline(course, run_dir)


def main() -> None:
    """Run the command; a user's mistake is Problems and exit code 2."""
    try:
        app()
    except ProblemsFound as error:
        terminal.show_problems(error.problems, "nothing was done")
        sys.exit(run.USER_ERROR)
