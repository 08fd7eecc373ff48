"""Removing bundles from a results folder: only those whose jobs have ended, and nothing outside the folder."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.bundle import store as bundles
from launcher.bundle.manifest import MANIFEST
from launcher.common.locks import is_alive, locked
from launcher.common.names import RUN_DIR
from launcher.common.problems import Problem, fail, gathering, raise_any
from launcher.job_store.listing import Filter, ListedJob, filtered, listed, listing, with_statuses

_REMOVED = ".removed-by-recipes"
"""Suffix of a folder that is being removed; its name begins with a dot, so that no command lists it as a job."""


@dataclass(frozen=True, slots=True)
class Removable:
    """A bundle that may be removed."""

    job: ListedJob
    num_bytes: int


def named(results: Path, names: Sequence[str]) -> list[Removable]:
    """Return the bundles that a user names.

    Raises:
        ProblemsFound: For each that does not exist, is not in the folder, or whose job may still run.
    """
    _refuse_link(results)
    folders: list[Path] = []
    problems: list[Problem] = []
    for name in names:
        with gathering(problems):
            folders.append(_located(results, name))
    found = list(with_statuses(map(listed, dict.fromkeys(folders))))
    for each in found:
        if reason := _reason_to_keep(each):
            problems.append(Problem("E718", each.name, reason, remedy=f"recipes cancel {each.folder}"))
    raise_any(problems)
    return [Removable(each, _num_bytes(each.folder)) for each in found]


def selected(results: Path, wanted: Filter) -> tuple[list[Removable], list[tuple[ListedJob, str]]]:
    """Return the bundles of a folder that a filter selects; and those of them that are kept, each with the reason.

    Raises:
        ProblemsFound: The folder is a link.
    """
    _refuse_link(results)
    removable: list[Removable] = []
    kept: list[tuple[ListedJob, str]] = []
    for each in filtered(listing(results), wanted)[0]:
        if reason := _reason_to_keep(each) or _reason_of_place(results, each.folder):
            kept.append((each, reason))
        else:
            removable.append(Removable(each, _num_bytes(each.folder)))
    return removable, kept


def remove(each: Removable) -> bool:
    """Remove a bundle unless its job was launched meanwhile; return whether it was removed.

    Raises:
        ProblemsFound: The disk refuses.
    """
    folder = each.job.folder
    try:
        manifest = folder / MANIFEST  # its lock is that of a launch
        with locked(manifest if manifest.exists() else folder, waits=False) as is_held:
            (now,) = with_statuses([listed(folder)])
            if not is_held or _reason_to_keep(now) or _reason_of_place(folder.parent, folder):
                return False
            # A name of its own: a removal of a folder of the same name may have been killed.
            folder.rename(folder.with_name(f".{folder.name}.{secrets.token_hex(4)}{_REMOVED}"))
        for left in folder.parent.glob(f".*{_REMOVED}"):  # those of processes that were killed, too
            if not left.is_symlink():
                shutil.rmtree(left, onerror=_unless_gone)  # removes links, but never their targets
    except OSError as error:
        raise fail("E718", str(folder), f"cannot be removed: {error}") from error
    return True


def _unless_gone(_function: object, _path: str, error: tuple[type, BaseException, object]) -> None:
    """Raise the error that kept a file from being removed, unless another process has removed it."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def _refuse_link(results: Path) -> None:
    if results.is_symlink():
        remedy = f"--folder {results.resolve()}"
        raise fail("E718", str(results), "is a link; nothing is removed through links", remedy=remedy)


def _located(results: Path, name: str) -> Path:
    """Return the folder of a job in a results folder, by its path, its folder's name or its own.

    Raises:
        ProblemsFound: No such job exists, or it is not in the folder.
    """
    for folder in (results / name, Path(name), *bundles.named(results, name)):
        if bundles.is_job(folder):
            if reason := _reason_of_place(results, folder):
                raise fail("E718", name, reason)
            return results / folder.name
    raise fail("E703", name, f"is not a job in {results}", remedy="recipes jobs --all")


def _reason_of_place(results: Path, folder: Path) -> str | None:
    """Return why a folder is not one of the results folder itself; None if it is."""
    if folder.is_symlink():
        return "is a link; nothing is removed through links"
    return None if folder.resolve() == results.resolve() / folder.name else f"is not in {results}"


def _reason_to_keep(each: ListedJob) -> str | None:
    """Return why a job's bundle is not removed; None if it may be."""
    if is_alive(each.folder / RUN_DIR):
        return "its job is running on this machine"
    if each.problem and each.problem.code != "E414":  # a lost state of a job without processes
        return f"the state of its job is unknown: {each.problem.message}"
    if each.status and not each.status.state.is_final:
        return f"its job has not ended: {each.status.state.value}"
    return None


def _num_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; links count as themselves."""
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(place, name))
                total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total
