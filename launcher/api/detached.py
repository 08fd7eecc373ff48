"""The process of a job on this machine that does not end with the process that launched it.

    python -m launcher.api.detached BUNDLE_DIR [--again] [--parent PID]

A job on this machine ends with the process that submits it. Here that is a process of its own session, without a
terminal: it submits, follows the job to its end and closes the MLflow run, and prints one line to whoever started it,
`{"problems": […]}`, empty once the job runs. SIGTERM cancels the job; without this process, on any signal, the kernel
and the operator end the job's processes.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.common import variables
from launcher.common.names import RUN_DIR
from launcher.common.paths import python_path
from launcher.common.problems import Problem, ProblemsFound, fail

if TYPE_CHECKING:
    from launcher.job_store.registry import JobRecord

LOG = "launch.log"
"""Under the run folder: what the process itself wrote, such as the traceback of a bug."""


def start(folder: Path, *, is_again: bool, outlives: bool) -> None:
    """Launch the bundle in `folder` by a process of its own; return once its job runs.

    Args:
        is_again: Whether a job that has succeeded is launched once more.
        outlives: Whether it goes on when the current process ends, in whatever way.

    An exception while it waits, such as an interrupt, ends the job.

    Raises:
        ProblemsFound: Every reason why the job was not launched.
    """
    run_dir = folder / RUN_DIR
    run_dir.mkdir(exist_ok=True)
    words = [*(["--again"] if is_again else []), *([] if outlives else ["--parent", str(os.getpid())])]
    with (run_dir / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "launcher.api.detached", str(folder.absolute()), *words],
            cwd=_folder(folder),
            env={**variables.current(), **python_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdout
    try:
        with process.stdout as answers:
            answer = answers.readline()
    except BaseException:  # such as an interrupted notebook, which then has no job to cancel
        process.terminate()
        process.wait()
        raise
    if not answer:
        last = (run_dir / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        message = f"its launch ended with status {process.wait()} before the job ran: {''.join(last)}"
        raise fail("E720", str(run_dir / LOG), message)
    if problems := json.loads(answer)["problems"]:
        process.wait()
        raise ProblemsFound(tuple(Problem(**fields) for fields in problems))


def _folder(bundle_dir: Path) -> str | None:
    """Return the folder that a bundle was compiled in, where its relative paths start; None if it is unknown."""
    from launcher.reproduction import record as records

    known = records.read(bundle_dir)
    return known.sources.cwd if known and os.path.isdir(known.sources.cwd) else None


def main() -> None:
    """Launch the bundle of this process's command line and follow its job to the end."""
    parser = argparse.ArgumentParser(prog="python -m launcher.api.detached")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--parent", type=int)
    given = parser.parse_args()
    from launcher.common.interrupts import signals_as_interrupts
    from launcher.operator.processes import end_with_parent

    if given.parent:
        end_with_parent(given.parent)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal is not its own
    with contextlib.suppress(KeyboardInterrupt), signals_as_interrupts():
        _launch(given.folder, is_again=given.again)


def _launch(folder: Path, *, is_again: bool) -> None:
    from launcher.api import running
    from launcher.api.observing import Observer
    from launcher.bundle import store

    class Answering(Observer):
        def started(self, job: "JobRecord") -> None:
            _answer(())

        def warned(self, line: str) -> None:
            print(line, file=sys.stderr)

    try:
        running.launch(*store.read(folder), Answering(), is_again=is_again)
    except ProblemsFound as error:
        print(error, file=sys.stderr)
        _answer(error.problems)


def _answer(problems: tuple[Problem, ...]) -> None:
    fields = [{**dataclasses.asdict(each), "value": each.value and str(each.value)} for each in problems]
    with contextlib.suppress(BrokenPipeError):  # whoever started it has ended
        print(json.dumps({"problems": fields}), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
