"""The start and exit of an operator, as seen by the process that started it."""

import contextlib
import math
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from launcher.common import os_errors
from launcher.common.problems import ProblemsFound, fail
from launcher.model.following import until
from launcher.model.job_spec import JobState
from launcher.operator.snapshot import OPERATOR_LOG, STATE_FILE, Snapshot, publish
from launcher.operator.worker_logs import POLL_S, tail

STOP_MARGIN_S = 30.0
"""How long the operator may take to end a job, beyond the time its workers have to save."""


def end(operator: subprocess.Popen[bytes], signals: Sequence[signal.Signals | None]) -> None:
    """Send signals until an operator has ended, and its nodes with it; None waits first."""
    for signum in signals:
        if signum is not None:
            operator.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            operator.wait(STOP_MARGIN_S)
            return


def why_it_died(run_dir: Path) -> str:
    """Return why an operator exited without a final state: it could not write one, or the last line of its log."""
    if refusal := os_errors.written(run_dir):
        reason, remedy = os_errors.described(refusal, run_dir)
        return f"{reason}, so the job was ended; {remedy}, then: recipes launch {run_dir.parent}"
    last = tail(run_dir / OPERATOR_LOG, 1)
    return f"the job's operator died{f' ({last})' if last else ''}; see {run_dir / OPERATOR_LOG}"


def await_first_word(run_dir: Path, operator: subprocess.Popen[bytes]) -> None:
    """Wait until the operator has published its state; publish its failure when it ends before."""
    state = run_dir / STATE_FILE
    until(lambda: state.exists() or operator.poll() is not None, math.inf, POLL_S / 4)
    if state.exists():
        return
    if not run_dir.exists():
        raise folder_removed(run_dir)
    code = operator.returncode
    message = f"the operator ended with status {code}:\n{tail(run_dir / OPERATOR_LOG)}"
    publish(run_dir, Snapshot(JobState.FAILED, 0, message, 0, operator.pid, exit_code=code))


def folder_removed(run_dir: Path) -> ProblemsFound:
    """Return the Problem that the folder of a running job was removed (E418)."""
    message = "was removed while the job ran; the job was ended, and its checkpoints there are lost"
    return fail("E418", "job", message, value=str(run_dir), remedy="launch the recipe again")
