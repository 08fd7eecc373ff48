"""cluster=slurm: one batch job, which starts torchrun once on each node or, if it is elastic, an operator."""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from launcher.backends.slurm import (
    code,
    endings,
    limits,
    preflight,
    programs,
    queue,
    rendering,
    requests,
    run_files,
    submit,
)
from launcher.backends.slurm import follow as following
from launcher.backends.slurm.elastic_follow import ElasticJob
from launcher.backends.slurm.elastic_options import ELASTIC_FILE, is_elastic, read_request
from launcher.backends.slurm.follow import Job
from launcher.backends.slurm.options import slurm_options
from launcher.backends.slurm.queue import POLL_S, Seen, queue_of
from launcher.bundle import store as bundles
from launcher.common.problems import Notice, Problem, ProblemsFound, fail
from launcher.model.backend import RANK_0
from launcher.model.earlier_jobs import QueuedJob
from launcher.model.job_spec import Bundle, JobEvent, JobHandle, JobSpec, JobState, JobStatus, LogSelection

_KIND = "Slurm job"
_GROWING = {True: "Slurm job that grows in place", False: "Slurm job that grows by a requeue"}
_PATTERN = re.compile(r"[%\\\x00-\x1f\x7f]")
"""Characters with a meaning in the path of a batch script's log. Source: sbatch(1), filename pattern."""
_CANCEL_PATIENCE_S = 300.0
"""Time limit for a cancelled job to end: SIGTERM, then SIGKILL after KillWait, 30 s by default."""
_NOT_SUBMITTED = JobStatus(JobState.DELETED, 0, "its launch made no job; recipes launch starts it")
_REMOVED = JobStatus(JobState.CANCELLED, 0, "cancelled before it started")
_FORGOTTEN = JobStatus(JobState.DELETED, 0, "Slurm no longer knows it, and its batch script has not noted an end")


