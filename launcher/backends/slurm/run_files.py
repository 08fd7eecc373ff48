"""The files of a job in its bundle that the launcher, the job and the commands that follow it share.

    slurm/elastic.json                                                       what the operator needs beside the plan
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.common.lines import LineReader
from launcher.common.names import (
    CHECKPOINTS_FILE,
    EVENTS_FILE,
    LOG_DIR,
    METRICS_FILE,
    RUN_DIR,
    STACKS_DIR,
    STARTS_FILE,
    TAGS_FILE,
    TIMELINE,
)
from launcher.model.job_spec import JobEvent
from launcher.operator.snapshot import STATE_FILE, Attempt
from launcher.operator.worker_logs import STDERR, STDOUT
from launcher.runtime.durable import write_text

AGENT_FILE = "slurm/agent.sh"
"""In an elastic job's bundle: the script that starts the agent of a node."""
ELASTIC_FILE, RELEASE_FILE, GUARD_FILE = "slurm/elastic.json", "slurm/release.sh", "slurm/guard.sh"
RAY_FILE = "slurm/ray.sh"
"""In a Ray job's bundle: the script that starts a node of its cluster, and on the first node the program."""
EXIT_CODE = "exit_code"
SIZE_BEFORE_GROWTH, _STACKS = "size_before_growth", "stacks.json"
_CLEARED = "cleared.txt"
_ARRAY = "array.json"
_ATTEMPT = re.compile(r"attempt-([0-9]+)")
_WARNINGS = ("Failed", "Stopped", "TimedOut")
_SHOWN = (METRICS_FILE, STARTS_FILE, TAGS_FILE, CHECKPOINTS_FILE, EVENTS_FILE)
_REPORT = tuple(f"{TIMELINE}{end}" for end in (".txt", ".json", ".svg"))


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """What the operator of an elastic job reads of its bundle, beside the plan.

    Args:
        options: Of a request for more nodes.
        srun_words: Words added to the srun of each node.
        python: Of the nodes; None for the one of the batch script.
        requeues: Whether the job returns to the queue when its nodes are taken.
        growth: How it gets more nodes: in_place or requeue; None for what the cluster allows.
    """

    options: tuple[str, ...]
    srun_words: tuple[str, ...]
    python: str | None
    requeues: bool
    growth: str | None

    def text(self) -> str:
        """Return the text of ELASTIC_FILE."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read_request(text: str) -> ElasticRequest:
    """Return the request in the text of ELASTIC_FILE."""
    fields = json.loads(text)
    return ElasticRequest(**{**fields, **{name: tuple(fields[name]) for name in ("options", "srun_words")}})


def has_ray(bundle_dir: Path) -> bool:
    """Return whether a bundle's job has a Ray cluster, whose only rank is the program."""
    return (bundle_dir / RAY_FILE).exists()


def is_elastic(bundle_dir: Path) -> bool:
    """Return whether a bundle's job is elastic."""
    return (bundle_dir / ELASTIC_FILE).exists()


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """The task of an array, by the array's name in Slurm's queue, that is a bundle's job."""

    array: str
    task: int


def jobs_folder(bundle_dir: Path) -> Path:
    """Return the folder of what concerns every job that the bundle was submitted as, which has a folder for each."""
    return bundle_dir / RUN_DIR / "slurm"


