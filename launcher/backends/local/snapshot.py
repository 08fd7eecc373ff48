"""A running job as other processes see it: `run/state.json`, and a lock that lasts as long as the job.

The lock file is held by the operator and by every node it starts, so that "not locked" means that
nothing of the job is left, however it ended. The kernel lets go of it when the last of them ends.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from launcher.common import redaction
from launcher.common.problems import fail
from launcher.model.job_spec import JobState

STATE_FILE = "state.json"
LOCK_FILE = "operator.lock"
OPERATOR_LOG = "operator.log"

_AGAIN = "recipes launch <bundle> runs the job again"

LOCK_TIMEOUT_S = 2.0
"""How long the operator tries for the lock, which others hold for an instant to look at it."""

_LOCK_POLL_S = 0.05


class JobAlreadyRunning(Exception):
    """Another operator runs this bundle."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the job's workers.

    Args:
        number: 0, raised at every restart.
        leader: Node whose first worker is rank 0.
        nodes: Nodes that took part, by rank.
        started: When, in seconds since the epoch.
    """

    number: int
    leader: int
    nodes: tuple[int, ...]
    started: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job as its operator last described it.

    Args:
        state: Where it is in its life.
        nodes: Nodes it runs on now.
        message: What it waits for, or why it ended.
        attempt: How often its workers were restarted.
        pid: The operator's.
        exit_code: The operator's exit status, once the job has ended.
        attempts: Every start of its workers so far.
    """

    state: JobState
    nodes: int
    message: str
    attempt: int
    pid: int
    exit_code: int | None = None
    attempts: tuple[Attempt, ...] = ()


def publish(run_dir: Path, snapshot: Snapshot) -> None:
    """Replace the state file; a reader sees the old state or the new one."""
    draft = run_dir / f".{STATE_FILE}.tmp"
    draft.write_text(json.dumps(redaction.masked_tree(asdict(snapshot)), indent=1), encoding="utf-8")
    os.replace(draft, run_dir / STATE_FILE)


def read_snapshot(run_dir: Path) -> Snapshot | None:
    """Return what the operator last said; None when it has said nothing yet.

    Raises:
        ProblemsFound: The file is not what an operator writes (E414).
    """
    path = run_dir / STATE_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        attempts = tuple(Attempt(**{**each, "nodes": tuple(each["nodes"])}) for each in fields.pop("attempts"))
        return Snapshot(**{**fields, "state": JobState(fields["state"]), "attempts": attempts})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise fail("E414", str(path), "is damaged: the state of its job cannot be read", remedy=_AGAIN) from error


def is_alive(run_dir: Path) -> bool:
    """Return whether anything of the job, operator or node, still exists."""
    try:
        with (run_dir / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def lock(run_dir: Path) -> Iterator[IO[bytes]]:
    """Hold the job's lock; yield its file, for nodes to inherit.

    Raises:
        JobAlreadyRunning: Another operator, or a node it left, holds it.
    """
    with (run_dir / LOCK_FILE).open("wb") as file:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise JobAlreadyRunning(f"{run_dir} belongs to a running job") from error
            time.sleep(_LOCK_POLL_S)
        yield file


def inherited_lock(descriptor: int) -> IO[bytes]:
    """Return the job's lock that the program before this one, in the same process, has held."""
    os.set_inheritable(descriptor, False)
    return os.fdopen(descriptor, "wb")
