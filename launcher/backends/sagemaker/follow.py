"""Follows a training job: polls its description, and reads its hosts' log streams.

CloudWatch keeps one stream per host and start, which separates neither a host's ranks nor errors from output.
Lines with mpirun's prefix, all in the first host's stream, belong to the rank it names; any other line counts for the
first rank of its host.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.backends.sagemaker import constraints, status
from launcher.backends.sagemaker.client import Refused, Services, api_errors_as_problems
from launcher.common.problems import fail
from launcher.model.job_spec import JobEvent, JobStatus, LogSelection
from launcher.model.parallelism.ranks import host_names

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
"""Source: SageMaker AI, Amazon CloudWatch Logs for Amazon SageMaker AI."""

POLL_S = 5.0
"""Seconds between two polls of a job."""
_LATE_LOOKS = 2
"""Polls of the log after a job has ended: its last lines arrive late."""
_NOT_FOUND = ("ResourceNotFound", "ResourceNotFoundException")
_NO_JOB = (*_NOT_FOUND, "ValidationException")
"""Error codes of DescribeTrainingJob for a job that does not exist: those documented, and the one it returns.

Its only argument is a name that matches the API's pattern, so nothing else can be invalid.

Source: Amazon SageMaker API, DescribeTrainingJob; botocore's waiter EndpointDeleted, which takes ValidationException.
"""
_TAG = re.compile(r"\[\d+,(?:mpirank:)?(\d+)(?:,algo-\d+)?\]<std(?:out|err)>:?")
"""Prefix of a line by mpirun, or the toolkit's version of it; its host number is wrong from ten on."""


@dataclass(frozen=True, slots=True)
class Target:
    """A submitted job: its name and the placement of its ranks.

    Args:
        name: The training job's name.
        nodes: Number of its instances.
        processes: Worker processes per instance.
        arn: Distinguishes it from other jobs of the same name.
    """

    name: str
    nodes: int
    processes: int
    arn: str

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of its hosts in the order of their ranks."""
        return tuple(host_names(self.nodes))


def describe(connection: Services, name: str) -> dict[str, Any] | None:
    """Return SageMaker's description of a job; None if no job has that name.

    Raises:
        Refused: SageMaker refuses.
    """
    if next(constraints.faults(name, "TrainingJobName"), None):
        return None  # no job can have that name
    try:
        return connection.call("sagemaker", "describe_training_job", TrainingJobName=name)
    except Refused as error:
        if error.code in _NO_JOB:
            return None
        raise


def own(connection: Services, target: Target) -> dict[str, Any] | None:
    """Return SageMaker's description of exactly this job; None if it was deleted."""
    found = describe(connection, target.name)
    return found if found and (not target.arn or found["TrainingJobArn"] == target.arn) else None


def read_status(connection: Services, target: Target) -> JobStatus:
    """Query a job's status and return it."""
    found = own(connection, target)
    return status.read(found) if found else status.DELETED


def wait(connection: Services, target: Target, timeout_s: float | None, poll_s: float) -> Iterator[JobStatus]:
    """Yield a job's status now and after each change, up to its final one."""
    deadline = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
    seen = None
    while True:
        now = read_status(connection, target)
        if now != seen:
            yield (seen := now)
        left_s = deadline - time.monotonic()
        if now.state.is_final or left_s <= 0:
            return
        time.sleep(min(poll_s, left_s))


def events(connection: Services, target: Target, poll_s: float, *, follow: bool) -> Iterator[JobEvent]:
    """Yield a job's events; with `follow`, until it has ended."""
    seen: dict[tuple[float, str], str] = {}
    while (found := own(connection, target)) is not None:
        yield from _news(found, seen)
        if not follow or status.read(found).state.is_final:
            return
        time.sleep(poll_s)


def _news(found: Mapping[str, Any], seen: dict[tuple[float, str], str]) -> Iterator[JobEvent]:
    """Yield new events, and the new part of those whose message has grown.

    Args:
        found: The job's description.
        seen: Messages of the events yielded so far, by time and kind; updated.
    """
    for event in status.events(found):
        key = (event.time_s, event.kind)
        before = seen.get(key)
        seen[key] = event.message
        if before is None:
            yield event
        elif event.message != before:
            yield replace(event, message=event.message.removeprefix(before).lstrip("; "))


def refuse_unknown(connection: Services, target: Target, selection: LogSelection) -> None:
    """Raise a Problem if a job cannot have the requested log lines.

    Raises:
        ProblemsFound: No such rank, attempt or stream exists.
    """
    if selection.is_stderr:
        raise fail("E398", "--stderr", "CloudWatch keeps both outputs of a host as one stream", remedy="leave it out")
    most = target.nodes * target.processes - 1
    for rank in selection.ranks or ():
        if rank > most:
            raise fail("E707", "--rank", "no such rank exists", value=rank, allowed=f"0 to {most}")
    if selection.attempt is not None:
        found = _streams(connection, target)
        attempts = max(map(len, found.values()), default=0)
        if selection.attempt >= attempts:
            allowed = f"0 to {attempts - 1}" if attempts else "none yet"
            raise fail("E706", "--attempt", "no such attempt exists", value=selection.attempt, allowed=allowed)


