"""The command about a sweep: its trials, its best overrides and its picture; and how it is resumed or cancelled."""

from typing import Annotated

import typer

from launcher.cli.commands.arguments import AsJson, Picture
from launcher.cli.output import print_json
from launcher.common import process
from launcher.common.problems import fail


def sweep(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Its folder, or its name under results/.")],
    resume: Annotated[bool, typer.Option("--resume", help="Run it to its end.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel its jobs.")] = False,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Show the trials of a sweep and the best overrides. Draws a picture, resumes or cancels it."""
    import launcher
    from launcher.cli import searches

    if resume and cancel:
        raise fail("E801", "--resume --cancel", "cannot be given together", allowed="one of them")
    found = launcher.attach_sweep(sweep)
    if resume:
        raise typer.Exit(searches.follow(found))
    if cancel:
        process.allow_clean_up()
        found.cancel()
    if as_json:
        print_json(searches.as_json(found))
    else:
        searches.show(found, picture)
