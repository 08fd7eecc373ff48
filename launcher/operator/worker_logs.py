"""The output of a job's workers, in the files that their agents write.

    run/logs/node-<k>/agent.log                                          the agent's own output
    run/logs/node-<k>/<job>_<random>/attempt_<n>/<local rank>/stdout.log     a worker's output

Source: torch.distributed.elastic.multiprocessing.api, DefaultLogsSpecs.reify.
"""

import contextlib
import itertools
import math
import re
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from launcher.common.locks import is_alive
from launcher.common.names import LOG_DIR, RUN_DIR
from launcher.common.texts import counted
from launcher.model.backend import RANK_0
from launcher.model.following import (
    CLOCK_GRAIN_S,
    Start,
    Tail,
    followed,
    refuse_unknown_attempt,
    refuse_unknown_launch,
    refuse_unknown_ranks,
    selected_ranks,
)
from launcher.model.job_spec import LogLine, LogSelection
from launcher.operator.job_request import read_job_request
from launcher.operator.snapshot import Attempt, read_snapshot
from launcher.operator.types import Cause, FailedWorker, Fault, failed_workers

AGENT_LOG, WARM_LOG = "agent.log", "warm.log"
STDOUT, STDERR = "stdout.log", "stderr.log"
TAIL_LINES = 15
POLL_S = 0.2
_TAIL_BYTES = 16_384
_USAGE_ERROR = r"\S+: error: "
"""Source: argparse, ArgumentParser.error."""


def node_logs(run_dir: Path, node: int) -> Path:
    """Return the log folder of a node."""
    return run_dir / LOG_DIR / f"node-{node}"


def worker_log(
    run_dir: Path, attempt: Attempt, node: int, local_rank: int, name: str, until_s: float = math.inf
) -> Path | None:
    """Return `stdout.log` or `stderr.log` of a worker; None while it does not exist.

    Args:
        until_s: When the next launch began: another launch of the same bundle has attempts of the same numbers.
    """
    pattern = f"*/attempt_{attempt.number}/{local_rank}/{name}"
    every = [(path.lstat(), path) for path in node_logs(run_dir, node).glob(pattern)]
    written = [(seen.st_mtime, path) for seen, path in every if stat.S_ISREG(seen.st_mode)]  # a pipe has no end
    found = [each for each in written if is_of(attempt, each[0]) and each[0] <= until_s]
    return max(found)[1] if found else None


def is_of(attempt: Attempt, written_s: float) -> bool:
    """Return whether a file or folder written at this time is of an attempt, not of one before."""
    return written_s >= attempt.started - CLOCK_GRAIN_S


def count_logs_as(run_dir: Path, node: int, attempt: Attempt) -> None:
    """Let what the workers of a new node wrote be that of an attempt; its agent counts its starts from 0."""
    for folder in node_logs(run_dir, node).glob("*/attempt_0"):
        if is_of(attempt, folder.stat().st_mtime):
            with contextlib.suppress(OSError):  # those of the attempt exist
                folder.rename(folder.with_name(f"attempt_{attempt.number}"))


def tail(path: Path | None, num_lines: int = TAIL_LINES) -> str:
    """Return the last lines of a file, without argparse's usage before its error; "" if there is none."""
    if path is None or not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read(_TAIL_BYTES).decode("utf-8", errors="replace")
    *before, last = text.rstrip().splitlines()[-num_lines:] or [""]
    if re.match(_USAGE_ERROR, last):
        count = len([*itertools.takewhile(lambda line: line.startswith(" "), reversed(before))])
        head = before[: len(before) - count]
        if not head or head[-1].startswith("usage: "):  # else a program's own indented lines
            before = head[:-1]
    return "\n".join((*before, last))


Attempts = Callable[[], tuple[tuple[Attempt, ...], bool]]


def follow_attempts(
    run_dir: Path,
    attempts: Attempts,
    pause: Callable[[], object] | None,
    selection: LogSelection = RANK_0,
    nproc_per_node: int = 1,
    until_s: float = math.inf,
) -> Iterator[LogLine]:
    """Yield the selected lines, attempt after attempt, with the events of the job in between.

    Args:
        attempts: Returns the attempts so far, and whether the job has ended.
        pause: Waits before the next poll; None polls once.
        until_s: When the next launch began, for an earlier one, which is shown without events.
    """
    from launcher.operator.event_log import EventLogReader  # start-up time: compiling imports this module

    def no_events(_time_s: float | None) -> Iterator[LogLine]:
        return iter(())

    is_whole = selection.attempt is None and until_s == math.inf
    events_until = EventLogReader(run_dir).until if is_whole else no_events
    log, known = Tail(selection, events_until), list[Start]()

    def look() -> bool:
        nonlocal known
        found, has_ended = attempts()
        known = [_start(run_dir, each, selection, nproc_per_node, until_s) for each in found]
        return has_ended or pause is None

    def new(is_last: bool) -> Iterator[LogLine]:
        yield from log.new_lines(known, is_last=is_last)
        if known or is_last:  # without attempts, the events belong to an earlier launch
            yield from events_until(None)

    return followed(new, look, pause or (lambda: None))