class SlurmBackend:
    """Submits a batch job and follows it by Slurm's commands and the files that it writes."""

    name: ClassVar[str] = "slurm"
    ends_with_launcher: ClassVar[bool] = False

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
        return preflight.problems(requests.of_one(bundle))

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return a handle without an id: the job is found by its name, which has the bundle's digest."""
        return _handle(bundle)

    def submit(self, bundle: Bundle) -> JobHandle:
        """Submit the bundle's job; the same bundle again changes nothing.

        Raises:
            ProblemsFound: Every reason why it was not submitted.
        """
        return self.submit_all((QueuedJob(bundle),))[0]

    def submit_all(self, jobs: Sequence[QueuedJob]) -> tuple[JobHandle, ...]:
        """Submit the jobs of bundles, several as tasks of arrays; those that exist are left unchanged.

        Raises:
            ProblemsFound: Every reason why they were not submitted.
        """
        ids = submit.submit_all(
            [replace(job, bundle=replace(job.bundle, directory=job.bundle.directory.resolve())) for job in jobs]
        )
        found = zip(jobs, ids, strict=True)
        return tuple(
            replace(_handle(job.bundle), native_id=id_, kind=_kind(job.bundle), is_new=is_new)
            for job, (id_, is_new) in found
        )

    def array_notices(self, bundles: Sequence[Bundle]) -> tuple[Notice, ...]:
        """Return why the jobs of a sweep do not share one array."""
        return requests.notices(bundles)

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the job as Slurm has it now, or as its batch script noted its end."""
        job_id, seen = submit.found(handle)
        if not job_id:
            return _NOT_SUBMITTED
        if is_elastic(handle.bundle_dir):
            status = _elastic(handle).status(job_id, seen)
        else:
            status = _of_fixed_size(handle, job_id, seen)
        if seen:
            endings.keep(handle.bundle_dir, job_id, status)
        return endings.explained(status, handle.bundle_dir, job_id)

    def wait(self, handle: JobHandle, *, timeout_s: float | None = None) -> Iterator[JobStatus]:
        """Yield the job's status now and after each change, up to its final one."""
        deadline = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
        read, last = following.patient(partial(self.status, handle)), None
        while True:
            status = read()
            if status != last:
                yield (last := status)
            left_s = deadline - time.monotonic()
            if status.state.is_final or left_s <= 0:
                return
            time.sleep(min(POLL_S, left_s))

    def logs(self, handle: JobHandle, selection: LogSelection = RANK_0, *, follow: bool) -> Iterator[str]:
        """Yield what the selected ranks wrote; with `follow`, also the job's events, until it has ended.

        Raises:
            ProblemsFound: No such rank (E707) or attempt (E706) exists.
        """
        read = following.patient(partial(self.status, handle))
        if is_elastic(handle.bundle_dir):
            job_id, _ = submit.found(handle)
            lines = _elastic(handle).logs(selection, read, follow=follow)
        else:
            job = _planned(handle)
            job.fetch()
            following.refuse_unknown(job, selection)
            job_id, lines = job.job_id, following.logs(job, selection, read, follow=follow)
        return endings.with_reason(lines, read, selection, handle.bundle_dir, job_id)

    def events(self, handle: JobHandle, *, follow: bool) -> Iterator[JobEvent]:
        """Yield the job's events, oldest first; with `follow`, until it has ended."""
        read = following.patient(partial(self.status, handle))
        if is_elastic(handle.bundle_dir):
            yield from _elastic(handle).events(read, follow=follow)
            return
        yield from following.events(_planned(handle), read, follow=follow)

    def scale(self, handle: JobHandle, num_nodes: int, min_nodes: int | None = None) -> None:
        """Ask the operator of an elastic job for another size; any other job keeps its size.

        Raises:
            ProblemsFound: The job does not run (E412), or has no such size (E413).
        """
        if is_elastic(handle.bundle_dir):
            _elastic(handle).scale(num_nodes, min_nodes, partial(self.status, handle))
            return
        seen = self.status(handle)
        if seen.state.is_final:
            raise fail("E412", "job", f"is not running: {seen.message or seen.state.value}", value=handle.job_name)
        allowed = str(_planned(handle).nodes)
        raise fail("E413", "nodes", "the size of this job is fixed", value=num_nodes, allowed=allowed)

    def cancel(self, handle: JobHandle) -> None:
        """Cancel the job and return when none of its processes runs; one that has ended is left alone.

        Raises:
            ProblemsFound: Slurm refuses (E447), or the job does not end (E449).
        """
        place = submit.place_at(handle.bundle_dir)
        jobs = queue_of(place)
        jobs.forget()
        job_id, seen = submit.found(handle)
        if seen is None or seen.state.is_final:
            return
        if seen.state is JobState.PENDING and queue.array_of(job_id) != job_id:
            # Of a task that waits with others Slurm keeps nothing, and jobs that wait for it would start.
            place.run("scontrol", "hold", job_id)
        if is_elastic(handle.bundle_dir):
            _elastic(handle).stop(job_id, partial(self.status, handle))
        answer = place.run("scancel", job_id)
        if answer.code:
            raise programs.unanswered("scancel", answer)
        deadline = time.monotonic() + _CANCEL_PATIENCE_S
        while True:
            jobs.forget()
            # A job that ends is COMPLETING, which counts as running, until its last process has ended.
            if (now := jobs.find(job_id)) is None or now.state.is_final:
                return
            if time.monotonic() > deadline:
                message = f"does not end: job {job_id} is still {now.word}"
                raise fail("E449", "job", message, value=handle.job_name)
            time.sleep(POLL_S / 4)

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
        if ELASTIC_FILE not in bundle.files:
            cluster = bundles.config_of(bundle)["cluster"]
            memory = limits.share_of_memory(cluster, submit.place_at(bundle.directory))
            return f"{_KIND} with {memory[0].partition('=')[2]} MiB for each CPU" if memory else _KIND
        request = read_request(bundle.files[ELASTIC_FILE])
        return _GROWING[request.is_grown_in_place(submit.place_at(bundle.directory))]
    except ProblemsFound:  # no answer, but the job is submitted
        return _KIND


def _elastic(handle: JobHandle) -> ElasticJob:
    return ElasticJob(handle.job_name, handle.bundle_dir, submit.place_at(handle.bundle_dir))


def _of_fixed_size(handle: JobHandle, job_id: str, seen: Seen | None) -> JobStatus:
    """Return the status of a job of fixed size, whose files are then here."""
    Job(handle.bundle_dir, job_id, 0, 1, submit.place_at(handle.bundle_dir)).fetch()
    restarts = max(run_files.attempts(handle.bundle_dir, job_id), default=0)
    if seen:
        nodes = seen.nodes if seen.state is JobState.RUNNING else 0
        return JobStatus(seen.state, nodes, endings.reason(handle.bundle_dir, job_id, seen), restarts=restarts)
    noted = endings.as_kept(handle.bundle_dir, job_id, restarts)
    if noted is None:
        noted = _REMOVED if submit.was_removed(handle, job_id) else _FORGOTTEN
    return replace(noted, restarts=restarts)


def _planned(handle: JobHandle) -> Job:
    """Return a job and what its bundle plans.

    Raises:
        ProblemsFound: The bundle is damaged.
    """
    bundle, _ = bundles.read(handle.bundle_dir)
    plan = json.loads(bundle.files["plan.json"])
    job_id, place = submit.found(handle)[0], submit.place_at(handle.bundle_dir)
    return Job(handle.bundle_dir, job_id, plan["initial_nodes"], plan["nproc_per_node"], place)


BACKEND = SlurmBackend()
