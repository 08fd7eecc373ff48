"""Copies what a job has written on another machine into its bundle's run folder, each time only what is new."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from launcher.backends.slurm.run_files import STDERR, STDOUT
from launcher.backends.slurm.ssh import Connection
from launcher.common.names import (
    CHECKPOINTS_FILE,
    EVENTS_FILE,
    LOG_DIR,
    METRICS_FILE,
    STARTS_FILE,
    TAGS_FILE,
)
from launcher.common.problems import fail
from launcher.common.templating import render_template

_GROWING = (".jsonl", ".log", ".err")
"""Ends of names of files that only grow; others are copied completely each time."""
_MOST_BYTES = 32 * 2**20
"""Bytes of one answer; more answers follow until nothing is missing."""
_LOCK = ".mirror.lock"
_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Files of a run folder.

    Args:
        places: Files and folders in which they are.
        patterns: Their paths; a * is any part of a path.
    """

    places: tuple[str, ...]
    patterns: tuple[str, ...]


def wanted(job_id: str, ranks: tuple[int, ...] | None, processes: int) -> Wanted:
    """Return the files that show how a job is doing, and the logs of some ranks.

    Args:
        job_id: The job's id.
        ranks: The ranks; None for all.
        processes: Worker processes per node.
    """
    own = f"slurm/{job_id}"
    shown = (METRICS_FILE, STARTS_FILE, TAGS_FILE, CHECKPOINTS_FILE, EVENTS_FILE)
    files = (f"slurm-{job_id}.log", f"slurm-{job_id}.err", *shown)
    places = ["*"] if ranks is None else [f"node-{rank // processes}/*/{rank % processes}" for rank in ranks]
    logs = [f"{own}/{LOG_DIR}/attempt-*/{place}/{name}" for place in places for name in (STDOUT, STDERR)]
    return Wanted((own, *files), (*files, f"{own}/events.jsonl", f"{own}/exit_code", *logs))


def refresh(connection: Connection, folder: str, run_dir: Path, files: Wanted) -> None:
    """Copy what files have gained.

    Args:
        connection: To the machine that has them.
        folder: Their run folder there.
        run_dir: The run folder here.
        files: The files.

    Raises:
        ProblemsFound: The machine is not reached, or the connection was lost (E455).
    """
    with _alone(run_dir):
        while _fetch(connection, folder, run_dir, files):
            pass


@contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Keep other commands that follow the same job from copying the same bytes."""
    run_dir.mkdir(exist_ok=True)
    with (run_dir / _LOCK).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(connection: Connection, folder: str, run_dir: Path, files: Wanted) -> bool:
    """Copy the next part; return whether more follows."""
    sizes = "".join(f"{size} {path}\0" for path, size in _sizes(run_dir, files))
    marker = os.urandom(16).hex()
    arguments = (folder, marker, str(_MOST_BYTES), *files.patterns, "--", *files.places)
    words = ("bash", "-c", render_template("slurm/ssh_fetch.sh.j2"), "bash", *arguments)
    done = connection.run(words, data=os.fsencode(sizes), timeout_s=_PATIENCE_S)
    return _written(done.out, marker.encode(), run_dir)


def _sizes(run_dir: Path, files: Wanted) -> Iterator[tuple[str, int]]:
    """Yield path and size of each file that is here and only grows."""
    for place in files.places:
        top = run_dir / place
        for path in top.rglob("*") if top.is_dir() else (top,):
            if path.suffix in _GROWING and path.is_file():
                yield str(path.relative_to(run_dir)), path.stat().st_size


def _written(answer: bytes, marker: bytes, run_dir: Path) -> bool:
    """Write the parts of an answer; return whether more follows. An incomplete part is left for the next time."""
    while True:
        line, found, answer = answer.partition(b"\0")
        fields = line.decode(errors="surrogateescape").split(" ", 4)
        if not found or fields[0] == "end":
            return found != b"" and fields[1] != "0"
        kind, start, count, time, path = fields
        if not _is_inside(path):
            raise fail("E455", "cluster.ssh", "names a file outside the job's folder", value=path)
        target = run_dir / path
        if kind == "d":
            target.mkdir(parents=True, exist_ok=True)
            continue
        content, answer = answer[: int(count)], answer[int(count) :]
        if not answer.startswith(marker):
            return False  # the file was shortened meanwhile
        answer = answer[len(marker) :]
        _write(target, int(start), content, float(time))


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return not path.startswith("/") and ".." not in parts and bool(parts)


def _write(path: Path, start: int, content: bytes, time_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if start and path.exists() else "wb") as file:
        file.seek(start)
        file.write(content)
    os.utime(path, (time_s, time_s))
