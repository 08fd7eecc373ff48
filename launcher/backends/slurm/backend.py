"""cluster=slurm: one batch job, which starts torchrun once on each node or, if it is elastic, an operator."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from launcher.backends.slurm import code, limits, preflight, programs, queue, rendering, requests, run_files, submit
from launcher.backends.slurm import follow as follow_job
from launcher.backends.slurm.options import slurm_options
from launcher.backends.slurm.place import grows_in_place
from launcher.backends.slurm.queue import POLL_S, queue_of
from launcher.backends.slurm.run_files import ELASTIC_FILE, read_request
from launcher.bundle.store import config_of
from launcher.common.problems import Notice, Problem, ProblemsFound, fail
from launcher.model import following
from launcher.model.backend import RANK_0
from launcher.model.earlier_jobs import QueuedJob
from launcher.model.job_spec import Bundle, JobEvent, JobHandle, JobSpec, JobState, JobStatus, LogLine, LogSelection

_KIND = "Slurm job"
_PATTERN = re.compile(r"[%\\\x00-\x1f\x7f]")
"""Characters with a meaning in the path of a batch script's log. Source: sbatch(1), filename pattern."""
_CANCEL_PATIENCE_S = 300.0
"""Time limit for a cancelled job to end: SIGTERM, then SIGKILL after KillWait, 30 s by default."""
_NOT_SUBMITTED = JobStatus(JobState.DELETED, 0, "its launch made no job; recipes launch starts it")


class SlurmBackend:
    """Submits a batch job and follows it by Slurm's commands and the files that it writes."""

    name: ClassVar[str] = "slurm"

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return a Problem if Slurm cannot write the job's log into its bundle, and one if its code is not found."""
        problems, folder = list[Problem](), str(job.base_results_dir)
        if not slurm_options(job).ssh and _PATTERN.search(folder):
            message = "has a character that Slurm replaces in the path of a log"
            allowed = "a path without %, backslash and control characters"
            problems.append(Problem("E444", "base_results_dir", message, value=folder, allowed=allowed))
        return (*problems, *code.problems(job))

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the batch script, and the script that starts a node's processes."""
        return rendering.render(job)

    def validate(self, bundle: Bundle) -> tuple[Problem, ...]:
        """Return why Slurm would refuse a bundle's job, or accept and never start it, by sbatch --test-only."""
        return preflight.problems(requests.request_for((bundle,)))

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return a handle without an id: the job is found by its name, which has the bundle's digest."""
        return _handle(bundle)

    def submit(self, bundle: Bundle) -> JobHandle:
        """Submit the bundle's job; the same bundle again changes nothing."""
        return self.submit_all((QueuedJob(bundle),))[0]

    def submit_all(self, jobs: Sequence[QueuedJob]) -> tuple[JobHandle, ...]:
        """Submit the jobs of bundles, several as tasks of arrays; those that exist are left unchanged."""
        placed = [replace(job.bundle, directory=job.bundle.directory.resolve()) for job in jobs]
        ids = submit.submit_all([job._replace(bundle=bundle) for job, bundle in zip(jobs, placed, strict=True)])
        return tuple(
            replace(_handle(bundle), native_id=id_, kind=_kind(bundle), is_new=is_new)
            for bundle, (id_, is_new) in zip(placed, ids, strict=True)
        )

    def array_notices(self, bundles: Sequence[Bundle]) -> tuple[Notice, ...]:
        """Return why the jobs of a sweep do not share one array."""
        return requests.notices(bundles)

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the job as Slurm has it now, or as its batch script noted its end."""
        job, seen = follow_job.find(handle)
        return job.status(seen) if job.job_id else _NOT_SUBMITTED

    def wait(self, handle: JobHandle, *, timeout_s: float | None = None) -> Iterator[JobStatus]:
        """Yield the job's status now and after each change, up to its final one."""
        return following.changes(self._patient_status(handle), timeout_s, POLL_S)

    def _patient_status(self, handle: JobHandle) -> Callable[[], JobStatus]:
        return follow_job.patiently(partial(self.status, handle))

    def logs(self, handle: JobHandle, selection: LogSelection = RANK_0, *, follow: bool) -> Iterator[LogLine]:
        """Yield what the selected ranks wrote; with `follow`, also the job's events, until it has ended."""
        return follow_job.find(handle)[0].logs(selection, self._patient_status(handle), follow=follow)

    def events(self, handle: JobHandle, *, follow: bool) -> Iterator[JobEvent]:
        """Yield the job's events, oldest first; with `follow`, until it has ended."""
        return follow_job.find(handle)[0].events(self._patient_status(handle), follow=follow)

    def scale(self, handle: JobHandle, num_nodes: int, min_nodes: int | None = None) -> None:
        """Ask the operator of an elastic job for another size; any other job keeps its size."""
        follow_job.find(handle)[0].scale(num_nodes, min_nodes, partial(self.status, handle))

    def cancel(self, handle: JobHandle) -> None:
        """Cancel the job and return when none of its processes runs; one that has ended is left alone.

        Raises:
            ProblemsFound: Slurm refuses (E447), or the job does not end (E449).
        """
        jobs = queue_of(submit.place_at(handle.bundle_dir))
        jobs.forget()
        job, seen = follow_job.find(handle)
        if seen is None or seen.state.is_final:
            return
        if seen.state is JobState.PENDING and queue.array_of(job.job_id) != job.job_id:
            # Of a task that waits with others Slurm keeps nothing, and jobs that wait for it would start.
            job.place.run("scontrol", "hold", job.job_id)
        job.stop(partial(self.status, handle))
        answer = job.place.run("scancel", job.job_id)
        if answer.code:
            raise programs.unanswered("scancel", answer)

        def is_over() -> bool:
            nonlocal seen
            jobs.forget()
            # A job that ends is COMPLETING, which counts as running, until its last process has ended.
            seen = jobs.find(job.job_id)
            return seen is None or seen.state.is_final

        if not following.until(is_over, _CANCEL_PATIENCE_S, POLL_S / 4) and seen:
            message = f"does not end: job {job.job_id} is still {seen.word}"
            raise fail("E449", "job", message, value=handle.job_name)

    def clear(self, handle: JobHandle) -> None:
        """Note that the ended job does not keep its bundle from being launched again; its files stay."""
        job_id, _ = submit.found(handle)
        if job_id:
            run_files.clear(handle.bundle_dir, job_id)


def _handle(bundle: Bundle) -> JobHandle:
    return JobHandle(SlurmBackend.name, bundle.job_name, bundle.directory.resolve(), kind=_KIND)


def _kind(bundle: Bundle) -> str:
    """Return the kind of a submitted job; with how its cluster lets it grow, or the memory that it gets there."""
    try:
        place = submit.place_at(bundle.directory)
        if ELASTIC_FILE in bundle.files:
            is_in_place = grows_in_place(read_request(bundle.files[ELASTIC_FILE]).growth, place)
            return f"{_KIND} that grows {'in place' if is_in_place else 'by a requeue'}"
        memory = limits.share_of_memory(config_of(bundle)["cluster"], place)
        return f"{_KIND} with {memory[0].partition('=')[2]} MiB for each CPU" if memory else _KIND
    except ProblemsFound:  # no answer, but the job is submitted
        return _KIND


BACKEND = SlurmBackend()
