"""The command that rehearses a Ray job on this machine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.commands.arguments import Overrides, complete_recipe
from launcher.common import console
from launcher.common.interrupts import exit_code, signals_as_interrupts
from launcher.common.problems import Notice
from launcher.common.texts import counted

if TYPE_CHECKING:
    from launcher.api.rehearsing import Event, Rehearsal

_STYLES = {"fails": "bold red", "note": "yellow", "ok": "green"}
_PASSED, _FAILED = 0, 3
_SHARED_NETWORK = Notice(
    "N191", "this machine allows no network namespace: Ray listens on its address, protected by a random token"
)


def rehearse(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|BUNDLE", help="A recipe, or a bundle's folder.", autocompletion=complete_recipe
        ),
    ],
    overrides: Overrides = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Time limit of a program that runs.")
    ] = 600.0,
) -> None:
    """Rehearse a Ray job here. Starts its Ray cluster with simulated accelerators; a script trains there, and of a
    program that only the image has, the resource check is made. Writes nothing. Exit code 3 if that fails."""
    from launcher.api import rehearsing

    rehearsal = rehearsing.rehearsal(recipe, overrides or ())
    try:
        with signals_as_interrupts():
            code = _rehearsed(rehearsal, timeout)
    except KeyboardInterrupt as interrupt:
        code = exit_code(interrupt)
    raise typer.Exit(code)


def _rehearsed(rehearsal: "Rehearsal", timeout_s: float) -> int:
    from launcher.api import rehearsing

    nodes = rehearsal.job.nodes
    console.say(f"{rehearsal.job_name}: its Ray cluster on this machine, after {rehearsal.job.source}")
    for line in rehearsing.cluster_lines(rehearsal.job):
        console.say(f"  {line}")
    with rehearsing.started(rehearsal, timeout_s) as events:
        _await_cluster(events, len(nodes))
        return _checked(rehearsal, events) if rehearsal.check else _run(events)


def _await_cluster(events: "Iterator[Event]", num_nodes: int) -> None:
    """Follow the start of the cluster to its end."""
    what = "nodes of the Ray cluster are up, which takes 2 to 20 s each"
    with console.progress(what) as show:
        show(0, num_nodes)
        for event in events:
            if event.kind == "isolated" and not event.fields["value"]:
                console.show_notice(_SHARED_NETWORK)
            if event.kind == "nodes":
                show(event.fields["done"], num_nodes)
                if event.fields["done"] == num_nodes:
                    return


def _checked(rehearsal: "Rehearsal", events: "Iterator[Event]") -> int:
    """Print what a resource check found; return the exit code."""
    from launcher.api import rehearsing

    check = rehearsal.check
    assert check
    with console.while_waiting("reserving what the program reserves, at most 10 s without progress …"):
        lines = [event.fields["text"] for event in events if event.kind == "line"]
    found = tuple(rehearsing.findings(rehearsal.job, check, rehearsing.read_result(lines[-1])))
    for finding in found:
        console.say_fitted(str(finding), _STYLES[finding.kind])
    for line in rehearsing.conclusion(check, found, rehearsal.job):
        console.say_fitted(line)
    return _FAILED if rehearsing.has_failed(found) else _PASSED


def _run(events: "Iterator[Event]") -> int:
    """Print what the job's program prints; return the exit code."""
    for event in events:
        if event.kind == "line":
            console.say(event.fields["text"])
        elif event.kind == "timeout":
            limit = counted(round(event.fields["limit_s"]), "second")
            console.say(f"fails the program ran longer than {limit} and was ended; --timeout sets that", "bold red")
        elif event.kind == "ended":
            code = event.fields["code"]
            if code == 0:
                console.say("ok    the program has ended with exit code 0 on simulated accelerators", "green")
                return _PASSED
            console.say(f"fails the program has ended with exit code {code}", "bold red")
    return _FAILED
