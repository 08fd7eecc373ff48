"""A submitted job as a value, which any process opens from its record."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.api import arguments, log_stream
from launcher.api import session as sessions
from launcher.api.job_errors import JobFailed, JobTimeout
from launcher.api.observing import Observer
from launcher.api.session import Session
from launcher.api.tables import Table
from launcher.bundle import store
from launcher.causes import Failure
from launcher.common.names import METRICS_FILE, RUN_DIR
from launcher.common.problems import ProblemsFound, fail, raise_any
from launcher.job_store import failures, registry
from launcher.job_store.registry import JobRecord
from launcher.model import backend_registry
from launcher.model.backend import Backend
from launcher.model.capabilities import Pods
from launcher.model.job_spec import JobEvent, JobState, JobStatus, LogLine, LogSelection
from launcher.operator import worker_logs

if TYPE_CHECKING:
    from launcher.api.reproducing import Comparison
    from launcher.api.values import Overrides
    from launcher.model.cluster_view import JobPod
    from launcher.timeline import Timeline

__all__ = ["Job", "JobFailed", "JobTimeout", "Report", "attach", "jobs", "launched"]

_NOT_ENDED = "E712"
"""The Problem of a job that has not ended in time."""
_SILENT = Observer()


class Report(NamedTuple):
    """A job as `recipes status` shows it: its record, its status now, the name that its user gave it, its pods.

    Args:
        troubled: Pods that have a reason; None where jobs have no pods, and for one that has ended.
        failure: Why it failed, if it has and that is known.
    """

    record: JobRecord
    status: JobStatus
    given_name: str | None
    troubled: "tuple[JobPod, ...] | None"
    failure: Failure | None

    @property
    def as_json(self) -> dict[str, Any]:
        """Record, status and failure as plain data, as `recipes status --json` prints them."""
        failure = {"failure": asdict(self.failure)} if self.failure else {}
        return registry.as_json(self.record, self.status) | failure


@arguments.checked()
@dataclass(frozen=True)
class Job:
    """A job that was submitted, by this process or another.

    Args:
        folder: Of its bundle, or of the record of a job that was adopted.
        title: What its user calls it, for messages.
        opened: Its record when it was opened, which has its backend.
        session: Whose variables it has when it is compiled or launched again; None for those of the process, as in a
            copy that another process receives.
    """

    folder: Path
    title: str = field(default="", compare=False)
    opened: JobRecord | None = field(default=None, compare=False, repr=False)
    session: Session | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "session": None}  # its locks and files stay here

    @property
    def record(self) -> JobRecord:
        """Its record as it is on disk now.

        Raises:
            ProblemsFound: It was never launched (E705), or its record is damaged (E711).
        """
        return registry.submitted(self.folder)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.record.handle.job_name

    @cached_property
    def backend(self) -> Backend:
        """What follows it."""
        return backend_registry.load_backend((self.opened or self.record).handle.backend)

    @property
    def status(self) -> JobStatus:
        """Its status now; its cluster is asked, unless it is known to have ended.

        Raises:
            ProblemsFound: The cluster does not answer.
        """
        return registry.status(self.record, self.backend)

    @property
    def failure(self) -> Failure | None:
        """Why it failed: the first error of all ranks, and its cause; None unless it has, and if nothing shows why.

        Raises:
            ProblemsFound: The cluster does not answer.
        """
        return self.why(self.status)

    def why(self, status: JobStatus) -> Failure | None:
        """Return why it failed if its status is this one, as `failure` does."""
        return failures.of(self.record, self.backend, status)

    def report(self) -> Report:
        """Return what is known of it now, for the exceptions of `status`."""
        record = self.record
        status = registry.status(record, self.backend)
        access = None if status.state.is_final else self._access  # an end has the reasons of its pods
        troubled = tuple(pod for pod in access.pods(record.handle) if pod.reason) if access else None
        failure = failures.of(record, self.backend, status)
        return Report(record, status, store.given_name(self.folder), troubled, failure)

    def as_json(self, status: JobStatus) -> dict[str, Any]:
        """Return its record, a status and why it failed as plain data, as `recipes status --json` prints them."""
        return Report(self.record, status, None, None, self.why(status)).as_json

    def changes(self, timeout: float | None = None, observer: Observer = _SILENT) -> Iterator[JobStatus]:
        """Yield its status now and after each change, up to its final one.

        Messages about a remote job are sent meanwhile, if its recipe sets `notify`.

        Args:
            timeout: Seconds; None never gives up.
            observer: Gets why a message was not sent, or its MLflow run not closed; by default, these are logged.

        Raises:
            JobTimeout: It has not ended in that time.
            ProblemsFound: The cluster does not answer.
        """
        from launcher.api import launching
        from launcher.job_store import notifications

        record, seen = self.record, None
        try:
            for seen in notifications.changes(record, self.backend, timeout_s=timeout, say=observer.warned):
                yield seen
        except ProblemsFound as error:
            if [problem.code for problem in error.problems] == [_NOT_ENDED]:
                raise JobTimeout(error.problems) from None
            raise
        if seen:
            launching.conclude(record, seen, observer)

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Return how it ended, once it has; the arguments and exceptions are those of `changes`."""
        *_, last = self.changes(timeout)
        return last

    def result(self, timeout: float | None = None) -> JobStatus:
        """Return the final status of a job that succeeded, once it has.

        Raises:
            JobFailed: It ended in another way.
            JobTimeout: It has not ended in time.
        """
        status = self.wait(timeout)
        if status.state is not JobState.SUCCEEDED:
            raise JobFailed(self.name, status, self.why(status))
        return status

    def logs(
        self,
        ranks: int | Iterable[int] | None = (0,),
        *,
        attempt: int | None = None,
        stderr: bool | None = False,
        follow: bool = False,
        grep: str | None = None,
        launch: int | None = None,
    ) -> Iterator[LogLine]:
        """Yield the output of its workers, attempt after attempt.

        With `ranks=None, stderr=None` that is one stream of all ranks, attempts and outputs: by time where the log
        has times, else by attempt and rank; with `follow`, as the lines arrive.

        Args:
            ranks: Whose, one or several; None for all.
            attempt: Number of one start of the workers; None for all, with the events of the job.
            stderr: Standard error instead of standard output; None for both, where they are separate.
            follow: Whether to continue until the job has ended.
            grep: A regular expression of RE2 that lines of workers contain; other lines are left out.
            launch: Number of one launch, from 0, if its logs are on this machine; None for the last.

        Raises:
            ProblemsFound: It has no such rank (E707) or attempt (E706), its cluster does not answer, or `grep` is not
                a regular expression (E728).
        """
        selected = log_stream.selected(ranks)
        contains = None if grep is None else log_stream.searched(grep)
        is_one_stream = ranks is None and stderr is None
        selection = LogSelection(selected, attempt, stderr, has_headings=not (contains or is_one_stream))
        store.learn_secrets(self.folder)
        if launch is not None:
            lines = worker_logs.read_launch(self.folder, launch, selection)
        else:
            lines = self.backend.logs(self.record.handle, selection, follow=follow)
        if contains:
            lines = filter(contains, lines)
        return log_stream.by_time(lines) if is_one_stream and not follow else lines

    def events(self, *, follow: bool = False) -> Iterator[JobEvent]:
        """Yield its events, oldest first; with `follow`, until it has ended."""
        return self.backend.events(self.record.handle, follow=follow)

    def scale(self, nodes: int, min_nodes: int | None = None) -> None:
        """Request another size of its plan.

        Raises:
            ProblemsFound: It does not run (E412), or its plan has no such size (E413).
        """
        self.backend.scale(self.record.handle, arguments.whole(nodes), arguments.whole(min_nodes))

    def cancel(self, observer: Observer = _SILENT) -> JobStatus:
        """End it and everything it started; return how it ended. A finished job is left unchanged.

        Args:
            observer: Gets that it is being cancelled, and why its MLflow run was not closed.

        Raises:
            ProblemsFound: The cluster refuses, or the job does not end.
        """
        from launcher.api import launching
        from launcher.model.context import current_user  # start-up time

        with registry.launching(self.folder) if not self.record.is_submitted else contextlib.nullcontext():
            record = self.record
        seen = registry.status(record, self.backend)
        if seen.state.is_final and (record.is_submitted or seen.state is not JobState.DELETED):
            return seen
        observer.cancelling(record)
        ended = registry.cancel(record, self.backend, current_user())
        launching.conclude(record, ended, observer)
        return ended

    @property
    def _access(self) -> Pods | None:
        return backend_registry.described(self.backend.name).pods()

    def _with_pods(self) -> Pods:
        if access := self._access:
            return access
        value = f"cluster={backend_registry.described(self.backend.name).choice}"
        allowed = backend_registry.choices(lambda each: each.pods() is not None)
        remedy = "use recipes status, logs or events, which work on every cluster"
        raise fail(
            "E380", self.title or self.name, "its job has no pods", value=value, allowed=allowed, remedy=remedy
        )

    def pods(self) -> "tuple[JobPod, ...]":
        """Return its current pods in the order of their ranks.

        Raises:
            ProblemsFound: Its cluster has no pods (E380), or does not answer.
        """
        return self._with_pods().pods(self.record.handle)

    def run_in_pod(self, rank: int, command: Sequence[str] = ()) -> int:
        """Run a command, or a shell, in the pod of a rank, with this process's streams; return its exit code.

        Raises:
            ProblemsFound: No such pod runs, or the cluster refuses.
        """
        return self._with_pods().run_in_pod(self.record.handle, rank, command)

    def forward_ports(self, rank: int, ports: Sequence[tuple[int, int]]) -> None:
        """Forward ports of 127.0.0.1 to the pod of a rank, until interrupted.

        Args:
            ports: Pairs of a local port, 0 for any free one, and the pod's.

        Raises:
            ProblemsFound: A local port is taken, no such pod runs, or the cluster refuses.
        """
        self._with_pods().forward_ports(self.record.handle, rank, ports)

    def operator_log(self) -> Iterator[str]:
        """Return the lines of the training operator's own log that mention the job.

        Raises:
            ProblemsFound: The job has no pods (E380), or the log may not be read.
        """
        return self._with_pods().operator_log(self.record.handle)

    def metrics(self) -> Table:
        """Return what rank 0 recorded of each step, oldest first; a step that was repeated is listed again.

        Each row has `step`, `time` in seconds since the epoch, and `attempt`. Rows of a step also have `loss`,
        `learning_rate`, `samples_per_s` and its size; further metrics of the program are columns by their names.

        Raises:
            ProblemsFound: This machine has no records of the job (E705).
        """
        from launcher.api import metrics

        return Table(metrics.rows(self._run_dir() / METRICS_FILE))

    @property
    def results(self) -> Table:
        """Where its adapters, models, checkpoints and further output are, as rows of `kind`, `path` and `exists`.

        `exists` is None where this machine does not see the place: in S3, or in a container. What an image's own
        program decides is not listed.

        Raises:
            ProblemsFound: The job was adopted, so that it has no bundle, or the bundle was changed.
        """
        from launcher.job_store import results

        return Table(each._asdict() for each in results.results(store.read(self.folder)[0]))

    def timeline(self, launch: int | None = None) -> "Timeline":
        """Return when a launch (its number, from 0; None: the last) changed its size, why, its costs and its goodput.

        Raises:
            ProblemsFound: No records of the job (E705) or launch (E706) are here, or they lack the job's end (E711).
        """
        from launcher.api import timelines

        return timelines.read(self._run_dir(), launch=launch)

    @property
    def goodput(self) -> float:
        """The share of its time in which it made progress that is kept, 0 to 1; as `timeline` it needs records."""
        return self.timeline().goodput

    def _run_dir(self) -> Path:
        run_dir = self.folder / RUN_DIR
        if not run_dir.is_dir():
            remedy = "its MLflow run has the metrics"
            raise fail("E705", str(self.folder), "its steps are not recorded on this machine", remedy=remedy)
        return run_dir

    def diff(self, other: "Job | str | os.PathLike[str]") -> "Comparison":
        """Return how another job differs: configuration, code, data, image, packages and metrics.

        Args:
            other: The job, or what `attach` takes.

        Raises:
            ProblemsFound: No such job exists (E703), one of them was adopted and has no bundle (E713), or its files
                are damaged.
        """
        from launcher.api import reproducing

        other = other if isinstance(other, Job) else attach(other, session=self.session)
        return reproducing.of_jobs(self.folder, other.folder)

    def changed(self) -> "Comparison":
        """Return what would differ if it were launched again now, its code, data and packages included.

        Raises:
            ProblemsFound: It no longer compiles, or an override held a secret (E732).
        """
        from launcher.api import reproducing

        return reproducing.since(self.folder, self.session)

    def rerun(
        self,
        overrides: "Overrides" = (),
        *,
        allow_changes: bool = False,
        name: str | None = None,
        detach: bool = True,
    ) -> "Job":
        """Compile it again in a bundle of its own, launch that and return the new job.

        Args:
            overrides: Further ones, as `compile` takes them.
            allow_changes: Whether it is launched although `changed` finds something.
            name: A name for the new job.
            detach: Whether a job on this machine outlives this process.

        Raises:
            ProblemsFound: Something has changed (E731), an override held a secret (E732), its keys say that
                it is only written (E726), or as `Plan.submit`.
        """
        from launcher.api import reproducing, running

        found = reproducing.rerun(self.folder, overrides, self.session)
        running.refuse_only_written(found.job)
        folder = found.write(allow_changes=allow_changes, name=name).directory
        return launched(folder, detach=detach, session=self.session)

    def relaunch(self, *, again: bool = False, detach: bool = True) -> "Job":
        """Launch its bundle once more; it resumes from its last checkpoint.

        Args:
            again: Also if it has succeeded; without it, that is refused (E715).
        """
        return launched(self.folder, again=again, detach=detach, session=self.session)


