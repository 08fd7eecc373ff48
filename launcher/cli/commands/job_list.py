"""Commands about all jobs of a results folder: list them, and remove those that are no longer needed."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import AsJson, beginning, complete_job
from launcher.cli.commands.cluster import Context, Namespace, cluster_jobs
from launcher.cli.output import print_json
from launcher.common import console
from launcher.common.problems import fail, raise_any
from launcher.common.texts import counted, size_text

if TYPE_CHECKING:
    from launcher.api.bundles import Filter, ListedJob, Removable

_COLUMNS = ("job", "name", "cluster", "state", "nodes", "submitted", "message")
_REMOVED = ("job", "name", "state", "submitted", "size")


def _complete_state(incomplete: str) -> list[str]:
    from launcher.api.bundles import STATES

    return beginning(incomplete, STATES)


def _complete_backend(incomplete: str) -> list[str]:
    from launcher.api.offers import clusters

    return beginning(incomplete, clusters())


States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="E.g. failed; repeatable.", autocompletion=_complete_state),
]
BackendName = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="E.g. local, k8s.", autocompletion=_complete_backend)
]
RecipePart = Annotated[str | None, typer.Option("--recipe", metavar="WORD", help="Part of the recipe's path.")]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="AGE", help="Submitted longer ago, e.g. 30m, 12h, 7d, 2w.")
]
NewerThan = Annotated[str | None, typer.Option("--newer-than", metavar="AGE", help="Submitted more recently.")]
DryRuns = Annotated[bool, typer.Option("--all", "-a", help="Also bundles that were never launched.")]


def jobs(
    folder: Annotated[
        str | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="Their base_results_dir; default: results.",
            # The subcommand that a word may become; shells complete folders themselves.
            autocompletion=lambda incomplete: beginning(incomplete, ["remove"]),
        ),
    ] = None,
    state: States = None,
    backend: BackendName = None,
    recipe: RecipePart = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    dry_runs: DryRuns = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="List the training jobs of a Kubernetes cluster instead of a folder.")
    ] = False,
    context: Context = None,
    namespace: Namespace = None,
    is_everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="With --cluster.")] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs and their states. Excludes dry runs; with --cluster, lists the jobs of all users there."""
    from launcher.api.bundles import Filter

    wanted = Filter(tuple(state or ()), backend, recipe, older_than, newer_than, dry_runs)
    raise_any(wanted.problems())
    if not cluster:
        if context or namespace or is_everywhere:
            raise fail("E801", "recipes jobs", "--context, --namespace and --all-namespaces require --cluster")
        _list(folder, wanted, as_json=as_json)
        return
    if folder is not None:
        raise fail("E801", "recipes jobs", "--cluster replaces the folder", value=folder)
    if not wanted.is_empty or wanted.has_dry_runs:
        raise fail("E801", "recipes jobs", "--cluster lists every job; filters apply to a folder only")
    cluster_jobs(context, namespace, is_everywhere=is_everywhere, as_json=as_json)


def _list(folder: str | None, wanted: "Filter", *, as_json: bool) -> None:
    from launcher.api import bundles

    folder = folder or bundles.RESULTS
    found, num_hidden, is_empty = bundles.listed(folder, wanted)
    if as_json:
        print_json([_plain(each) for each in found])
        return
    if found:
        _show_table(_COLUMNS, [_cells(each) for each in found])
    elif is_empty:
        console.say(f"no bundles in {folder}", "dim", stderr=True)
    elif not num_hidden:
        console.say("no matching jobs", "dim", stderr=True)
    if num_hidden:
        shows = f"--all shows {'them' if num_hidden > 1 else 'it'}"
        console.say(f"{counted(num_hidden, 'dry run')} not shown; {shows}", "dim", stderr=True)


def _show_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without its second column, the names given by users, if it is empty."""
    if not any(row[1] for row in rows):
        head, rows = (head[0], *head[2:]), [(row[0], *row[2:]) for row in rows]
    console.show_table(head, rows)


def _cells(each: "ListedJob") -> tuple[str, ...]:
    from launcher.api.bundles import cluster_of, given_name

    seen = each.status
    words = f"{each.problem.code} {each.problem.message}" if each.problem else seen.message if seen else ""
    nodes = str(seen.nodes) if seen and seen.nodes else "-"
    submitted = each.record.submitted if each.record else "-"
    name = given_name(each.folder) or ""
    first_line = words.partition("\n")[0].removesuffix(":")
    return each.name, name, cluster_of(each) or "-", each.state, nodes, submitted, first_line


def _plain(each: "ListedJob") -> dict[str, Any]:
    from launcher.api.bundles import as_json, given_name

    if each.record:
        known = as_json(each.record, each.status)
    else:
        known = {"job": each.name, "name": given_name(each.folder), "state": None}
    return known | ({"problem": str(each.problem)} if each.problem else {})


def remove(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB]...",
            help="Jobs to remove; default: those that the filters select.",
            autocompletion=complete_job,
        ),
    ] = None,
    folder: Annotated[
        str | None, typer.Option("--folder", metavar="FOLDER", help="Their base_results_dir; default: results.")
    ] = None,
    state: States = None,
    backend: BackendName = None,
    recipe: RecipePart = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    dry_runs: DryRuns = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete bundles and everything their jobs wrote there. Never of running jobs; asks for confirmation."""
    from launcher.api import bundles

    wanted = bundles.Filter(tuple(state or ()), backend, recipe, older_than, newer_than, dry_runs)
    removable, kept = bundles.removable(folder or bundles.RESULTS, names or (), wanted)
    if not as_json:
        _show_removable(removable)
        for job, reason in kept:
            console.say(f"kept {job.name}: {reason}", "yellow", stderr=True)
    doomed = removable if removable and (yes or _is_confirmed(removable)) else ()
    removed = [each for each in doomed if bundles.remove(each)]
    if as_json:
        print_json([{"job": each.job.name, "bytes": each.num_bytes} for each in removed])
        return
    for each in [each for each in doomed if each not in removed]:
        console.say(f"kept {each.job.name}: it was launched in the meantime", "yellow", stderr=True)
    outcome = f"removed {counted(len(removed), 'bundle')}; MLflow runs are kept" if removed else "nothing was removed"
    console.say(outcome)


def _show_removable(removable: "Sequence[Removable]") -> None:
    from launcher.api.bundles import given_name

    rows = []
    for job, size in ((each.job, size_text(each.num_bytes)) for each in removable):
        time = job.time.isoformat(timespec="seconds") if job.time else "-"
        rows.append((job.name, given_name(job.folder) or "", job.state, time, size))
    if rows:
        _show_table(_REMOVED, rows)


def _is_confirmed(removable: "Sequence[Removable]") -> bool:
    """Ask on the terminal whether to remove bundles."""
    if not sys.stdin.isatty():
        raise fail("E718", "--yes", "confirmation needs a terminal as standard input", remedy="add --yes")
    total = size_text(sum(each.num_bytes for each in removable))
    question = f"remove {counted(len(removable), 'bundle')}, {total}? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
