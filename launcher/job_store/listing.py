"""Bundles and adopted jobs of a results folder, as `recipes jobs` lists, filters and removes them."""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from launcher.bundle import store as bundles
from launcher.bundle.manifest import MANIFEST
from launcher.common.names import JOB_FILE
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.common.suggestions import did_you_mean
from launcher.config.collection import clusters
from launcher.job_store.registry import JobRecord, read, status
from launcher.model import backend_registry
from launcher.model.job_spec import JobState, JobStatus

RENDERED, UNKNOWN = "rendered", "unknown"
"""States of a bundle whose job was never submitted, and of a job whose cluster does not answer."""
STATES = (*(state.value for state in JobState), RENDERED, UNKNOWN)

_PLACE_PATHS, _PLACE_CODES = ("cluster", "cluster.kube_context"), ("E394", "E396")
"""Problems of a connection: their paths on Kubernetes, their codes on AWS."""
_AGE = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A bundle, or an adopted job.

    Args:
        record: None for one whose job was never submitted, or whose record is damaged.
        status: None if unknown.
        problem: Why the status is unknown.
    """

    folder: Path
    record: JobRecord | None = None
    status: JobStatus | None = None
    problem: Problem | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def is_dry_run(self) -> bool:
        """Whether its job was never submitted."""
        return self.record is None and self.problem is None

    @property
    def state(self) -> str:
        """One of STATES."""
        if self.problem:
            return UNKNOWN
        return self.status.state.value if self.status else RENDERED

    @property
    def backend(self) -> str | None:
        """Where its job runs, or would; None if unknown."""
        return self.record.handle.backend if self.record else self._planned("backend")

    @property
    def recipe(self) -> str | None:
        """The recipe of its bundle; None if there is no bundle."""
        return self._planned("recipe")

    def _planned(self, key: str) -> str | None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))[key])
        return None

    @property
    def time(self) -> datetime | None:
        """When its job was submitted or, if it never was, when its bundle was written; None if unknown."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if self.record:
                return _time(self.record.submitted)
            return _time(json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))["created"])
        return None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs of a results folder are selected. A condition that is None selects all.

    Args:
        states: Any of STATES.
        backend: A choice of `cluster`, or the name that job records have.
        recipe: Part of the recipe's path.
        older_than, newer_than: Age, as a number of minutes, hours, days or weeks: 30m, 12h, 7d, 2w.
        has_dry_runs: Whether bundles that were never launched are selected too.
    """

    states: Sequence[str] = ()
    backend: str | None = None
    recipe: str | None = None
    older_than: str | None = None
    newer_than: str | None = None
    has_dry_runs: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no condition was given."""
        return self == Filter() or self == Filter(has_dry_runs=True)

    def problems(self) -> tuple[Problem, ...]:
        """Return every condition that cannot be met."""
        given = (*self.states, self.backend, self.recipe, self.older_than, self.newer_than)
        if wrong := [each for each in given if each is not None and not isinstance(each, str)]:
            return tuple(Problem("E818", "jobs", "a condition must be a text", each) for each in wrong)
        found = []
        for state in self.states:
            if state not in STATES:
                remedy = did_you_mean(state, STATES)
                found.append(Problem("E818", "--state", "is not a state of a job", state, ", ".join(STATES), remedy))
        known = clusters()
        if self.backend is not None and self.backend not in {*known, *backend_registry.names()}:
            remedy = did_you_mean(self.backend, known)
            found.append(Problem("E818", "--backend", "is not a backend", self.backend, ", ".join(known), remedy))
        for option, text in (("--older-than", self.older_than), ("--newer-than", self.newer_than)):
            if text is not None and not _AGE.fullmatch(text):
                allowed = "a number of minutes, hours, days or weeks: 30m, 12h, 7d, 2w"
                found.append(Problem("E818", option, "is not an age", text, allowed))
        return tuple(found)

    def hides(self, each: ListedJob) -> bool:
        """Return whether a job is left out only because it was never launched."""
        return each.is_dry_run and not self.has_dry_runs and RENDERED not in self.states

    def selects(self, each: ListedJob) -> bool:
        """Return whether a job meets every condition that its folder answers: all but its state."""
        if self.backend is not None and each.backend != backend_registry.name_of(self.backend):
            return False
        if self.recipe is not None and self.recipe.lower() not in (each.recipe or "").lower():
            return False
        return not (self.older_than or self.newer_than) or self._is_of_age(each.time)

    def _is_of_age(self, time: datetime | None) -> bool:
        now = datetime.now(UTC)
        if time is None or (self.older_than and now - time < _age(self.older_than)):
            return False
        return not self.newer_than or now - time <= _age(self.newer_than)


