"""Commands that launch a job once more, and compare jobs with all that they are made of."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.commands.arguments import GivenName, JobName, Overrides
from launcher.cli.output import print_json
from launcher.common import console
from launcher.common.problems import ProblemsFound

if TYPE_CHECKING:
    from launcher.api.reproducing import Comparison

_SLOW = "reading code and data …"
_STYLES = {"-": "red", "+": "green", "…": "dim"}


def rerun(
    job: JobName,
    overrides: Overrides = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Launch it although code, data or packages have changed.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end. Always so on this machine.")] = False,
    name: GivenName = None,
) -> None:
    """Launch a job once more, from its recorded overrides. It has a bundle of its own. If its configuration, code,
    data or packages have changed, print what differs and exit with 2. dry_run=true writes the bundle alone."""
    from launcher.api import reproducing, running
    from launcher.cli import launch, terminal

    with console.slow(_SLOW):
        found = reproducing.rerun(job, overrides or ())
    _show_notes(found.comparison)
    if found.comparison.changes:
        _show_lines(found.comparison.lines())
    else:
        console.say(f"{found.comparison.old} compiles to the same bytes", "dim", stderr=True)
    found.check(allow_changes=allow_changes)
    terminal.show_plan(found.job)
    with console.slow(_SLOW):
        bundle = found.write(allow_changes=allow_changes, name=name)
    is_only_written = running.only_written_by(found.job) is not None
    terminal.show_bundle(bundle, name, is_only_written=is_only_written)
    if is_only_written:
        return
    try:
        with contextlib.chdir(found.context.cwd):  # processes of a job on this machine start there
            code = launch.launch(bundle, found.job.backend, wait=wait)
    except ProblemsFound as error:
        raise ProblemsFound(error.problems, error.outcome or launch.written(bundle)) from error
    raise typer.Exit(code)


def difference(old: str, new: str | None, *, as_json: bool) -> bool:
    """Print how two jobs differ, or one and what it would be now; return whether they do."""
    from launcher.api import reproducing

    with console.slow(_SLOW):
        comparison = reproducing.of_jobs(old, new) if new else reproducing.since(old)
    if as_json:
        print_json(comparison)
    else:
        _show_notes(comparison)
        show_difference(comparison.old, comparison.new, list(comparison.lines()))
    return bool(comparison.changes)


def show_difference(old: str, new: str, lines: Sequence[str]) -> None:
    """Print the lines of a difference below the titles of both sides."""
    if lines:
        console.say_all([(f"--- {old}", "bold"), (f"+++ {new}", "bold")])
        _show_lines(lines)
    else:
        console.say("no difference", "dim", stderr=True)


def _show_notes(comparison: "Comparison") -> None:
    for note in comparison.notes:
        console.say(f"note  {note}", "yellow", stderr=True)


def _show_lines(lines: Iterable[str]) -> None:
    console.say_all((line, _STYLES[line[0]]) for line in lines)
