"""The bundles of a results folder: those that a filter selects, with the states of their jobs, and removing them."""

from collections.abc import Sequence
from pathlib import Path

from launcher.bundle import store
from launcher.bundle.store import RESULTS, given_name, is_job
from launcher.common.problems import fail, raise_any
from launcher.common.redaction import masked
from launcher.job_store import removal
from launcher.job_store.listing import STATES, Filter, ListedJob, filtered, listing, place_of
from launcher.job_store.registry import as_json
from launcher.job_store.removal import Removable, remove
from launcher.model import backend_registry

__all__ = [
    "RESULTS", "STATES", "Filter", "ListedJob", "Removable", "as_json", "bundle_files", "cluster_of",
    "given_name", "is_job", "listed", "removable", "remove",
]  # fmt: skip


def listed(folder: str, wanted: Filter) -> tuple[list[ListedJob], int, bool]:
    """Return the bundles of a folder that a filter selects, and how many dry runs it hides; and whether none exist.

    Clusters are asked for the states of jobs that have not ended.

    Raises:
        ProblemsFound: The folder does not exist (E818).
    """
    every = listing(place_of(folder))
    return *filtered(every, wanted), not every


def removable(
    folder: str, names: Sequence[str], wanted: Filter
) -> tuple[list[Removable], list[tuple[ListedJob, str]]]:
    """Return the bundles of a folder that may be removed, named or selected; and selected ones that may not, and why.

    Raises:
        ProblemsFound: Neither names nor conditions are given, or both; a condition cannot be met, or the folder does
            not exist (E818); a named one does not exist (E703), or may not be removed (E718).
    """
    raise_any(wanted.problems())
    if bool(names) is not wanted.is_empty or (names and wanted.has_dry_runs):
        message = "give jobs, or filters that select them" if not names else "filters do not apply to named jobs"
        raise fail("E801", "recipes jobs remove", message, remedy="recipes jobs remove --older-than 30d")
    place = place_of(folder)
    return (removal.named(place, names), []) if names else removal.selected(place, wanted)


def cluster_of(each: ListedJob) -> str | None:
    """Return the choice of `cluster` of a submitted job."""
    return backend_registry.described(each.record.handle.backend).choice if each.record else None


def bundle_files(folder: Path) -> dict[str, str]:
    """Return relative path to text of every file of a bundle on disk, its manifest included, without secrets.

    Raises:
        ProblemsFound: It is not a bundle, or a file is missing or was changed (E703, E704, E713).
    """
    return {path: masked(text) for path, text in sorted(store.read(folder)[0].files.items())}