def _start(run_dir: Path, attempt: Attempt, selection: LogSelection, nproc_per_node: int, until_s: float) -> Start:
    ranks = range(len(attempt.nodes) * nproc_per_node)

    def file(rank: int, stream: str) -> Path | None:
        place, local_rank = divmod(rank, nproc_per_node)
        return worker_log(run_dir, attempt, attempt.nodes[place], local_rank, f"{stream}.log", until_s)

    def heading() -> str:
        from launcher import timeline  # start-up time, as above

        every = timeline.read(run_dir).attempts if until_s == math.inf else ()
        found = next((each for each in every if each.number == attempt.number), None)
        parts = [counted(len(attempt.nodes), "node"), counted(len(ranks), "rank")]
        if found and found.resumed_step:
            parts.append(f"resumed from step {found.resumed_step}")
        if found and found.ending:
            parts.append(f"end: {found.ending}")
        if not selected_ranks(ranks, selection):
            parts.append("without this rank")
        return ", ".join(parts)

    return Start(attempt.number, ranks, heading, file, attempt.started)


def read_logs(
    bundle_dir: Path,
    selection: LogSelection,
    *,
    follow: bool,
    attempts: Attempts | None = None,
    poll_s: float = POLL_S,
    until_s: float = math.inf,
) -> Iterator[LogLine]:
    """Return the selected lines of a job; with `follow`, until it has ended.

    Args:
        attempts: Returns the attempts so far, and whether the job has ended; None for a job on this machine.
        until_s: As of `follow_attempts`.

    Raises:
        ProblemsFound: The job has no such attempt (E706) or rank (E707).
    """
    run_dir = bundle_dir / RUN_DIR
    attempts = attempts or partial(known_attempts, run_dir)
    job = read_job_request(bundle_dir)
    known, ended = attempts()
    shown = [len(each.nodes) for each in known if selection.attempt in (None, each.number)]
    if ended or not follow:
        refuse_unknown_attempt(selection.attempt, [each.number for each in known])
        nodes = max(shown, default=0)
    else:
        nodes = job.policy.sizes[-1]
    if nodes:  # of a job whose workers were never started, no rank is wrong
        refuse_unknown_ranks(selection.ranks, nodes * job.nproc_per_node)
    pause = partial(time.sleep, poll_s) if follow and not ended else None
    return follow_attempts(run_dir, attempts, pause, selection, job.nproc_per_node, until_s)


def read_launch(bundle_dir: Path, number: int, selection: LogSelection) -> Iterator[LogLine]:
    """Return the selected lines of one launch of a job, counted from 0.

    Raises:
        ProblemsFound: The job has no such launch, attempt (E706) or rank (E707) whose logs are on this machine.
    """
    from launcher.timeline.records import LaunchReader  # start-up time, as above

    records = LaunchReader(bundle_dir / RUN_DIR)
    refuse_unknown_launch(number, records.num_launches())
    events, until_s = records.events(number)
    starts = [(event.fields, event.time) for event in events if event.kind == "starting"]
    attempts = tuple(
        # A start that came to nothing is dated from its preparation.
        Attempt(each["attempt"], each["nodes"][0], tuple(each["nodes"]), each.get("cause_time", time_s))
        for each, time_s in starts
    )
    return read_logs(bundle_dir, selection, follow=False, attempts=lambda: (attempts, True), until_s=until_s)


def known_attempts(run_dir: Path) -> tuple[tuple[Attempt, ...], bool]:
    """Return the attempts of a job so far, and whether it has ended."""
    alive = is_alive(run_dir)  # before the snapshot: a dead operator's snapshot is final
    snapshot = read_snapshot(run_dir)
    return (snapshot.attempts if snapshot else ()), not alive or snapshot is None or snapshot.state.is_final


def explain(
    faults: tuple[Fault, ...],
    run_dir: Path,
    attempts: tuple[Attempt, ...],
    nproc_per_node: int,
    first_rank: int | None = None,
) -> str:
    """Return why a job with these `faults` failed.

    A worker's failure makes its peers fail in their shared collectives. The worker with the first error is named; if
    none is known, the one whose stderr was written earliest: the others wrote theirs when they lost it.

    Args:
        first_rank: The rank with the first error; None if that is unknown.
    """
    # The workers of other nodes fail because this one is gone.
    if fault := next((each for each in faults if each.cause is not Cause.WORKER), None):
        if fault.cause is Cause.NO_CAPACITY:
            return f"{fault.cause}"
        if fault.cause is Cause.HANG:
            return f"{fault}"
        log = tail(node_logs(run_dir, fault.node) / AGENT_LOG)
        return _join(f"node {fault.node}: {fault.cause}", fault.detail, log)
    if not faults or not attempts:
        return "failed, and no agent reported why"
    attempt = attempts[-1]
    failures = [
        (fault.node, worker, worker_log(run_dir, attempt, fault.node, worker.local_rank, STDERR))
        for fault in faults
        for worker in failed_workers(fault.detail)
    ]
    if not failures:
        return _join(f"node {faults[0].node}: {faults[0].cause}", faults[0].detail)

    def rank_of(node: int, worker: FailedWorker) -> int:
        return attempt.nodes.index(node) * nproc_per_node + worker.local_rank

    first = [each for each in failures if rank_of(*each[:2]) == first_rank]
    node, worker, stderr = min(first or failures, key=lambda each: each[2].stat().st_mtime if each[2] else 0.0)
    rank = rank_of(node, worker)
    return _join(f"rank {rank} (node {node}, local rank {worker.local_rank}) {worker}", tail(stderr))


def _join(head: str, *parts: str) -> str:
    found = [part.strip() for part in parts if part.strip()]
    return "\n".join([f"{head}:" if found else head, *found])