def logs(
    connection: Services, target: Target, selection: LogSelection, poll_s: float, *, follow: bool
) -> Iterator[str]:
    """Yield the selected log lines; with `follow`, also the job's events, until it has ended."""
    reader = _Reader(connection, target, selection)
    seen: dict[tuple[float, str], str] = {}
    looks_left = _LATE_LOOKS
    while True:
        with api_errors_as_problems():
            found = own(connection, target) if follow else None
            yield from reader.lines()
        for event in _news(found, seen) if found and selection.attempt is None else ():
            yield f"{'fault' if event.is_warning else 'event'}  {event.kind}: {event.message}"
        if not follow:
            return
        if found is None or status.read(found).state.is_final:
            looks_left -= 1
            if looks_left < 0:
                return
        time.sleep(poll_s)


@dataclass(slots=True)
class _Reader:
    """Reads each stream from where the last read ended.

    Args:
        connection: The services.
        target: The job.
        selection: The lines to yield.
        tokens: Token of each stream's next page, by stream.
        headed: Streams whose heading has been yielded.
    """

    connection: Services
    target: Target
    selection: LogSelection
    tokens: dict[str, str] = field(default_factory=dict)
    headed: set[str] = field(default_factory=set)

    def lines(self) -> Iterator[str]:
        """Yield the selected lines that are new, host by host."""
        for number, (host, streams) in enumerate(_streams(self.connection, self.target).items()):
            ranks = self._selected(number * self.target.processes)
            if number and not ranks:
                continue
            for attempt, stream in enumerate(streams):
                if self.selection.attempt in (None, attempt):
                    yield from self._headed(stream, f"== attempt {attempt} on {host}", ranks)

    def _headed(self, stream: str, heading: str, ranks: Sequence[int]) -> Iterator[str]:
        """Yield the selected new lines of a stream, with its heading before the first one."""
        for line in self._new(stream):
            for shown in self._shown(line, ranks):
                if self.selection.has_headings and stream not in self.headed:
                    self.headed.add(stream)
                    yield heading
                yield shown

    def _selected(self, first: int) -> list[int]:
        """Return the selected ranks of the host whose first rank is `first`."""
        ranks = range(first, first + self.target.processes)
        return [rank for rank in ranks if self.selection.ranks is None or rank in self.selection.ranks]

    def _shown(self, line: str, ranks: Sequence[int]) -> Iterator[str]:
        """Yield a line as it is shown if it belongs to a selected rank."""
        found, target = _TAG.match(line), self.target
        rank = int(found[1]) if found else None
        if rank is None or rank >= target.nodes * target.processes:
            if ranks:
                yield f"rank {ranks[0]} | {line}" if self.selection.has_prefixes else line
        elif self.selection.ranks is None or rank in self.selection.ranks:
            text, host = line[len(found[0]) if found else 0 :], target.hosts[rank // target.processes]
            yield f"rank {rank} on {host} | {text}" if self.selection.has_prefixes else text

    def _new(self, stream: str) -> Iterator[str]:
        """Yield a stream's new lines; a repeated token marks its current end."""
        while True:
            token = self.tokens.get(stream)
            page = self.connection.call(
                "logs",
                "get_log_events",
                logGroupName=LOG_GROUP,
                logStreamName=stream,
                startFromHead=True,
                **({"nextToken": token} if token else {}),
            )
            self.tokens[stream] = page["nextForwardToken"]
            yield from (event["message"] for event in page["events"])
            if page["nextForwardToken"] == token:
                return


def _streams(connection: Services, target: Target) -> Mapping[str, list[str]]:
    """Return each host's log streams, one for each of its starts, the oldest first; hosts in the order of ranks."""
    found: dict[str, list[str]] = {host: [] for host in target.hosts}
    query: dict[str, Any] = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": f"{target.name}/"}
    while True:
        try:
            page = connection.call("logs", "describe_log_streams", **query)
        except Refused as error:
            if error.code in _NOT_FOUND:  # nothing has been written yet
                return found
            raise
        for stream in page["logStreams"]:
            name = stream["logStreamName"]
            host = name.removeprefix(f"{target.name}/").rpartition("-")[0]
            if host in found:
                found[host].append(name)
        if not page.get("nextToken"):
            return {host: sorted(names) for host, names in found.items()}
        query["nextToken"] = page["nextToken"]
