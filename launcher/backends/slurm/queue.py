"""Jobs as Slurm has them: one squeue for all jobs of the user, and sacct for those that the controller has forgotten.

squeue comes first because it needs no accounting. The controller forgets an ended job after MinJobAge, 300 s by
default; without accounting, what the batch script wrote then shows how it ended. A task of an array has the id
`<array>_<task>`.
"""

import functools
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from launcher.backends.slurm import programs, states
from launcher.backends.slurm.place import Place
from launcher.backends.slurm.programs import Answer
from launcher.model.job_spec import JobState

POLL_S = 1.0
"""Seconds between two polls."""
_FRESH_S = 0.5 * POLL_S
"""Age up to which the answer to a poll also answers for the user's other jobs."""
_FIELDS = ("JobArrayID", "State", "Reason", "NumNodes", "exit_code", "Name")
_SACCT_FIELDS = ("JobID", "State", "Reason", "NNodes", "ExitCode", "JobName")
"""The same for sacct. The name is last: it is the only text that a user chooses."""
_FORMAT = ",".join(f"{name}:|" for name in _FIELDS)
_ENVIRONMENT = {"SLURM_BITSTR_LEN": "0"}
"""Shows every task of an array. Source: sacct(1), Environment Variables."""
_ID = re.compile(r"([0-9]+)(?:_([0-9]+)|_\[([0-9,-]+)(?:%[0-9]+)?\])?")
"""A job, a task of an array, or several of its tasks."""
_NO_JOB = "Invalid job id specified"
_NOT_ACCOUNTED = ("accounting storage is disabled", "supported accounting_storage plugin")
"""Parts of what sacct prints on a cluster without accounting. Seen with Slurm 22.05."""
_ACCOUNTED_DAYS = 60


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as Slurm has it.

    Args:
        job_id: Its id, for a task of an array `<array>_<task>`.
        word: Slurm's name of its state.
        reason: Why it is pending, or why it ended.
        nodes: Nodes that it has or requests.
        exit_code: Exit code and signal of its batch script.
    """

    job_id: str
    word: str
    reason: str
    nodes: int
    exit_code: tuple[int, int]
    name: str

    @property
    def state(self) -> JobState:
        """Its state."""
        return states.state_of(self.word)

    @property
    def message(self) -> str:
        """Why it is pending, or why it ended."""
        return states.message_of(self.word, self.reason, self.exit_code)


class Queue:
    """The jobs of the user, polled at most once per interval however many are asked about. Threads may share it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._jobs: dict[str, Seen] = {}
        self._polled_s = float("-inf")
        self.polls = 0

    def forget(self) -> None:
        """Make the next question ask Slurm."""
        with self._lock:
            self._polled_s = float("-inf")

    def find(self, job_id: str) -> Seen | None:
        """Return a job; None if Slurm no longer knows it. E447 if the controller does not answer."""
        with self._lock:
            if time.monotonic() - self._polled_s > _FRESH_S:
                self._jobs = _squeue(self._place, f"--user={self._place.user}")
                self._polled_s = time.monotonic()
                self.polls += 1
            found = self._jobs.get(job_id)
        words = (self._place, "--jobs", job_id)
        return found or _squeue(*words).get(job_id) or _sacct(*words).get(job_id)

    def knows_array(self, job_id: str, name: str) -> bool:
        """Return whether Slurm knows the array, of this name, of a task that `find` did not find."""
        array = array_of(job_id)
        with self._lock:
            names = {job.name for job in self._jobs.values() if array_of(job.job_id) == array}
        return name in names or any(job.name == name for job in _sacct(self._place, "--jobs", array).values())


@functools.cache
def queue_of(place: Place) -> Queue:
    """Return the one queue of a place."""
    return Queue(place)


