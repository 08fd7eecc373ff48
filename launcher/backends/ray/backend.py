"""cluster=ray: jobs of a Ray cluster that runs already."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from launcher.backends.ray import follow as follow_job
from launcher.backends.ray import request, submit
from launcher.backends.ray.client import ADDRESS, Cluster, address_of
from launcher.backends.ray.driver_log import DriverLines, GrowingLog
from launcher.bundle import store as bundles
from launcher.common import console
from launcher.common.problems import Problem, fail
from launcher.model.backend import RANK_0
from launcher.model.following import changes, event_line, followed, patient, refuse_scaling, until
from launcher.model.job_spec import Bundle, JobEvent, JobHandle, JobSpec, JobStatus, LogLine, LogSelection

if TYPE_CHECKING:
    from ray.dashboard.modules.job.pydantic_models import JobDetails

_KIND = "Ray job"
_POLL_S = 2.0
_PATIENCE_S = 300.0
"""How long a cluster that has answered may be silent, as while its head restarts."""
_STOP_PATIENCE_S = 60.0
"""Time limit for a stopped job to end: Ray sends SIGTERM, and SIGKILL after 3 s."""


class _Job:
    """A submitted job, found by the id of its handle, and its bundle's digest."""

    def __init__(self, handle: JobHandle):
        bundle, _ = bundles.read(handle.bundle_dir)
        self.nodes = int(bundle.plan["initial_nodes"])
        self._digest, self.id = bundle.digest, handle.native_id
        self.cluster = Cluster(handle.context or address_of(None))

    def find(self) -> "JobDetails | None":
        """Return what Ray knows of the job; None if it has no job of this bundle."""
        found = self.cluster.find(self.id)
        is_own = found is not None and (found.metadata or {}).get(request.DIGEST) == self._digest
        return found if is_own else None

    def status(self) -> JobStatus:
        """Return the job's status."""
        return follow_job.read_status(self.find(), self.nodes)


