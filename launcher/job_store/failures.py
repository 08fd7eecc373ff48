"""Why a submitted job failed. Found once: by the job's operator, or by the first command that asks.

What an operator found is in the job's run folder. For other jobs the logs are read here, within the bounds of an
excerpt (`LogSelection.is_excerpt`), and the failure is kept in the job's record, since clusters delete logs.
"""

from launcher.common.names import RUN_DIR
from launcher.common.problems import ProblemsFound
from launcher.job_store import registry
from launcher.job_store.registry import JobRecord
from launcher.model.backend import Backend
from launcher.model.backend_registry import described
from launcher.model.failure import Failure
from launcher.model.job_spec import JobState, JobStatus, LogLine, LogSelection

_EXCERPT = LogSelection(None, is_stderr=None, is_excerpt=True)


def of(job: JobRecord, backend: Backend, status: JobStatus) -> Failure | None:
    """Return why a job failed; None if it has not, or if nothing shows why.

    Raises nothing: without its logs, the reason that its cluster gives is searched.
    """
    if status.state is not JobState.FAILED:
        return None
    if found := _of_operator(job) or job.failure:
        return found
    from launcher import causes  # its table, too: most jobs have not failed

    records = [LogLine("event", None, status.message)]
    try:
        records += [
            LogLine("event", None, f"{event.kind}: {event.message}", host=event.about or None, time_s=event.time_s)
            for event in backend.events(job.handle, follow=False)
            if event.is_warning
        ]
        found = causes.find(backend.logs(job.handle, _EXCERPT, follow=False), records)
    except (ProblemsFound, OSError):  # its logs are gone, or its cluster does not answer now
        return causes.find((), records)
    if found and not described(backend.name).runs_here:
        registry.note_failure(job, found)
    return found


def _of_operator(job: JobRecord) -> Failure | None:
    from launcher.operator.snapshot import read_snapshot  # most jobs have not failed

    try:
        snapshot = read_snapshot(job.handle.bundle_dir / RUN_DIR)
    except ProblemsFound:  # it is damaged, which other commands report
        return None
    return snapshot.failure if snapshot else None
