"""The bundles and jobs of a results folder, kept between looks at it: thousands are listed in milliseconds.

Only a folder that has changed is read again: every file that a launch, an end or a name adds to a folder is renamed
into it, which changes the folder's own time.
"""

import contextlib
import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from launcher.api.sweeps.record import SWEEP_FILE, TRIALS_FILE
from launcher.bundle.manifest import MANIFEST
from launcher.bundle.store import given_name, is_job, is_shown
from launcher.common.locks import LOCK_FILE
from launcher.common.names import (
    ADOPTED_FILE,
    CHECKPOINTS_FILE,
    CONFIG_DIR,
    EVENTS_FILE,
    JOB_FILE,
    LOG_DIR,
    METRICS_FILE,
    NAME_FILE,
    REPRODUCE_FILE,
    RUN_DIR,
    RUN_ID_FILE,
    STARTS_FILE,
    TIMELINE,
)
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.job_store import listing, registry
from launcher.job_store.listing import RENDERED, STATES
from launcher.job_store.registry import JobRecord
from launcher.model import backend_registry
from launcher.model.failure import in_one_line
from launcher.model.job_spec import JobState, JobStatus
from launcher.operator.job_request import LOCAL_FILE, PLAN_FILE
from launcher.operator.snapshot import STATE_FILE, STOP_FILE

__all__ = [
    "RENDERED", "STATES", "IndexedJob", "JobIndex", "JobRecord", "JobState", "JobStatus", "in_one_line", "place",
    "recorded", "statuses",
]  # fmt: skip

_LOOK_S, _SEARCH_S = 0.5, 5.0
"""How old an answer of `rows` may be about jobs that change, and about others: pages that ask together share one."""
_TICK_NS = 1_000_000_000

_LONGEST_NAME = 300
_READ = (
    *(MANIFEST, JOB_FILE, NAME_FILE, ADOPTED_FILE, RUN_ID_FILE, REPRODUCE_FILE),
    *(PLAN_FILE, "recipe.yaml", LOCAL_FILE, SWEEP_FILE, TRIALS_FILE, f"{RUN_DIR}/{TIMELINE}.json"),
    *(f"{RUN_DIR}/{name}" for name in (METRICS_FILE, EVENTS_FILE, STARTS_FILE, CHECKPOINTS_FILE, STATE_FILE)),
    *(f"{RUN_DIR}/{name}" for name in (LOCK_FILE, STOP_FILE)),
)
"""What pages read of a job's or a sweep's folder, besides the files that its manifest names, and logs."""
_FOLDERS = (CONFIG_DIR, RUN_DIR, f"{RUN_DIR}/{LOG_DIR}")

_DAMAGES = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a damaged file raises."""

Stamp = tuple[int, int]
"""Time of a folder's last change in nanoseconds, and its inode."""


@dataclass(frozen=True, slots=True)
class IndexedJob:
    """A bundle or an adopted job as its folder has it.

    Args:
        name: Of its folder.
        title: The name that its user gave it, else `name`.
        record: None for a bundle that was never launched, or whose record is damaged.
        problem: Why its record cannot be read.
        cluster: A choice of `cluster`; "" if unknown.
        recipe: Path of its recipe; "" for an adopted job.
        time: When it was submitted or, if it never was, when its bundle was written; ISO 8601, "" if unknown.
        user: Who launched it; "" if unknown.
        instance_type: With `ml.`; None on this machine, and if unknown.
        sizes: Numbers of nodes that it may have; none if unknown.
    """

    name: str
    folder: Path
    title: str
    record: JobRecord | None
    problem: Problem | None
    cluster: str
    recipe: str
    time: str
    user: str
    instance_type: str | None = None
    sizes: tuple[int, ...] = ()

    @property
    def ended(self) -> JobStatus | None:
        """Its final status; None while it runs, or as far as is known."""
        return self.record.ended if self.record else None

    @property
    def is_open(self) -> bool:
        """Whether its cluster has to be asked for its status."""
        return self.record is not None and self.record.ended is None

    @property
    def state(self) -> str:
        """One of `recipes jobs --state`, as far as its folder tells: `unknown` while its cluster was not asked."""
        if self.record is None:
            return listing.UNKNOWN if self.problem else RENDERED
        return self.record.ended.state.value if self.record.ended else listing.UNKNOWN