def _time(text: str) -> datetime:
    """Return a time on record; one without a zone, which another program wrote, is in UTC."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _age(text: str) -> timedelta:
    return timedelta(**{_UNITS[text[-1]]: int(text[:-1])})


def place_of(folder: str, base: Path = Path()) -> Path:
    """Return a results folder whose jobs are to be listed; the default one need not exist yet.

    Args:
        base: Where a relative one starts.

    Raises:
        ProblemsFound: It does not exist, or is not a folder (E818).
    """
    place = base / folder
    is_absent = not os.path.lexists(place)
    if not os.path.isdir(place) and not (is_absent and Path(folder) == Path(bundles.RESULTS)):
        message = "does not exist" if is_absent else "is not a folder"
        raise fail("E818", "folder", message, value=folder, allowed="a results folder, base_results_dir of its jobs")
    return place


def listing(results: Path) -> tuple[ListedJob, ...]:
    """Return every bundle and adopted job below a folder as recorded, the latest submission last."""
    entries = list(bundles.job_folders(results))
    # Once: resolving each folder takes longer than reading its record.
    place = results.resolve() if entries else results
    every = [listed(Path(each), None if each.is_symlink() else place / each.name) for each in entries]
    # A folder without a record may have been removed since it was found.
    found = [each for each in every if not each.is_dry_run or bundles.is_job(each.folder)]
    return tuple(sorted(found, key=lambda each: (each.record.submitted if each.record else "", each.name)))


def listed(folder: Path, resolved: Path | None = None) -> ListedJob:
    """Return a bundle or an adopted job from its record.

    Args:
        resolved: The folder's absolute path without links, if known.
    """
    try:
        return ListedJob(folder, read(folder, resolved))
    except ProblemsFound as error:
        return ListedJob(folder, problem=error.problems[0])
    except OSError as error:  # that of another user, perhaps: it hides no other job
        return ListedJob(folder, problem=Problem("E711", str(folder / JOB_FILE), f"cannot be read: {error.strerror}"))


def filtered(every: Iterable[ListedJob], wanted: Filter) -> tuple[list[ListedJob], int]:
    """Return the jobs that a filter selects, with their statuses, and how many dry runs it leaves out.

    A cluster is asked only for jobs that meet the other conditions.
    """
    meant = [each for each in every if wanted.selects(each)]
    shown = [each for each in meant if not wanted.hides(each)]
    found = with_statuses(shown)
    return [each for each in found if not wanted.states or each.state in wanted.states], len(meant) - len(shown)


def with_statuses(every: Iterable[ListedJob]) -> Iterator[ListedJob]:
    """Yield bundles with the status of their jobs as they are now.

    A cluster that does not answer is not asked about its other jobs, which could take a minute each. A Problem of one
    job affects no other.
    """
    refused: dict[tuple[str | None, ...], Problem] = {}
    for each in every:
        job = each.record
        if job is None or job.ended:
            yield replace(each, status=job.ended if job else None)
            continue
        backend = backend_registry.load_backend(job.handle.backend)
        place = job.handle.place
        if place in refused:
            yield replace(each, problem=refused[place])
            continue
        try:
            yield replace(each, status=status(job, backend))
        except ProblemsFound as error:
            problem = error.problems[0]
            yield replace(each, problem=problem)
            # The cluster does not answer, or not this user.
            if problem.path in _PLACE_PATHS or problem.code in _PLACE_CODES:
                refused[place] = problem