def array_task(bundle_dir: Path) -> ArrayTask | None:
    """Return the array that a bundle's job was last submitted in; None if it never was."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        fields = json.loads((jobs_folder(bundle_dir) / _ARRAY).read_text(encoding="utf-8"))
        return ArrayTask(str(fields["array"]), int(fields["task"]))
    return None


def note_array_task(bundle_dir: Path, its: ArrayTask | None) -> None:
    """Note the array that a bundle's job is about to be submitted in, by which it is found; None for none."""
    path = jobs_folder(bundle_dir) / _ARRAY
    if its is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, json.dumps(asdict(its)) + "\n")


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The files of one of the jobs that a bundle was submitted as."""

    bundle_dir: Path
    job_id: str

    @property
    def folder(self) -> Path:
        """The folder of the job; without an id, one that has none of these files."""
        return jobs_folder(self.bundle_dir) / self.job_id

    def term(self, index: int) -> Path:
        """Return the file that exists once a node of an elastic job was sent SIGTERM."""
        return self.folder / "terms" / str(index)

    def address(self, index: int) -> Path:
        """Return the file that says where the agent of a node listens."""
        return self.folder / "nodes" / f"{index}.json"

    def request_stacks(self, stacks: Path) -> None:
        """Ask the processes of an elastic job's nodes to collect the stacks of workers with a file in `stacks`."""
        write_text(self.folder / _STACKS, json.dumps({"time": time.time(), "folder": str(stacks)}))

    def requested_stacks(self) -> tuple[float, Path] | None:
        """Return the time of the last request for stacks, and their folder; None if there was none."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            fields = json.loads((self.folder / _STACKS).read_text(encoding="utf-8"))
            return float(fields["time"]), Path(fields["folder"])
        return None

    def note_growth(self, nodes: int) -> None:
        """Note how many nodes an elastic job had when it returned to the queue to get more."""
        (self.folder / SIZE_BEFORE_GROWTH).write_text(f"{nodes}\n", encoding="ascii")

    def number(self, name: str) -> int | None:
        """Return the number in SIZE_BEFORE_GROWTH, or in EXIT_CODE, which the batch script writes, if it exists."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / name).read_text(encoding="ascii"))
        return None

    def attempts(self) -> list[int]:
        """Return the numbers of the attempts that have started, ascending."""
        logs = self.folder / LOG_DIR
        found = (_ATTEMPT.fullmatch(path.name) for path in (logs.iterdir() if logs.is_dir() else ()))
        return sorted(int(each[1]) for each in found if each)

    def rank_log(self, attempt: int, node: int, local_rank: int, name: str) -> Path | None:
        """Return the log of a rank, STDOUT or STDERR; None until it exists."""
        logs = self.folder / LOG_DIR / f"attempt-{attempt}" / f"node-{node}"
        found = logs.glob(f"*/attempt_*/{local_rank}/{name}")
        # A step that was restarted within the attempt has a run of its own; the newest one counts.
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    def event_reader(self) -> LineReader:
        """Return a reader of the lines in which the batch script notes starts and ends of attempts."""
        return LineReader(self.folder / "events.jsonl")

    def events(self, reader: LineReader | None = None) -> Iterator[JobEvent]:
        """Yield the starts and ends of attempts; with a reader only those that it has not read yet."""
        for line in (reader or self.event_reader()).new_lines(complete_only=True):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a full disk has cut it off
                fields = json.loads(line)
                kind, is_warning = str(fields["kind"]), fields["kind"] in _WARNINGS
                yield JobEvent(float(fields["time_s"]), kind, str(fields["message"]), is_warning=is_warning)


def cleared(bundle_dir: Path) -> list[str]:
    """Return the ids of ended jobs that no longer keep the bundle from being launched."""
    with contextlib.suppress(OSError):
        return (jobs_folder(bundle_dir) / _CLEARED).read_text(encoding="ascii").split()
    return []


def clear(bundle_dir: Path, job_id: str) -> None:
    """Note that an ended job no longer keeps the bundle from being launched."""
    with (jobs_folder(bundle_dir) / _CLEARED).open("a", encoding="ascii") as file:
        file.write(f"{job_id}\n")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Files of a run folder that are copied from a cluster to follow a job.

    Args:
        places: Files and folders in which they are.
        patterns: Their paths; a * is any part of a path.
    """

    places: tuple[str, ...]
    patterns: tuple[str, ...]


def of_job(job_id: str, ranks: tuple[int, ...] | None, processes: int) -> Wanted:
    """Return the files that show how a job of fixed size is doing, and the logs of some ranks; None for all."""
    own = f"slurm/{job_id}"
    files = (*batch_logs(job_id), *_SHOWN)
    places = ["*"] if ranks is None else [f"node-{rank // processes}/*/{rank % processes}" for rank in ranks]
    logs = [f"{own}/{LOG_DIR}/attempt-*/{place}/{name}" for place in places for name in (STDOUT, STDERR)]
    return Wanted((own, *files), (*files, f"{own}/events.jsonl", f"{own}/{EXIT_CODE}", *logs))


def of_operator(job_id: str, *, has_ended: bool) -> Wanted:
    """Return the files that show how an elastic job is doing; once it has ended, also the report on its sizes."""
    noted = f"slurm/{job_id}/{EXIT_CODE}"
    files = (*batch_logs(job_id), *_SHOWN, STATE_FILE, *((*_REPORT, noted) if has_ended else ()))
    return Wanted((*files, STACKS_DIR), (*files, f"{STACKS_DIR}/*"))


def of_attempts(attempts: Sequence[Attempt], ranks: tuple[int, ...] | None, processes: int, name: str) -> Wanted:
    """Return the events of an elastic job, and logs, STDOUT or STDERR, of some ranks, None for all, in attempts."""
    if ranks is None:
        return Wanted((EVENTS_FILE, LOG_DIR), (EVENTS_FILE, f"{LOG_DIR}/node-*/*/attempt_*/*/{name}"))
    nodes, logs = set[str](), list[str]()
    for attempt in attempts:
        for rank in ranks:
            place, local_rank = divmod(rank, processes)
            if place < len(attempt.nodes):
                node = f"{LOG_DIR}/node-{attempt.nodes[place]}"
                nodes.add(node)
                logs.append(f"{node}/*/attempt_{attempt.number}/{local_rank}/{name}")
    return Wanted((EVENTS_FILE, *sorted(nodes)), (EVENTS_FILE, *logs))


def batch_logs(job_id: str) -> tuple[str, str]:
    """Return the files of a batch script's output, and of its errors if they are separate."""
    return f"slurm-{job_id}.log", f"slurm-{job_id}.err"