class JobIndex:
    """The jobs of a results folder. Threads may share it.

    Args:
        results: The folder, which need not exist yet.

    Attributes:
        version: Changes with every change of `rows`.
        open: Those of `rows` whose clusters have to be asked.
    """

    def __init__(self, results: Path):
        self.results = results
        self.version = 0
        self.open: tuple[IndexedJob, ...] = ()
        self._rows: dict[str, IndexedJob] = {}
        self._seen: dict[str, Stamp] = {}
        self._sorted: tuple[IndexedJob, ...] = ()
        self._results: Stamp | None = None
        self._looked = self._searched = -math.inf
        self._lock = threading.Lock()

    def rows(self) -> tuple[IndexedJob, ...]:
        """Return every job, the latest first.

        New, removed and running jobs are as they are now, others at most 5 s old.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= _LOOK_S:
                self._looked = now
                stamp = _stamp(self.results)
                if stamp != self._results or now - self._searched >= _SEARCH_S:
                    self._take(self._search(), is_all=True)
                    self._results, self._searched = stamp, now
                else:
                    names = {row.name for row in self.open} | (self._rows.keys() - self._seen.keys())
                    self._take({name: _stamp(self.results / name) for name in names}, is_all=False)
            return self._sorted

    def find(self, name: str) -> IndexedJob | None:
        """Return the job whose folder, or whose given name, is this, as it is now; None if there is none.

        Every page that opens the files of one job gets it here.

        Raises:
            ProblemsFound: Something that is read as a file of it is a pipe or a link (E711).
        """
        found = self._find(name)
        if found is not None:
            refuse_irregular(found.folder)
            _refuse(found.folder, _named_files(found.folder), stat.S_ISREG)
        return found

    def _find(self, name: str) -> IndexedJob | None:
        rows = self.rows()
        if is_shown(name):
            with self._lock:
                self._take({name: _stamp(self.results / name)}, is_all=False)
                if found := self._rows.get(name):
                    return found
        return next((each for each in rows if each.title == name), None)

    def _search(self) -> dict[str, Stamp | None]:
        with contextlib.suppress(OSError), os.scandir(self.results) as entries:
            return {each.name: _stamp(each) for each in entries if is_shown(each.name)}
        return {}

    def _take(self, stamps: Mapping[str, Stamp | None], *, is_all: bool) -> None:
        """Read the folders whose stamps have changed, and forget those that have none."""
        changed = [name for name, stamp in stamps.items() if self._seen.get(name) != stamp or stamp is None]
        if not changed and (not is_all or stamps.keys() >= self._rows.keys()):
            return
        rows = {name: row for name, row in self._rows.items() if not is_all or name in stamps}
        for name in changed:
            if (row := _read_safely(self.results / name)) is not None:
                rows[name] = row
            else:
                rows.pop(name, None)
        # A file may be renamed into a folder twice within one tick of its clock: such a folder is read once more.
        young = time.time_ns() - _TICK_NS
        seen = {name: stamp for name, stamp in stamps.items() if stamp and (name not in changed or stamp[0] < young)}
        kept = {} if is_all else {name: stamp for name, stamp in self._seen.items() if name not in stamps}
        self._seen = kept | seen
        if rows != self._rows:
            self._rows = rows
            self._sorted = tuple(sorted(rows.values(), key=lambda each: (each.time, each.name), reverse=True))
            self.open = tuple(row for row in self._sorted if row.is_open)
            self.version += 1


def _stamp(folder: str | os.PathLike[str]) -> Stamp | None:
    """Return what changes with the content of a folder; None without one."""
    with contextlib.suppress(OSError):
        found = os.stat(folder)
        return found.st_mtime_ns, found.st_ino
    return None


def refuse_irregular(folder: Path) -> None:
    """Raise a Problem if something that is read as a file of a job is not one, such as a pipe or a link (E711).

    Reading a pipe never ends, and a link may lead out of the results folder.
    """
    _refuse(folder, _FOLDERS, stat.S_ISDIR)
    _refuse(folder, _READ, stat.S_ISREG)


def _refuse(folder: Path, names: Iterable[str], is_kind: Callable[[int], bool]) -> None:
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            if not is_kind(os.lstat(folder / name).st_mode):
                said = f"is not a {'folder' if is_kind is stat.S_ISDIR else 'file'} of its own, so it is not read"
                raise fail("E711", str(folder / name), said, remedy="remove it")


def _named_files(folder: Path) -> tuple[str, ...]:
    """Return the files of a bundle by its manifest; none of a damaged one."""
    with contextlib.suppress(*_DAMAGES):
        return tuple(map(str, json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]))
    return ()


def _read_safely(folder: Path) -> IndexedJob | None:
    """Return the job of a folder, whatever is wrong with its files: one job hides no other."""
    try:
        refuse_irregular(folder)
        row = _read(folder)
        hash(row and place(row))  # its handle may have any value
        return row
    except ProblemsFound as error:
        problem = error.problems[0]
    except Exception as error:  # of any values in its record
        problem = registry.damaged(folder, error).problems[0]
    return IndexedJob(folder.name, folder, folder.name, None, problem, "", "", "", "")


def _read(folder: Path) -> IndexedJob | None:
    """Return the job of a folder; None for another folder."""
    if not is_job(folder):
        return None
    each = listing.listed(folder, folder)
    plan: Mapping[str, Any] = {}
    with contextlib.suppress(*_DAMAGES):
        plan = dict(json.loads((folder / PLAN_FILE).read_text(encoding="utf-8")))
    time_text, user = (each.record.submitted, each.record.user) if each.record else _written(folder)
    backend = each.record.handle.backend if each.record else plan.get("backend")
    known = isinstance(backend, str) and backend in backend_registry.names()
    instance = plan.get("instance_type")
    return IndexedJob(
        folder.name,
        folder,
        (given_name(folder) or folder.name)[:_LONGEST_NAME],
        each.record,
        each.problem,
        backend_registry.described(str(backend)).choice if known else "",
        str(plan.get("recipe") or ""),
        _utc(time_text),
        str(user),
        instance if isinstance(instance, str) else None,
        _sizes(plan),
    )


def _sizes(plan: Mapping[str, Any]) -> tuple[int, ...]:
    with contextlib.suppress(KeyError, TypeError):
        return tuple(scale["nodes"] for scale in plan["scales"])
    return ()


def _written(folder: Path) -> tuple[str, str]:
    """Return when a bundle was written, and by whom."""
    with contextlib.suppress(*_DAMAGES):
        said = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return str(said["created"]), str(said.get("user") or "")
    return "", ""


def _utc(text: str) -> str:
    """Return an ISO 8601 time so that texts sort as times do; "" if it is none."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="seconds")
    return ""


