"""Where the agents put their workers' output, and what it says of a failure.

    run/logs/node-<k>/agent.log                                          the agent's own output
    run/logs/node-<k>/<job>_<random>/attempt_<n>/<local rank>/stdout.log     a worker's

Source: torch.distributed.elastic.multiprocessing.api, DefaultLogsSpecs.reify.
"""

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.backends.local.state import Attempt
from launcher.contract import LOG_DIR

AGENT_LOG = "agent.log"
TAIL_LINES = 15
_TAIL_BYTES = 16_384

_FAILURE = re.compile(r"Local Rank (\d+) exited with code (-?\d+)")


@dataclass(frozen=True, slots=True)
class FailedWorker:
    """A worker that its agent names as failed; `exit_code` as the agent spells it."""

    local_rank: int
    exit_code: int


def node_logs(run_dir: Path, node: int) -> Path:
    """Return the log folder of a node."""
    return run_dir / LOG_DIR / f"node-{node}"


def worker_log(run_dir: Path, attempt: Attempt, node: int, local_rank: int, name: str) -> Path | None:
    """Return `stdout.log` or `stderr.log` of a worker; None while it does not exist."""
    pattern = f"*/attempt_{attempt.number}/{local_rank}/{name}"
    # An earlier run of the same bundle has left attempts of the same number.
    found = [path for path in node_logs(run_dir, node).glob(pattern) if _born_after(path, attempt.started)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _born_after(path: Path, time_s: float) -> bool:
    clock_grain_s = 1.0
    return path.stat().st_mtime >= time_s - clock_grain_s


def tail(path: Path | None, num_lines: int = TAIL_LINES) -> str:
    """Return the last lines of a file, "" when there is none."""
    if path is None or not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return "\n".join(text.rstrip().splitlines()[-num_lines:])


def failed_workers(message: str) -> tuple[FailedWorker, ...]:
    """Return the workers that a faulted agent's message names.

    Source: hyperpod_elastic_agent 1.1.3, HyperPodElasticAgent.set_agent_state_fault.
    """
    return tuple(FailedWorker(int(rank), int(code)) for rank, code in _FAILURE.findall(message))


def describe_exit(code: int) -> str:
    """Return in words how a worker ended, from the number its agent gives.

    The agent's SIGCHLD handler keeps the negated wait status (exit status in the high byte, signal in the
    low seven bits); where the handler came too late, the number is Popen's: status or negated signal.
    """
    if code >= 0:
        return f"exited with code {code}"
    status = -code
    if status & 0x7F:
        return f"was killed by {signal.Signals(status & 0x7F).name}"
    return f"exited with code {status >> 8}"


class LineReader:
    """Reads a growing file line by line.

    Args:
        path: The file.
    """

    def __init__(self, path: Path):
        self._path = path
        self._offset = 0

    def new_lines(self, *, whole_only: bool) -> Iterator[str]:
        """Yield the lines written since the last call; with `whole_only`, not an unfinished one."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if whole_only and not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line.decode("utf-8", errors="replace").rstrip("\r\n")


def follow_attempts(
    run_dir: Path, attempts: Callable[[], tuple[tuple[Attempt, ...], bool]], pause: Callable[[], None] | None
) -> Iterator[str]:
    """Yield rank 0's lines of one attempt after the other.

    Args:
        run_dir: The job's.
        attempts: Returns the attempts so far, and whether the job has ended.
        pause: Waits a moment before the next look; None looks once.
    """
    index, reader = 0, None
    while True:
        known, ended = attempts()
        over = ended or pause is None
        if index < len(known):
            current = known[index]
            path = worker_log(run_dir, current, current.leader, 0, "stdout.log")
            reader = reader or (LineReader(path) if path else None)
            complete = over or index + 1 < len(known)
            if reader:
                yield from reader.new_lines(whole_only=not complete)
            if complete:
                index, reader = index + 1, None
                continue
        if over:
            return
        if pause:
            pause()
