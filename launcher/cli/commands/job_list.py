"""Commands about all jobs of a results folder: list them, and remove those that are no longer needed."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import AsJson, complete_job
from launcher.cli.commands.cluster import Context, Namespace, cluster_jobs
from launcher.common.problems import ProblemsFound, fail

if TYPE_CHECKING:
    from launcher.jobs import removal
    from launcher.jobs.listing import Filter, ListedJob

_COLUMNS = ("job", "name", "cluster", "state", "nodes", "submitted", "message")
_REMOVED = ("job", "name", "state", "submitted", "size")
_STEP, _UNITS = 1024, ("KiB", "MiB", "GiB", "TiB")


def _complete_folder(incomplete: str) -> list[str]:
    """Return the subcommand of `recipes jobs` that a word may become; shells complete folders themselves."""
    return [word for word in ("remove",) if word.startswith(incomplete)]


def _complete_state(incomplete: str) -> list[str]:
    from launcher.jobs.listing import STATES

    return [state for state in STATES if state.startswith(incomplete)]


def _complete_backend(incomplete: str) -> list[str]:
    from launcher.model import backend_registry

    choices = sorted(each.choice for each in backend_registry.descriptions())
    return [name for name in choices if name.startswith(incomplete)]


States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="E.g. failed; repeatable.", autocompletion=_complete_state),
]
BackendName = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="E.g. local, k8s.", autocompletion=_complete_backend),
]
RecipePart = Annotated[str | None, typer.Option("--recipe", metavar="WORD", help="Part of the recipe's path.")]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="AGE", help="Submitted longer ago, e.g. 30m, 12h, 7d, 2w."),
]
NewerThan = Annotated[str | None, typer.Option("--newer-than", metavar="AGE", help="Submitted more recently.")]
DryRuns = Annotated[bool, typer.Option("--all", "-a", help="Also bundles that were never launched.")]


def jobs(
    folder: Annotated[
        str | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="Their base_results_dir; default: results.",
            autocompletion=_complete_folder,
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
    wanted = _filter(state, backend, recipe, older_than, newer_than, dry_runs)
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


def _filter(
    state: Sequence[str] | None,
    backend: str | None,
    recipe: str | None,
    older_than: str | None,
    newer_than: str | None,
    dry_runs: bool,
) -> "Filter":
    """Return the filter that options describe.

    Raises:
        ProblemsFound: No job can meet a condition.
    """
    from launcher.jobs.listing import Filter

    wanted = Filter(tuple(state or ()), backend, recipe, older_than, newer_than, has_dry_runs=dry_runs)
    if found := wanted.problems():
        raise ProblemsFound(found)
    return wanted


def _list(folder: str | None, wanted: "Filter", *, as_json: bool) -> None:
    from launcher.bundle import store
    from launcher.common import console
    from launcher.jobs.listing import filtered, listing
    from launcher.model import backend_registry

    folder = folder or store.RESULTS
    every = listing(Path(folder))
    found, num_hidden = filtered(every, wanted, backend_registry.load_backend)
    if as_json:
        print(json.dumps([_listed_json(each) for each in found], indent=2))
    elif found:
        console.show_table(*_without_empty_names(_COLUMNS, [_cells(each) for each in found]))
    elif not every:
        console.say(f"no bundles in {folder}", "dim", stderr=True)
    elif not num_hidden:
        console.say("no matching jobs", "dim", stderr=True)
    if num_hidden and not as_json:
        runs = f"{num_hidden} dry run{'s' if num_hidden > 1 else ''}"
        console.say(f"{runs} not shown; --all shows {'them' if num_hidden > 1 else 'it'}", "dim", stderr=True)


def _without_empty_names(
    head: Sequence[str], rows: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return a table without its second column, the names given by users, if it is empty."""
    if any(row[1] for row in rows):
        return tuple(head), rows
    return (head[0], *head[2:]), [(row[0], *row[2:]) for row in rows]


