"""cluster=slurm: one batch job of fixed size, whose srun step starts torchrun once on each node."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

from launcher.backends.slurm import code, preflight, programs, rendering, run_files, submit
from launcher.backends.slurm import follow as following
from launcher.backends.slurm.follow import Job
from launcher.backends.slurm.host import place_of
from launcher.backends.slurm.options import slurm_options
from launcher.backends.slurm.place import Place
from launcher.backends.slurm.queue import POLL_S, Seen, queue_of
from launcher.bundle import store as bundles
from launcher.common import yaml_io
from launcher.common.problems import Problem, fail
from launcher.model.backend import RANK_0
from launcher.model.job_spec import Bundle, JobEvent, JobHandle, JobSpec, JobState, JobStatus, LogSelection

_KIND = "Slurm job"
_PATTERN = re.compile(r"[%\\\x00-\x1f\x7f]")
"""Characters with a meaning in the path of a batch script's log. Source: sbatch(1), filename pattern."""
_CANCEL_PATIENCE_S = 300.0
"""Time limit for a cancelled job to end: SIGTERM, then SIGKILL after KillWait, 30 s by default."""
_NOT_SUBMITTED = JobStatus(JobState.DELETED, 0, "its launch made no job; recipes launch starts it")
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
        return preflight.problems(
            bundle, submit.name_of(bundle), place_of(yaml_io.load(bundle.files["recipe.yaml"])["cluster"])
        )

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return a handle without an id: the job is found by its name, which has the bundle's digest."""
        return _handle(bundle)

    def submit(self, bundle: Bundle) -> JobHandle:
        """Submit the bundle's job; the same bundle again changes nothing.

        Raises:
            ProblemsFound: Every reason why it was not submitted.
        """
        job_id, is_new = submit.submit(bundle, place_of(yaml_io.load(bundle.files["recipe.yaml"])["cluster"]))
        return replace(_handle(bundle), native_id=job_id, is_new=is_new)

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the job as Slurm has it now, or as its batch script noted its end."""
        job_id, seen = _found(handle)
        if not job_id:
            return _NOT_SUBMITTED
        Job(handle.bundle_dir, job_id, 0, 1, _place(handle)).fetch()
        attempts = run_files.attempts(handle.bundle_dir, job_id)
        restarts = max(attempts, default=0)
        if seen is None:
            return replace(_as_noted(handle, job_id), restarts=restarts)
        nodes = seen.nodes if seen.state is JobState.RUNNING else 0
        return JobStatus(seen.state, nodes, seen.message, restarts=restarts)

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
        job = _planned(handle)
        job.fetch()
        following.refuse_unknown(job, selection)
        return following.logs(job, selection, following.patient(partial(self.status, handle)), follow=follow)

    def events(self, handle: JobHandle, *, follow: bool) -> Iterator[JobEvent]:
        """Yield the starts and ends of the job's attempts, oldest first; with `follow`, until it has ended."""
        read = following.patient(partial(self.status, handle))
        yield from following.events(_planned(handle), read, follow=follow)

    def scale(self, handle: JobHandle, num_nodes: int, min_nodes: int | None = None) -> None:
        """Refuse: a job on Slurm keeps its size.

        Raises:
            ProblemsFound: The job does not run (E412), or has one size only (E413).
        """
        seen = self.status(handle)
        if seen.state.is_final:
            raise fail("E412", "job", f"is not running: {seen.message or seen.state.value}", value=handle.job_name)
        allowed = str(_planned(handle).nodes)
        raise fail("E413", "nodes", "the size of a job on Slurm is fixed", value=num_nodes, allowed=allowed)

    def cancel(self, handle: JobHandle) -> None:
        """Cancel the job and return when none of its processes runs; one that has ended is left alone.

        Raises:
            ProblemsFound: Slurm refuses (E447), or the job does not end (E449).
        """
        place, jobs = _place(handle), queue_of(_place(handle))
        jobs.forget()
        job_id, seen = _found(handle)
        if seen is None or seen.state.is_final:
            return
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
        job_id, _ = _found(handle)
        if job_id:
            run_files.clear(handle.bundle_dir, job_id)


def _handle(bundle: Bundle) -> JobHandle:
    return JobHandle(SlurmBackend.name, bundle.job_name, bundle.directory.resolve(), kind=_KIND)


def _found(handle: JobHandle) -> tuple[str, Seen | None]:
    """Return the id of a bundle's job, "" if it has none, and the job as Slurm has it, None if it does not know it.

    A launch that was killed has recorded no id: its job has the name with the bundle's digest. An id counts only with
    that name, since a cluster may use an id again.
    """
    name, place = _name(handle), _place(handle)
    if not handle.native_id:
        seen = submit.existing(handle.bundle_dir, name, place)
        return (seen.job_id if seen else ""), seen
    seen = queue_of(place).find(handle.native_id)
    return handle.native_id, seen if seen and seen.name == name else None


def _name(handle: JobHandle) -> str:
    return submit.name_in(handle.bundle_dir, _cluster(handle.bundle_dir)["job_name_prefix"])


def _place(handle: JobHandle) -> Place:
    return place_of(_cluster(handle.bundle_dir))


@lru_cache(maxsize=256)
def _cluster(bundle_dir: Path) -> Mapping[str, Any]:
    """Return the `cluster` section of a bundle, which never changes."""
    section: Mapping[str, Any] = yaml_io.load((bundle_dir / "recipe.yaml").read_text(encoding="utf-8"))["cluster"]
    return section


def _as_noted(handle: JobHandle, job_id: str) -> JobStatus:
    """Return how a job ended that Slurm has forgotten."""
    code = run_files.exit_code(handle.bundle_dir, job_id)
    if code is None:
        return _FORGOTTEN
    last = [event.kind for event in run_files.events(handle.bundle_dir, job_id)][-1:]
    if last == ["Stopped"]:
        return JobStatus(JobState.CANCELLED, 0, "cancelled")
    return JobStatus(JobState.FAILED, 0, f"exit code {code}") if code else JobStatus(JobState.SUCCEEDED, 0)


def _planned(handle: JobHandle) -> Job:
    """Return a job and what its bundle plans.

    Raises:
        ProblemsFound: The bundle is damaged.
    """
    bundle, _ = bundles.read(handle.bundle_dir)
    plan = json.loads(bundle.files["plan.json"])
    return Job(handle.bundle_dir, _found(handle)[0], plan["initial_nodes"], plan["nproc_per_node"], _place(handle))


BACKEND = SlurmBackend()