def attach(job: str | os.PathLike[str], *, session: Session | None = None) -> Job:
    """Return a job by its name, its given name or its folder; relative ones start from the session's folder.

    Raises:
        ProblemsFound: No such job exists (E703), or it was never launched (E705).
    """
    name = arguments.text_of(job, "E703", "job")
    folder = store.locate_job(name, sessions.given(session).place(""))
    return Job(folder.absolute(), name, registry.submitted(folder), session)


def jobs(
    folder: str | os.PathLike[str] = store.RESULTS,
    *,
    state: str | Iterable[str] | None = (),
    cluster: str | None = None,
    recipe: str | None = None,
    newer_than: str | None = None,
    older_than: str | None = None,
    session: Session | None = None,
) -> tuple[Job, ...]:
    """Return the submitted jobs of a results folder that meet every condition, the latest submission last.

    Clusters are asked only if `state` is given.

    Args:
        state: One or several states, as `recipes jobs --state`; empty for all.
        cluster: A choice of `cluster`.
        recipe: Part of the recipe's path.
        newer_than: Age: 30m, 12h, 7d, 2w.
        older_than: The same.
        session: Its folder is where a relative results folder starts.

    Raises:
        ProblemsFound: A condition that cannot be met, or a folder that does not exist (E818).
    """
    from launcher.job_store import listing

    given: Any = () if state is None else state
    states = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    name, base = arguments.text_of(folder, "E818", "folder"), sessions.given(session).place("")
    wanted = listing.Filter(states, cluster, recipe, older_than, newer_than)
    raise_any(wanted.problems())
    every = listing.listing(listing.place_of(name, base))
    if states:
        found, _ = listing.filtered(every, wanted)
    else:
        found = [each for each in every if wanted.selects(each) and not wanted.hides(each)]
    return tuple(Job(each.folder.absolute(), each.name, each.record, session) for each in found if each.record)


@arguments.checked()
def launched(
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    again: bool = False,
    detach: bool = True,
    session: Session | None = None,
) -> Job:
    """Launch a bundle on disk and return its job, as `recipes launch` does.

    Args:
        name: A name for the job, which commands accept.
        again: Whether a job that has succeeded is launched once more.
        detach: Whether a job on this machine outlives this process; elsewhere jobs always do.
        session: Whose variables the job has; None for the process's.

    Raises:
        ProblemsFound: No such bundle exists, or the disk, the tracking store or the cluster refuses.
    """
    from launcher.api import running

    session = sessions.given(session)
    with session.active(), running.opened([os.fspath(folder)], name) as ((bundle,), backend_name):
        if backend_registry.described(backend_name).runs_here:
            from launcher.api import detached

            detached.start(bundle.directory, is_again=again, outlives=detach)
        else:
            running.launch(bundle, backend_name, _SILENT, is_again=again)
    return Job(bundle.directory.absolute(), session=session)
