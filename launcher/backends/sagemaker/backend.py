"""SageMaker training jobs: one request, with the recipe beside the data."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from launcher.backends.sagemaker import follow as follow_job
from launcher.backends.sagemaker import request, submit
from launcher.backends.sagemaker.client import Connection, Services, connect
from launcher.backends.sagemaker.follow import POLL_S, TrainingJob
from launcher.bundle import store as bundles
from launcher.bundle.render import config_files
from launcher.common.problems import Problem, fail
from launcher.model import following
from launcher.model.backend import RANK_0
from launcher.model.job_spec import Bundle, JobEvent, JobHandle, JobSpec, JobStatus, LogLine, LogSelection

_PATIENCE_S = 1800.0
"""Time limit for a stopped job to save, upload and terminate: it has 120 s after SIGTERM, then uploads."""


class SageMakerBackend:
    """Renders a request, sends it, and follows the job with `poll_s` seconds between two polls."""

    name: ClassVar[str] = "sm_jobs"

    def __init__(self, poll_s: float = POLL_S):
        self._poll_s = poll_s

    def _services(self, handle: JobHandle) -> Services:
        return connect(handle.context)

    def _job(self, handle: JobHandle) -> TrainingJob:
        """Return a job in SageMaker, with the sizes of its bundle's plan."""
        plan = bundles.read(handle.bundle_dir)[0].plan
        sizes = (plan["initial_nodes"], plan["nproc_per_node"])
        return TrainingJob(self._services(handle), handle.native_id, *sizes, handle.uid or "")

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return what the API would refuse about the request, by its own names."""
        return submit.request_problems(planned_request(job))

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the request, and the start file for images that do not start the program themselves."""
        return request.render(job, configs)

    def validate(self, bundle: Bundle) -> tuple[Problem, ...]:
        """Return why SageMaker would refuse a bundle, as far as it reports that without creating a job."""
        return submit.validate(connection_of(bundle), bundle)

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return a handle without an ARN: the job is found by the name in the bundle."""
        return self._handle(bundle, connection_of(bundle).region)

    def submit(self, bundle: Bundle) -> JobHandle:
        """Upload the recipe and start the job; the same bundle again changes nothing.

        Raises:
            ProblemsFound: Every reason why it was not submitted; nothing remains of it.
        """
        connection = connection_of(bundle)
        arn, is_new = submit.submit(connection, bundle)
        return replace(self._handle(bundle, connection.region), uid=arn, is_new=is_new)

    def _handle(self, bundle: Bundle, region: str) -> JobHandle:
        name = bundles.json_of(bundle, request.REQUEST)["TrainingJobName"]
        return JobHandle(self.name, bundle.job_name, bundle.directory.resolve(), name, context=region)

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the job's current state in SageMaker."""
        return self._job(handle).status()

    def wait(self, handle: JobHandle, *, timeout_s: float | None = None) -> Iterator[JobStatus]:
        """Yield the job's status now and after each change, up to its final one."""
        return following.changes(self._job(handle).status, timeout_s, self._poll_s)

    def logs(self, handle: JobHandle, selection: LogSelection = RANK_0, *, follow: bool) -> Iterator[LogLine]:
        """Yield the output of the selected ranks' hosts; with `follow`, also the job's events, until it has ended.

        Raises:
            ProblemsFound: No such rank or attempt exists, or only the error stream is requested.
        """
        job = self._job(handle)
        job.refuse_unknown(selection)
        return follow_job.logs(job, selection, self._poll_s, follow=follow)

    def events(self, handle: JobHandle, *, follow: bool) -> Iterator[JobEvent]:
        """Yield each change of the job's secondary status, oldest first; with `follow`, until it has ended."""
        return follow_job.events(self._job(handle), self._poll_s, follow=follow)

    def scale(self, handle: JobHandle, num_nodes: int, min_nodes: int | None = None) -> None:
        """Refuse: a training job keeps the instances that it was started with.

        Raises:
            ProblemsFound: The job does not run (E412), or has one size only (E413).
        """
        job = self._job(handle)
        following.refuse_scaling(job.status(), handle.native_id, num_nodes, job.nodes)

    def cancel(self, handle: JobHandle) -> None:
        """Stop the job and return when it has ended; one that has ended is left alone.

        Raises:
            ProblemsFound: SageMaker refuses, or the job does not end.
        """
        job = self._job(handle)
        if job.has_ended():
            return
        job.stop()
        if not following.until(job.has_ended, _PATIENCE_S, self._poll_s):
            raise fail("E397", "job", "is stopping, but has not ended yet", value=handle.native_id)

    def clear(self, handle: JobHandle) -> None:
        """Refuse (E716): SageMaker keeps every training job and its name."""
        message = "a training job's name can be used only once, and this job has ended"
        remedy = "render the recipe again; the new job gets a new name"
        raise fail("E716", "job", message, value=handle.native_id, remedy=remedy)


def planned_request(job: JobSpec) -> dict[str, Any]:
    """Return the request of a planned job."""
    made: dict[str, Any] = json.loads(request.render(job, config_files(job))[request.REQUEST])
    return made


def connection_of(bundle: Bundle) -> Connection:
    """Return the services in the region that a bundle's configuration names."""
    return connect(bundles.config_of(bundle)["cluster"]["sm_jobs_config"].get("region"))


BACKEND = SageMakerBackend()