class RayBackend:
    """Submits bundles to a dashboard and follows their jobs, with `poll_s` seconds between two looks."""

    name: ClassVar[str] = "ray"

    def __init__(self, poll_s: float = _POLL_S):
        self._poll_s = poll_s

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return why the folder with the job's code cannot be copied, or lacks its script."""
        found = submit.folder_problems(request.of_job(job))
        return (*found, *submit.absent_script(job))

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the request."""
        return {request.FILE: json.dumps(request.of_job(job)._asdict(), indent=2) + "\n"}

    def validate(self, bundle: Bundle) -> tuple[Problem, ...]:
        """Return why a bundle's job would be refused, or would wait for ever. Creates nothing."""
        made = request.read(bundle)
        problems, notices = submit.refusals(Cluster(address_of(made.address)), bundle, made)
        console.show_notice(*notices, stderr=True)
        return problems

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return the job's submission id and the address of its cluster.

        Raises:
            ProblemsFound: The bundle's job that is known is on another cluster (E348).
        """
        handle = self._handle(bundle)
        if known and known.context != handle.context:
            message = f"the job was submitted to {known.context}"
            remedy = f"RAY_ADDRESS={known.context}; to run the recipe on the other cluster, render it again"
            raise fail("E348", ADDRESS, message, value=handle.context, remedy=remedy)
        return handle

    def submit(self, bundle: Bundle) -> JobHandle:
        """Start the bundle's job; the same bundle again changes nothing.

        Raises:
            ProblemsFound: Every reason why it was not submitted.
        """
        handle = self._handle(bundle)
        is_new, notices = submit.submit(Cluster(handle.context or ""), bundle)
        console.show_notice(*notices, stderr=True)
        return replace(handle, uid=bundle.digest, is_new=is_new)

    def _handle(self, bundle: Bundle) -> JobHandle:
        address = address_of(request.read(bundle).address)
        place = (submit.job_id(bundle), _KIND)
        return JobHandle(self.name, bundle.job_name, bundle.directory.resolve(), *place, context=address)

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the job as Ray has it now."""
        return _Job(handle).status()

    def wait(self, handle: JobHandle, *, timeout_s: float | None = None) -> Iterator[JobStatus]:
        """Yield the job's status now and after each change, up to its final one."""
        return changes(patient(_Job(handle).status, _PATIENCE_S, self._poll_s), timeout_s, self._poll_s)

    def logs(self, handle: JobHandle, selection: LogSelection = RANK_0, *, follow: bool) -> Iterator[LogLine]:
        """Yield what the driver, which is rank 0, has printed; with `follow`, until the job has ended, and why.

        Raises:
            ProblemsFound: No such rank, attempt or stream exists.
        """
        follow_job.refuse_unknown(selection)
        job = _Job(handle)
        watch, lines = _Watch(job, self._poll_s, is_followed=follow), DriverLines(selection)
        complete = patient(partial(job.cluster.log, job.id), _PATIENCE_S, self._poll_s)
        log = GrowingLog(job.cluster, job.id, complete, self._poll_s)

        def new(is_last: bool) -> Iterator[LogLine]:
            if watch.found:
                yield from lines.of(log.new(is_last=is_last), watch.found, is_last=is_last)
            if follow:
                yield from map(event_line, watch.new_events())

        def all_lines() -> Iterator[LogLine]:
            with contextlib.closing(log):
                yield from followed(new, watch, partial(time.sleep, self._poll_s))

        return all_lines()

    def events(self, handle: JobHandle, *, follow: bool) -> Iterator[JobEvent]:
        """Yield the job's submission and its end; with `follow`, until it has ended."""
        watch = _Watch(_Job(handle), self._poll_s, is_followed=follow)
        return followed(lambda _is_last: watch.new_events(), watch, partial(time.sleep, self._poll_s))

    def scale(self, handle: JobHandle, num_nodes: int, min_nodes: int | None = None) -> None:
        """Refuse: a job keeps the size that its program was configured for.

        Raises:
            ProblemsFound: The job does not run (E412), or has one size only (E413).
        """
        job = _Job(handle)
        refuse_scaling(job.status(), handle.native_id, num_nodes, job.nodes)

    def cancel(self, handle: JobHandle) -> None:
        """Stop the job and return when it has ended; one that has ended is left alone.

        Raises:
            ProblemsFound: Ray refuses (E825), or the job does not end (E824).
        """
        job = _Job(handle)
        if job.status().state.is_final:
            return
        job.cluster.stop(job.id)
        if not until(lambda: job.status().state.is_final, _STOP_PATIENCE_S, self._poll_s / 4):
            message = "is stopped, but has not ended: Ray stops a driver that waits for resources only once it starts"
            remedy = "Ray ends it as failed after RAY_JOB_START_TIMEOUT_SECONDS, 15 minutes by default"
            raise fail("E824", "job", message, value=handle.native_id, remedy=remedy)

    def clear(self, handle: JobHandle) -> None:
        """Note that the ended job does not keep its bundle from being launched again; Ray keeps it and its log."""
        submit.clear(handle.bundle_dir, handle.native_id)


class _Watch:
    """Looks at a job: a call returns whether it has ended, or is not followed further."""

    def __init__(self, job: _Job, poll_s: float, *, is_followed: bool):
        self._find = patient(job.find, _PATIENCE_S, poll_s)
        self._is_followed, self._shown = is_followed, 0
        self.found: JobDetails | None = None

    def __call__(self) -> bool:
        self.found = self._find()
        return not self._is_followed or self.found is None or self.found.status.is_terminal()

    def new_events(self) -> Iterator[JobEvent]:
        """Yield the events since the last call, as far as the last look knows them."""
        events = tuple(follow_job.events(self.found))
        yield from events[self._shown :]
        self._shown = max(self._shown, len(events))


BACKEND = RayBackend()
