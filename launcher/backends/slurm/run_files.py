"""The files that a job writes below its bundle's run folder.

    run/slurm-<id>.log                                                       the batch script's output
    run/slurm/<id>/events.jsonl                                              starts and ends of attempts
    run/slurm/<id>/exit_code                                                 of the last attempt
    run/slurm/<id>/logs/attempt-<n>/node-<k>/<run>/attempt_<m>/<local rank>/stdout.log

Attempts count the job's requeues. Source of the last part: torch.distributed.elastic, DefaultLogsSpecs.reify.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from launcher.common.names import LOG_DIR, RUN_DIR
from launcher.model.job_spec import JobEvent

STDOUT, STDERR = "stdout.log", "stderr.log"
_CLEARED = "cleared.txt"
_ATTEMPT = re.compile(r"attempt-([0-9]+)")
_WARNINGS = ("Failed", "Stopped", "TimedOut")


def folder(bundle_dir: Path, job_id: str) -> Path:
    """Return the folder of a job."""
    return bundle_dir / RUN_DIR / "slurm" / job_id


def attempts(bundle_dir: Path, job_id: str) -> list[int]:
    """Return the numbers of the attempts that have started, ascending."""
    logs = folder(bundle_dir, job_id) / LOG_DIR
    found = (_ATTEMPT.fullmatch(path.name) for path in (logs.iterdir() if logs.is_dir() else ()))
    return sorted(int(each[1]) for each in found if each)


def rank_log(bundle_dir: Path, job_id: str, attempt: int, place: tuple[int, int], name: str) -> Path | None:
    """Return the log of a rank; None until it exists.

    Args:
        bundle_dir: The bundle's folder.
        job_id: The job's id.
        attempt: Number of the attempt.
        place: The rank's node and its number there.
        name: STDOUT or STDERR.
    """
    node, local_rank = place
    logs = folder(bundle_dir, job_id) / LOG_DIR / f"attempt-{attempt}" / f"node-{node}"
    # A step that was restarted within the attempt has a run of its own; the newest one counts.
    return max(logs.glob(f"*/attempt_*/{local_rank}/{name}"), key=lambda path: path.stat().st_mtime, default=None)


def exit_code(bundle_dir: Path, job_id: str) -> int | None:
    """Return the exit code that the batch script wrote; None if it wrote none."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder(bundle_dir, job_id) / "exit_code").read_text(encoding="ascii"))
    return None


def events(bundle_dir: Path, job_id: str) -> Iterator[JobEvent]:
    """Yield the starts and ends of attempts, as the batch script noted them."""
    path = folder(bundle_dir, job_id) / "events.jsonl"
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that is being written
                fields = json.loads(line)
                kind = str(fields["kind"])
                yield JobEvent(float(fields["time_s"]), kind, str(fields["message"]), is_warning=kind in _WARNINGS)


def cleared(bundle_dir: Path) -> list[str]:
    """Return the ids of ended jobs that no longer keep the bundle from being launched."""
    with contextlib.suppress(OSError):
        return (bundle_dir / RUN_DIR / "slurm" / _CLEARED).read_text(encoding="ascii").split()
    return []


def clear(bundle_dir: Path, job_id: str) -> None:
    """Note that an ended job no longer keeps the bundle from being launched."""
    with (bundle_dir / RUN_DIR / "slurm" / _CLEARED).open("a", encoding="ascii") as file:
        file.write(f"{job_id}\n")
