"""The state of a running job for other processes: `run/state.json`."""

import contextlib
import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.common import redaction
from launcher.common.problems import ProblemsFound, fail
from launcher.model.failure import Failure, failure_from
from launcher.model.job_spec import JobState

STATE_FILE = "state.json"
OPERATOR_LOG = "operator.log"
STOP_FILE = "stopped-by.txt"
"""Who or what stops the job, written before the signal that stops it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the job's workers.

    Args:
        number: From 0; incremented at every restart.
        leader: The node whose first worker is rank 0.
        nodes: Nodes that took part, by rank.
        started: Seconds since the epoch.
    """

    number: int
    leader: int
    nodes: tuple[int, ...]
    started: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a job as its operator last published it.

    Args:
        message: The reason it is waiting or has ended.
        attempt: How often its workers were restarted.
        exit_code: The operator's exit status, once the job has ended.
        failure: Why it failed; None unless it has, and if that is unknown.
    """

    state: JobState
    nodes: int
    message: str
    attempt: int
    pid: int
    exit_code: int | None = None
    attempts: tuple[Attempt, ...] = ()
    failure: Failure | None = None


def publish(run_dir: Path, snapshot: Snapshot) -> None:
    """Replace the state file atomically: a reader sees either the old state or the new one."""
    partial = run_dir / f".{STATE_FILE}.tmp"
    partial.write_text(json.dumps(redaction.masked_tree(asdict(snapshot)), indent=1), encoding="utf-8")
    partial.replace(run_dir / STATE_FILE)


def read_snapshot(run_dir: Path) -> Snapshot | None:
    """Return the state that the operator published last; None if it has published none yet.

    Raises:
        ProblemsFound: The file is damaged, or cannot be read (E414).
    """
    path = run_dir / STATE_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        attempts = tuple(Attempt(**{**each, "nodes": tuple(each["nodes"])}) for each in fields.pop("attempts"))
        typed = {"state": JobState(fields["state"]), "failure": failure_from(fields.get("failure"))}
        return Snapshot(**{**fields, **typed, "attempts": attempts})
    except FileNotFoundError:
        return None
    except OSError as error:
        raise fail("E414", str(path), f"cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise unknown_state(run_dir, "is damaged: the state of its job cannot be read") from error


def unknown_state(run_dir: Path, message: str) -> ProblemsFound:
    """Return the Problem (E414) of a state file without the state of its job, which another launch replaces."""
    remedy = f"recipes launch {shlex.quote(str(run_dir.parent))} --again runs the job again"
    return fail("E414", str(run_dir / STATE_FILE), message, remedy=remedy)


def note_stop(run_dir: Path, reason: str) -> None:
    """Write why a job is about to be stopped, for its operator, which gets a signal alone."""
    with contextlib.suppress(OSError):  # a full disk does not keep a job from being stopped
        (run_dir / STOP_FILE).write_text(reason, encoding="utf-8")


def stop_reason(run_dir: Path) -> str | None:
    """Return why a job was stopped; None if that is not known."""
    try:
        return (run_dir / STOP_FILE).read_text(encoding="utf-8") or None
    except OSError:
        return None
