"""Copies what a job has written on another machine into its bundle's run folder, each time only what is new.

Where both machines have rsync, that copies; otherwise a script there answers with what files have gained.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from launcher.backends.slurm.run_files import Wanted, alone
from launcher.backends.slurm.ssh import Connection
from launcher.common.problems import fail
from launcher.common.templating import render_template

_GROWING = (".jsonl", ".log", ".err")
"""Ends of names of files that only grow; others are replaced, and copied completely each time."""
_MOST_BYTES = 32 * 2**20
"""Bytes of one answer; more answers follow until nothing is missing."""
_LOCK = ".mirror.lock"
_PATIENCE_S = 600.0


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
    run_dir.mkdir(exist_ok=True)
    # Other commands that follow the same job would copy the same bytes.
    with alone(run_dir / _LOCK, os.O_WRONLY | os.O_CREAT):
        if _synchronised(connection, folder, run_dir, files):
            return
        while _fetch(connection, folder, run_dir, files):
            pass


def _synchronised(connection: Connection, folder: str, run_dir: Path, files: Wanted) -> bool:
    """Copy files by rsync; return whether that was possible."""
    names = b"".join(os.fsencode(place) + b"\0" for place in files.places)
    growing = [pattern for pattern in files.patterns if pattern.endswith(_GROWING)]
    # Without the first copy both sides would read the whole of each log to find what is new. It leaves out files that
    # are shorter than before, which the second copies, as it does those that are replaced.
    for patterns, options in ((growing, ("--append",)), (files.patterns, ())):
        # In a pattern, * is any part of a path, as for find.
        wanted = [f"--include=/{pattern.replace('*', '**')}" for pattern in patterns]
        filters = ("--ignore-missing-args", "--include=*/", *wanted, "--exclude=*")
        if not connection.rsync((*options, *filters), folder, run_dir, names):
            return False
    return True


def _fetch(connection: Connection, folder: str, run_dir: Path, files: Wanted) -> bool:
    """Copy the next part; return whether more follows."""
    sizes = "".join(f"{size} {path}\0" for path, size in _sizes(run_dir, files))
    marker = os.urandom(16).hex()
    arguments = (folder, marker, str(_MOST_BYTES), *files.patterns, "--", *files.places)
    words = ("bash", "-c", render_template("slurm/ssh_fetch.sh.j2", growing=_GROWING), "bash", *arguments)
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
    """Write a part of a file that grows, or the whole of one that is replaced, which is read by others meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_growing = path.suffix in _GROWING
    target = path if is_growing else path.with_name(f".{path.name}.partial")
    with target.open("r+b" if is_growing and start and path.exists() else "wb") as file:
        file.seek(start)
        file.write(content)
    os.utime(target, (time_s, time_s))
    if not is_growing:
        target.replace(path)