def named(names: Collection[str], place: Place) -> list[Seen]:
    """Return the user's jobs that have one of some names, the oldest first.

    Raises:
        ProblemsFound: The controller does not answer, or accounting does not, which may know more jobs (E447).
    """
    selection = (f"--name={','.join(names)}", f"--user={place.user}")
    accounted = _ask_sacct(place, *selection, f"--starttime=now-{_ACCOUNTED_DAYS}days")
    found = {**_parsed(accounted, _two_numbers), **_squeue(place, *selection)}
    is_accounting = accounted.code != programs.NOT_FOUND and not any(w in accounted.error for w in _NOT_ACCOUNTED)
    if accounted.code and not found and is_accounting:
        raise programs.unanswered("sacct", accounted)  # the controller may have forgotten a job that has ended
    return sorted((job for job in found.values() if job.name in names), key=_age)


def array_of(job_id: str) -> str:
    """Return the id of a task's array; for another job its own id."""
    return job_id.partition("_")[0]


def _age(job: Seen) -> tuple[int, ...]:
    """Return a key that orders jobs by their submission."""
    return tuple(map(int, job.job_id.split("_")))


def _squeue(place: Place, *selection: str) -> dict[str, Seen]:
    """Return jobs that the controller knows, by id."""
    words = ("squeue", "--array", "--noheader", "--states=all", f"--Format={_FORMAT}", *selection)
    answer = place.run(*words, env=_ENVIRONMENT)
    if answer.code and _NO_JOB not in answer.error:
        raise programs.unanswered("squeue", answer)
    return _parsed(answer, _raw_status)


def _sacct(place: Place, *selection: str) -> dict[str, Seen]:
    """Return jobs that are accounted for, by id; none where jobs are not accounted for, or sacct does not answer."""
    return _parsed(_ask_sacct(place, *selection), _two_numbers)


def _ask_sacct(place: Place, *selection: str) -> Answer:
    words = ("sacct", "--allocations", "--parsable2", "--noheader", f"--format={','.join(_SACCT_FIELDS)}", *selection)
    return place.run(*words, env=_ENVIRONMENT)


def _parsed(answer: Answer, exit_code_of: Callable[[str], tuple[int, int]]) -> dict[str, Seen]:
    """Return the jobs of a table, by id, none of a command that failed; of a resized job the last line counts."""
    found: dict[str, Seen] = {}
    for line in () if answer.code else answer.out.splitlines():
        fields = [field.strip() for field in line.split("|", len(_FIELDS) - 1)]
        if len(fields) < len(_FIELDS):
            continue
        job_ids, word, reason, nodes, code, name = fields
        count = int(nodes) if nodes.isdigit() else 0
        state = (word, reason, count, exit_code_of(code), name.removesuffix("|"))
        found |= {job_id: Seen(job_id, *state) for job_id in _ids(job_ids)}
    return found


def _ids(text: str) -> Iterator[str]:
    """Yield the ids of a row: one, several of an array such as `46_[0-2,5%2]`, or none of another kind."""
    if (match := _ID.fullmatch(text)) is None:
        return
    array, _, several = match.groups()
    if not several:
        yield text
        return
    for part in several.split(","):
        first, _, last = part.partition("-")
        yield from (f"{array}_{number}" for number in range(int(first), int(last or first) + 1))


def _raw_status(text: str) -> tuple[int, int]:
    """Return exit code and signal from a status as of wait(2), which squeue prints."""
    status = int(text) if text.isdigit() else 0
    return status >> 8, status & 0x7F


def _two_numbers(text: str) -> tuple[int, int]:
    """Return exit code and signal from `3:0`, which sacct prints."""
    code, _, number = text.partition(":")
    return (int(code), int(number)) if code.isdigit() and number.isdigit() else (0, 0)


def chosen(jobs: Iterable[Seen], left_out: Iterable[str]) -> Seen | None:
    """Return the newest of some jobs, without those left out; None without any."""
    return max((job for job in jobs if job.job_id not in set(left_out)), key=_age, default=None)