def place(row: IndexedJob) -> Hashable:
    """Return which server answers for a job; None without a record."""
    return row.record.handle.place if row.record else None


def is_here(row: IndexedJob) -> bool:
    """Return whether the records of a job are on this machine, so that its status takes no request."""
    return row.record is not None and backend_registry.described(row.record.handle.backend).runs_here


def statuses(rows: Iterable[IndexedJob]) -> dict[str, JobStatus | Problem]:
    """Return the status of jobs by the names of their folders, or why it is unknown. Clusters are asked."""
    given, found = list[listing.ListedJob](), dict[str, JobStatus | Problem]()
    for row in rows:
        try:
            refuse_irregular(row.folder)
        except ProblemsFound as error:
            found[row.name] = error.problems[0]
        else:
            given.append(listing.ListedJob(row.folder, row.record))
    for each in listing.with_statuses(given):
        if known := each.problem or each.status:
            found[each.name] = known
    return found


def recorded(folder: Path, total: Literal["goodput", "wall_s"]) -> float | None:
    """Return a total that the report of a job has; None without one.

    Args:
        total: `goodput`, 0 to 1; or `wall_s`, how long the last launch took, in seconds.
    """
    name = f"{RUN_DIR}/{TIMELINE}.json"
    with contextlib.suppress(ProblemsFound, OverflowError, *_DAMAGES):
        _refuse(folder, (RUN_DIR,), stat.S_ISDIR)
        _refuse(folder, (name,), stat.S_ISREG)
        with (folder / name).open("rb") as file:
            head = file.read(4096)  # the totals precede the steps, of which there may be many
        start = head.index(f'"{total}"'.encode())
        return float(json.loads(b"{" + head[start : head.index(b",", start)] + b"}")[total])
    return None
