"""The files that a job writes below its bundle's run folder.

    run/slurm-<id>.log                                                       the batch script's output
    run/slurm/array.json                                                     the array that the job was last a task of
    run/slurm/<id>/events.jsonl                                              starts and ends of attempts
    run/slurm/<id>/exit_code                                                 of the last attempt
    run/slurm/<id>/end.json                                                  its end, as a command last saw it
    run/slurm/<id>/nodes/<k>.json                                            where an elastic job's agent listens
    run/slurm/<id>/terms/<k>                                                 exists once a node was sent SIGTERM
    run/slurm/<id>/stacks.json                                               the last request for the workers' stacks
    run/slurm/<id>/logs/attempt-<n>/node-<k>/<run>/attempt_<m>/<local rank>/stdout.log

The id of a task of an array is `<array>_<task>`. Attempts count the job's requeues. Source of the last part:
torch.distributed.elastic, DefaultLogsSpecs.reify.
"""

import contextlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.common.names import LOG_DIR, RUN_DIR
from launcher.model.job_spec import JobEvent
from launcher.runtime.durable import write_text

AGENT_FILE = "slurm/agent.sh"
"""In an elastic job's bundle: the script that starts the agent of a node."""
EXIT_CODE = "exit_code"
STDOUT, STDERR = "stdout.log", "stderr.log"
_GROWTH = "size_before_growth"
_CLEARED = "cleared.txt"
_ARRAY = "array.json"
_ATTEMPT = re.compile(r"attempt-([0-9]+)")
_WARNINGS = ("Failed", "Stopped", "TimedOut")


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """The task of an array that is a bundle's job.

    Args:
        array: The array's name in Slurm's queue.
        task: The number of its task.
    """

    array: str
    task: int


def array_task(bundle_dir: Path) -> ArrayTask | None:
    """Return the array that a bundle's job was last submitted in; None if it never was."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        fields = json.loads((bundle_dir / RUN_DIR / "slurm" / _ARRAY).read_text(encoding="utf-8"))
        return ArrayTask(str(fields["array"]), int(fields["task"]))
    return None


def note_array_task(bundle_dir: Path, its: ArrayTask | None) -> None:
    """Note the array that a bundle's job is about to be submitted in, by which it is found; None for none."""
    path = bundle_dir / RUN_DIR / "slurm" / _ARRAY
    if its is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(asdict(its)) + "\n")


def folder(bundle_dir: Path, job_id: str) -> Path:
    """Return the folder of a job."""
    return bundle_dir / RUN_DIR / "slurm" / job_id


def term_file(bundle_dir: Path, job_id: str, index: int) -> Path:
    """Return the file that exists once a node of an elastic job was sent SIGTERM."""
    return folder(bundle_dir, job_id) / "terms" / str(index)


def request_stacks(bundle_dir: Path, job_id: str, stacks: Path) -> None:
    """Ask the processes of an elastic job's nodes to collect the stacks of workers with a file in `stacks`."""
    write_text(_stacks_file(bundle_dir, job_id), json.dumps({"time": time.time(), "folder": str(stacks)}))


def requested_stacks(bundle_dir: Path, job_id: str) -> tuple[float, Path] | None:
    """Return the time of the last request for stacks, and their folder; None if there was none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        fields = json.loads(_stacks_file(bundle_dir, job_id).read_text(encoding="utf-8"))
        return float(fields["time"]), Path(fields["folder"])
    return None


def _stacks_file(bundle_dir: Path, job_id: str) -> Path:
    return folder(bundle_dir, job_id) / "stacks.json"


def address_file(bundle_dir: Path, job_id: str, index: int) -> Path:
    """Return the file that says where the agent of a node listens."""
    return folder(bundle_dir, job_id) / "nodes" / f"{index}.json"


def write_address(bundle_dir: Path, job_id: str, index: int, text: str) -> None:
    """Publish where the agent of a node listens; readers see the whole file or none."""
    file = address_file(bundle_dir, job_id, index)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)


def note_growth(bundle_dir: Path, job_id: str, nodes: int) -> None:
    """Note how many nodes an elastic job had when it returned to the queue to get more."""
    (folder(bundle_dir, job_id) / _GROWTH).write_text(f"{nodes}\n", encoding="ascii")


def size_before_growth(bundle_dir: Path, job_id: str) -> int:
    """Return how many nodes an elastic job had when it last returned to the queue to get more; 0 if it never did."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder(bundle_dir, job_id) / _GROWTH).read_text(encoding="ascii"))
    return 0


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
        return int((folder(bundle_dir, job_id) / EXIT_CODE).read_text(encoding="ascii"))
    return None


def events(bundle_dir: Path, job_id: str) -> Iterator[JobEvent]:
    """Yield the starts and ends of attempts, as the batch script noted them."""
    path = folder(bundle_dir, job_id) / "events.jsonl"
    if path.is_file():
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
