"""The output of a job's workers, in the files that their agents write.

    run/logs/node-<k>/agent.log                                          the agent's own output
    run/logs/node-<k>/<job>_<random>/attempt_<n>/<local rank>/stdout.log     a worker's output

Source: torch.distributed.elastic.multiprocessing.api, DefaultLogsSpecs.reify.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launcher.common.job_lock import is_alive
from launcher.common.line_reader import LineReader
from launcher.common.names import LOG_DIR, RUN_DIR
from launcher.common.problems import fail
from launcher.model.job_spec import LogSelection
from launcher.operator.job_request import read_job_request
from launcher.operator.snapshot import Attempt, read_snapshot

AGENT_LOG, WARM_LOG = "agent.log", "warm.log"
STDOUT, STDERR = "stdout.log", "stderr.log"
TAIL_LINES = 15
POLL_S = 0.2
_TAIL_BYTES = 16_384


def node_logs(run_dir: Path, node: int) -> Path:
    """Return the log folder of a node."""
    return run_dir / LOG_DIR / f"node-{node}"


def worker_log(run_dir: Path, attempt: Attempt, node: int, local_rank: int, name: str) -> Path | None:
    """Return `stdout.log` or `stderr.log` of a worker; None while it does not exist."""
    pattern = f"*/attempt_{attempt.number}/{local_rank}/{name}"
    # An earlier launch of the same bundle may have left attempts of the same number.
    found = [path for path in node_logs(run_dir, node).glob(pattern) if _is_newer(path, attempt.started)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _is_newer(path: Path, time_s: float) -> bool:
    clock_grain_s = 1.0
    return path.stat().st_mtime >= time_s - clock_grain_s


def tail(path: Path | None, num_lines: int = TAIL_LINES) -> str:
    """Return the last lines of a file; "" if there is none."""
    if path is None or not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read(_TAIL_BYTES).decode("utf-8", errors="replace")
    return "\n".join(text.rstrip().splitlines()[-num_lines:])


@dataclass(frozen=True, slots=True)
class Selection:
    """The lines of a job to show.

    Args:
        ranks: Ranks, ascending; None for all.
        attempt: Number of the one attempt to show; None for all.
        file_name: STDOUT or STDERR.
        headings: Whether each attempt begins with a heading.
        nproc_per_node: Worker processes per node; needed to find ranks other than 0.
    """

    ranks: tuple[int, ...] | None = (0,)
    attempt: int | None = None
    file_name: str = STDOUT
    headings: bool = False
    nproc_per_node: int = 1

    def ranks_of(self, attempt: Attempt) -> tuple[int, ...]:
        """Return the ranks of an attempt that are selected."""
        every = range(len(attempt.nodes) * self.nproc_per_node)
        return tuple(rank for rank in every if self.ranks is None or rank in self.ranks)


RANK_0 = Selection()
Attempts = Callable[[], tuple[tuple[Attempt, ...], bool]]


def follow_attempts(
    run_dir: Path, attempts: Attempts, pause: Callable[[], None] | None, selection: Selection = RANK_0
) -> Iterator[str]:
    """Yield the selected lines, attempt after attempt, with the events of the job in between.

    Args:
        run_dir: Of the job.
        attempts: Returns the attempts so far, and whether the job has ended.
        pause: Waits before the next poll; None polls once.
        selection: Of lines.
    """
    from launcher.operator.event_log import EventLogReader  # start-up time: compiling imports this module

    events_until = EventLogReader(run_dir).until if selection.attempt is None else _no_events
    wait = pause or _no_pause
    lines = _AttemptLines(run_dir, selection)
    while True:  # lines, events and the end are checked in this order at every poll
        known, ended = attempts()
        over = ended or pause is None
        if (yield from lines.read(known, over=over)):
            if lines.index < len(known):
                yield from events_until(known[lines.index].started)
            continue
        if known or over:  # without attempts, the events belong to an earlier launch
            yield from events_until(None)
        if over:
            return
        wait()


def _no_pause() -> None:
    """Do nothing: without a pause there is no second poll."""


def _no_events(_time_s: float | None) -> Iterator[str]:
    return iter(())


class _AttemptLines:
    """Reads the selected lines attempt after attempt; `index` is the place of the attempt that is read."""

    def __init__(self, run_dir: Path, selection: Selection):
        self._run_dir = run_dir
        self._selection = selection
        self._reader: _Reader | None = None
        self.index = 0

    def read(self, known: Sequence[Attempt], *, over: bool) -> Generator[str, None, bool]:
        """Yield the new lines of one attempt; return whether it has ended, so that the next one follows."""
        if self.index >= len(known):
            return False
        self._reader = self._reader or _Reader(self._run_dir, known[self.index], self._selection)
        is_complete = over or self.index + 1 < len(known)
        yield from self._reader.new_lines(complete_only=not is_complete)
        if is_complete:
            self.index, self._reader = self.index + 1, None
        return is_complete


class _Reader:
    """Reads the selected lines of one attempt."""

    def __init__(self, run_dir: Path, attempt: Attempt, selection: Selection):
        self._run_dir = run_dir
        self._attempt = attempt
        self._selection = selection
        self._readers: dict[int, LineReader] = {}
        self._is_new = True

    def new_lines(self, *, complete_only: bool) -> Iterator[str]:
        """Yield the lines since the last call, the heading first."""
        selection = self._selection
        if selection.attempt not in (None, self._attempt.number):
            return
        if self._is_new and selection.headings:
            yield self._heading()
        self._is_new = False
        for rank in selection.ranks_of(self._attempt):
            prefix = "" if selection.ranks and len(selection.ranks) == 1 else f"rank {rank} | "
            if reader := self._reader(rank):
                yield from (f"{prefix}{line}" for line in reader.new_lines(complete_only=complete_only))

    def _reader(self, rank: int) -> LineReader | None:
        if rank not in self._readers:
            place, local_rank = divmod(rank, self._selection.nproc_per_node)
            node = self._attempt.nodes[place]
            path = worker_log(self._run_dir, self._attempt, node, local_rank, self._selection.file_name)
            if path is None:
                return None
            self._readers[rank] = LineReader(path)
        return self._readers[rank]

    def _heading(self) -> str:
        from launcher import timeline  # start-up time, as above

        number, nodes = self._attempt.number, len(self._attempt.nodes)
        ranks = nodes * self._selection.nproc_per_node
        found = next((each for each in timeline.read(self._run_dir).attempts if each.number == number), None)
        parts = [f"{nodes} node{'' if nodes == 1 else 's'}", f"{ranks} rank{'' if ranks == 1 else 's'}"]
        if found and found.resumed_step:
            parts.append(f"resumed from step {found.resumed_step}")
        if found and found.ending:
            parts.append(f"end: {found.ending}")
        if not self._selection.ranks_of(self._attempt):
            parts.append("without this rank")
        return f"== attempt {number}: {', '.join(parts)}"


def read_logs(
    bundle_dir: Path,
    asked: LogSelection,
    *,
    follow: bool,
    attempts: Attempts | None = None,
    poll_s: float = POLL_S,
) -> Iterator[str]:
    """Return the selected lines of a job that was launched; with `follow`, until it has ended.

    Args:
        bundle_dir: The bundle's folder.
        asked: The lines.
        follow: Whether to wait for more.
        attempts: Returns the attempts so far, and whether the job has ended; None for a job on this machine.
        poll_s: Seconds between two polls.

    Raises:
        ProblemsFound: The job was not launched here (E705), or has no such attempt (E706) or rank (E707).
    """
    run_dir = bundle_dir / RUN_DIR
    if attempts is None and read_snapshot(run_dir) is None:
        raise fail("E705", str(bundle_dir), "its job was never launched on this machine")
    attempts = attempts or partial(known_attempts, run_dir)
    nproc_per_node, most_nodes = _sizes(bundle_dir)
    file_name = STDERR if asked.is_stderr else STDOUT
    selection = Selection(asked.ranks, asked.attempt, file_name, asked.has_headings, nproc_per_node)
    known, ended = attempts()
    wait = follow and not ended
    if not wait:
        _check_attempt(known, selection)
    shown = [len(attempt.nodes) for attempt in known if selection.attempt in (None, attempt.number)]
    _check_rank(most_nodes if wait else max(shown, default=0), selection)
    return follow_attempts(run_dir, attempts, partial(time.sleep, poll_s) if wait else None, selection)


def pause() -> None:
    """Wait before the next poll of a job."""
    time.sleep(POLL_S)


def known_attempts(run_dir: Path) -> tuple[tuple[Attempt, ...], bool]:
    """Return the attempts of a job so far, and whether it has ended."""
    alive = is_alive(run_dir)  # before the snapshot: a dead operator's snapshot is final
    snapshot = read_snapshot(run_dir)
    return (snapshot.attempts if snapshot else ()), not alive or snapshot is None or snapshot.state.is_final


def _sizes(bundle_dir: Path) -> tuple[int, int]:
    """Return the worker processes per node, and the maximum number of nodes of the job."""
    try:
        job = read_job_request(bundle_dir)
        return job.nproc_per_node, job.policy.sizes[-1]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise fail("E703", str(bundle_dir), f"is not a bundle directory: plan.json: {error}") from error


def _check_attempt(known: tuple[Attempt, ...], selection: Selection) -> None:
    numbers = [attempt.number for attempt in known]
    if selection.attempt is not None and selection.attempt not in numbers:
        allowed = f"0 to {numbers[-1]}" if numbers else "none: its workers were never started"
        raise fail("E706", "--attempt", "the job has no such attempt", value=selection.attempt, allowed=allowed)


def _check_rank(nodes: int, selection: Selection) -> None:
    ranks = nodes * selection.nproc_per_node
    if nodes and selection.ranks and selection.ranks[-1] >= ranks:
        allowed = f"0 to {ranks - 1}"
        raise fail("E707", "--rank", "no attempt has this rank", value=selection.ranks[-1], allowed=allowed)