def _cells(each: "ListedJob") -> tuple[str, ...]:
    """Return a row of `recipes jobs`."""
    from launcher.bundle.store import given_name
    from launcher.model.backend_registry import described

    seen = each.status
    words = f"{each.problem.code} {each.problem.message}" if each.problem else seen.message if seen else ""
    nodes = str(seen.nodes) if seen and seen.nodes else "-"
    submitted = each.record.submitted if each.record else "-"
    cluster = described(each.record.handle.backend).choice if each.record else "-"
    name = given_name(each.folder) or ""
    return each.name, name, cluster, each.state, nodes, submitted, words.partition("\n")[0]


def _listed_json(each: "ListedJob") -> dict[str, Any]:
    from launcher.bundle.store import given_name
    from launcher.jobs.registry import as_json as to_json

    unknown = {"job": each.name, "name": given_name(each.folder), "state": None}
    known = to_json(each.record, each.status) if each.record else unknown
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
    from launcher.bundle import store
    from launcher.jobs import removal

    wanted = _filter(state, backend, recipe, older_than, newer_than, dry_runs)
    results = Path(folder or store.RESULTS)
    if bool(names) is not wanted.is_empty or (names and wanted.has_dry_runs):
        message = "give jobs, or filters that select them" if not names else "filters do not apply to named jobs"
        raise fail("E801", "recipes jobs remove", message, remedy="recipes jobs remove --older-than 30d")
    chosen = removal.named(results, names) if names else removal.selected(results, wanted)
    _remove(chosen, is_confirmed=yes, as_json=as_json)


def _remove(chosen: "removal.Chosen", *, is_confirmed: bool, as_json: bool) -> None:
    """Print the chosen bundles, ask unless already confirmed, and remove them."""
    from launcher.jobs import removal

    if not as_json:
        _show_removable(chosen)
    is_wanted = bool(chosen.removable) and (is_confirmed or _is_confirmed(chosen.removable))
    wanted = chosen.removable if is_wanted else ()
    removed = [each for each in wanted if removal.remove(each)]
    if as_json:
        print(json.dumps([{"job": each.job.name, "bytes": each.num_bytes} for each in removed], indent=2))
        return
    _say_removed(wanted, removed)


def _say_removed(wanted: "Sequence[removal.Removable]", removed: "Sequence[removal.Removable]") -> None:
    from launcher.common import console

    for each in [each for each in wanted if each not in removed]:
        console.say(f"kept {each.job.name}: it was launched in the meantime", "yellow", stderr=True)
    console.say(f"removed {_jobs(removed)}; MLflow runs are kept" if removed else "nothing was removed")


def _show_removable(chosen: "removal.Chosen") -> None:
    """Print the bundles to remove with their sizes, and the kept ones with the reasons."""
    from launcher.bundle.store import given_name
    from launcher.common import console

    if chosen.removable:
        rows: list[tuple[str, ...]] = [
            (
                each.job.name,
                given_name(each.job.folder) or "",
                each.job.state,
                each.job.time.isoformat(timespec="seconds") if each.job.time else "-",
                _size(each.num_bytes),
            )
            for each in chosen.removable
        ]
        console.show_table(*_without_empty_names(_REMOVED, rows))
    for job, reason in chosen.kept:
        console.say(f"kept {job.name}: {reason}", "yellow", stderr=True)


def _is_confirmed(removable: "Sequence[removal.Removable]") -> bool:
    """Ask on the terminal whether to remove bundles.

    Raises:
        ProblemsFound: Standard input is not a terminal.
    """
    total = _size(sum(each.num_bytes for each in removable))
    if not sys.stdin.isatty():
        raise fail("E718", "--yes", "confirmation needs a terminal as standard input", remedy="add --yes")
    print(f"remove {_jobs(removable)}, {total}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _jobs(found: "Sequence[removal.Removable]") -> str:
    return f"{len(found)} bundle{'' if len(found) == 1 else 's'}"


def _size(num_bytes: int) -> str:
    """Return bytes in a unit that leaves at most three digits before the point."""
    if num_bytes < _STEP:
        return f"{num_bytes} B"
    power = min(len(_UNITS), (num_bytes.bit_length() - 1) // 10)
    return f"{num_bytes / _STEP**power:.1f} {_UNITS[power - 1]}"
