"""How a job ended: what Slurm said of it as long as it knew it, what its batch script noted, and printed last."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.backends.slurm import run_files, states
from launcher.backends.slurm.queue import Seen
from launcher.common.names import RUN_DIR
from launcher.model.job_spec import JobEvent, JobState, JobStatus, LogSelection
from launcher.operator.worker_logs import tail
from launcher.runtime.durable import write_text

_END = "end.json"
"""In the folder of a job: its end as Slurm had it, which a command saw."""
_UNKNOWN = (JobState.FAILED, JobState.DELETED)
"""States of a job that has failed, or whose end nobody saw."""
_KILLED = "ended by Slurm, which killed its batch script before that had noted why"


def reason(bundle_dir: Path, job_id: str, seen: Seen) -> str:
    """Return why a job is pending, or why it ended, as Slurm has it and its batch script noted it."""
    last = _last_event(bundle_dir, job_id) if seen.word == "FAILED" else None
    return last.message if last and last.kind == "TimedOut" else seen.message


def keep(bundle_dir: Path, job_id: str, status: JobStatus) -> None:
    """Keep the end of a job, which Slurm forgets; its batch script may have been killed before its note.

    A job that was requeued after its end has ended no more.
    """
    starts = _starts(bundle_dir, job_id, status.restarts)
    end = {"state": status.state.value, "message": status.message, "starts": starts}
    kept, folder = _kept(bundle_dir, job_id), run_files.folder(bundle_dir, job_id)
    with contextlib.suppress(OSError):  # the answer is the same without it
        if status.state.is_final and kept != end:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / _END, json.dumps(end) + "\n")
        elif kept and not status.state.is_final:
            (folder / _END).unlink(missing_ok=True)


def _kept(bundle_dir: Path, job_id: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((run_files.folder(bundle_dir, job_id) / _END).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None


def as_kept(bundle_dir: Path, job_id: str, restarts: int) -> JobStatus | None:
    """Return how a job ended that Slurm has forgotten; None if nothing was kept or noted.

    Args:
        bundle_dir: The bundle's folder.
        job_id: The job's id.
        restarts: How often its workers were started again, by its files.
    """
    with contextlib.suppress(KeyError, ValueError, TypeError):
        end, starts = _kept(bundle_dir, job_id), _starts(bundle_dir, job_id, restarts)
        if end and end.get("starts", starts) == starts:
            return JobStatus(JobState(end["state"]), 0, str(end["message"]))
    code = run_files.exit_code(bundle_dir, job_id)
    if code is None:
        return None
    event = _last_event(bundle_dir, job_id)
    last = event.kind if event else ""
    if last == "Stopped":  # one that had returned to the queue was cancelled there
        return JobStatus(JobState.CANCELLED, 0, "cancelled")
    if last == "TimedOut":
        return JobStatus(JobState.FAILED, 0, states.message_of("TIMEOUT", "", (0, 0)))
    if code == states.TERM_CODE and last != "Failed":
        return JobStatus(JobState.FAILED, 0, _KILLED)
    return JobStatus(JobState.FAILED if code else JobState.SUCCEEDED, 0, states.message_of("FAILED", "", (code, 0)))


def _starts(bundle_dir: Path, job_id: str, restarts: int) -> int:
    """Return a number that is greater after each start: a kept end does not count if the job was requeued later."""
    return restarts + sum(event.kind == "Started" for event in run_files.events(bundle_dir, job_id))


def _last_event(bundle_dir: Path, job_id: str) -> JobEvent | None:
    return next(reversed([*run_files.events(bundle_dir, job_id)]), None)


def explained(status: JobStatus, bundle_dir: Path, job_id: str) -> JobStatus:
    """Return the status of a job that failed with the last lines of its batch script, unless it has its own."""
    if status.state not in _UNKNOWN or "\n" in status.message:
        return status
    lines = _last_lines(bundle_dir, job_id)
    return replace(status, message="\n".join((status.message, *lines))) if lines else status


def with_reason(
    lines: Iterator[str], read: Callable[[], JobStatus], selection: LogSelection, bundle_dir: Path, job_id: str
) -> Iterator[str]:
    """Yield lines, and those with which the batch script of a job that failed ended."""
    yield from lines
    if selection.attempt is not None or not job_id:
        return
    status = read()
    if status.state in _UNKNOWN and (last := _last_lines(bundle_dir, job_id)):
        yield f"fault  {status.state.value}: {status.message.partition(chr(10))[0]}; its batch script ended with:"
        yield from (f"fault  {line}" for line in last)


def _last_lines(bundle_dir: Path, job_id: str) -> list[str]:
    """Return the last lines of a batch script's output, and of its errors if they are separate."""
    files = (bundle_dir / RUN_DIR / f"slurm-{job_id}.{end}" for end in ("log", "err")) if job_id else ()
    return [line for file in files for line in tail(file).splitlines()]
