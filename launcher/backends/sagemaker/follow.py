"""What following a training job needs of SageMaker: its description as a status and events, and its log streams.

CloudWatch keeps one stream per host and start, which separates neither a host's ranks nor errors from output.
Lines with mpirun's prefix, all in the first host's stream, belong to the rank it names; any other line counts for the
first rank of its host.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from launcher.backends.sagemaker import constraints
from launcher.backends.sagemaker.client import Refused, Services, api_errors_as_problems
from launcher.common.problems import fail
from launcher.model.following import (
    LateEnd,
    event_line,
    followed,
    refuse_unknown_attempt,
    refuse_unknown_ranks,
    selected_ranks,
)
from launcher.model.job_spec import LAST_LINES, JobEvent, JobState, JobStatus, LogLine, LogSelection
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

_STATES = {
    "InProgress": JobState.RUNNING,
    "Stopping": JobState.RUNNING,
    "Completed": JobState.SUCCEEDED,
    "Failed": JobState.FAILED,
    "Stopped": JobState.CANCELLED,
    "Deleting": JobState.DELETED,
}
"""TrainingJobStatus to state. Source: Amazon SageMaker API, DescribeTrainingJob."""

_TRAINING = ("Training", "Uploading", "Updating", "Stopping")
"""SecondaryStatus of a job that is training."""
_OUT_OF_TIME = ("MaxRuntimeExceeded", "MaxWaitTimeExceeded")
"""SecondaryStatus of a job that its own time limit stopped, not a user."""
_WARNINGS = ("Failed", "Interrupted", "Restarting", *_OUT_OF_TIME)

LEFT_OUT = "LeftOut"
"""Field that lists output that was not kept, in the description of a job of this machine. AWS has no such field."""

_DELETED = JobStatus(JobState.DELETED, 0, "no longer exists in SageMaker")


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


@dataclass(slots=True)
class TrainingJob:
    """A submitted job: its name, the placement of its ranks, and how it was last described.

    Args:
        processes: Worker processes per instance.
        arn: Distinguishes it from other jobs of the same name; "" if unknown.
        seen: Messages of the events yielded so far, by time and kind.
    """

    services: Services
    name: str
    nodes: int
    processes: int
    arn: str
    seen: dict[tuple[float, str], str] = field(default_factory=dict)
    _found: Mapping[str, Any] | None = None

    @api_errors_as_problems()
    def status(self) -> JobStatus:
        """Query the job's status and return it; DELETED also if another job has its name."""
        found = describe(self.services, self.name)
        self._found = found if found and (not self.arn or found["TrainingJobArn"] == self.arn) else None
        return read_status(self._found) if self._found else _DELETED

    def has_ended(self) -> bool:
        """Query the job's status and return whether it is final."""
        return self.status().state.is_final

    def new_events(self) -> Iterator[JobEvent]:
        """Yield the new events of the last description, and the new part of those whose message has grown."""
        for event in _events(self._found) if self._found else ():
            key = (event.time_s, event.kind)
            before = self.seen.get(key)
            self.seen[key] = event.message
            if before is None:
                yield event
            elif event.message != before:
                yield replace(event, message=event.message.removeprefix(before).lstrip("; "))

    @api_errors_as_problems()
    def stop(self) -> None:
        """Request the job's end; a refusal because it has ended meanwhile is a success."""
        try:
            self.services.call("sagemaker", "stop_training_job", TrainingJobName=self.name)
        except Refused:
            if not self.has_ended():
                raise

    @api_errors_as_problems()
    def refuse_unknown(self, selection: LogSelection) -> None:
        """Raise a Problem if the job cannot have the requested log lines.

        Raises:
            ProblemsFound: No such rank, attempt or stream exists.
        """
        if selection.is_stderr:
            message = "CloudWatch keeps both outputs of a host as one stream"
            raise fail("E398", "--stderr", message, remedy="leave it out")
        refuse_unknown_ranks(selection.ranks, self.nodes * self.processes)
        if selection.attempt is not None:
            refuse_unknown_attempt(selection.attempt, range(max(map(len, self.streams().values()), default=0)))

    def streams(self) -> Mapping[str, list[str]]:
        """Return each host's log streams, one for each of its starts, the oldest first; hosts in the order of ranks.

        Raises:
            Refused: CloudWatch refuses.
        """
        found: dict[str, list[str]] = {host: [] for host in host_names(self.nodes)}
        query: dict[str, Any] = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": f"{self.name}/"}
        while True:
            try:
                page = self.services.call("logs", "describe_log_streams", **query)
            except Refused as error:
                if error.code in _NOT_FOUND:  # nothing has been written yet
                    return found
                raise
            for name in (stream["logStreamName"] for stream in page["logStreams"]):
                host = name.removeprefix(f"{self.name}/").rpartition("-")[0]
                if host in found:
                    found[host].append(name)
            if not page.get("nextToken"):
                return {host: sorted(names) for host, names in found.items()}
            query["nextToken"] = page["nextToken"]


def read_status(job: Mapping[str, Any]) -> JobStatus:
    """Return the status that SageMaker's description of a job states."""
    secondary: str = job["SecondaryStatus"]
    state = JobState.FAILED if secondary in _OUT_OF_TIME else _STATES[job["TrainingJobStatus"]]
    if state is JobState.RUNNING and secondary not in _TRAINING:
        state = JobState.PENDING
    resources = job.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or [resources]
    nodes = sum(group.get("InstanceCount") or 0 for group in groups) if state is JobState.RUNNING else 0
    # Source: RetryStrategy: the secondary status of a restarted job is Starting again.
    starts = sum(each["Status"] == "Starting" for each in _transitions(job))
    return JobStatus(state, nodes, _words(job, state), restarts=max(0, starts - 1))


def _events(job: Mapping[str, Any]) -> Iterator[JobEvent]:
    """Yield the events of a described job, oldest first."""
    for each in _transitions(job):
        name = each["Status"]
        message = each.get("StatusMessage") or _spaced(name)
        if name == "Failed" and job.get("FailureReason"):
            message = job["FailureReason"]
        is_warning = name in _WARNINGS or (name == "Uploading" and LEFT_OUT in job)
        yield JobEvent(each["StartTime"].timestamp(), name, message, is_warning=is_warning)


def _words(job: Mapping[str, Any], state: JobState) -> str:
    """Return the reason a job is pending, or why it ended."""
    secondary: str = job["SecondaryStatus"]
    last: str | None = next((each.get("StatusMessage") for each in reversed(_transitions(job))), None)
    if state is JobState.FAILED:
        reason: str | None = job.get("FailureReason")
        return reason or last or _spaced(secondary)
    if state is JobState.SUCCEEDED:
        return str(job.get(LEFT_OUT, ""))
    if state is JobState.RUNNING and secondary == "Training":
        return ""
    return f"{_spaced(secondary)}: {last}" if last else _spaced(secondary)


def _spaced(name: str) -> str:
    """Split a CamelCase name into words; consecutive capitals stay together."""
    words = re.sub("(?<=[^A-Z])(?=[A-Z])", " ", name).split()
    return " ".join(word if word.isupper() or word == "MLInstances" else word.lower() for word in words)


def _transitions(job: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    transitions: Sequence[Mapping[str, Any]] = job.get("SecondaryStatusTransitions") or ()
    return sorted(transitions, key=lambda each: each["StartTime"])


def events(job: TrainingJob, poll_s: float, *, follow: bool) -> Iterator[JobEvent]:
    """Yield a job's events; with `follow`, until it has ended."""
    return followed(
        lambda _is_last: job.new_events(), lambda: job.has_ended() or not follow, partial(time.sleep, poll_s)
    )


def logs(job: TrainingJob, selection: LogSelection, poll_s: float, *, follow: bool) -> Iterator[LogLine]:
    """Yield the selected log lines; with `follow`, also the job's events, until it has ended."""
    reader, has_ended = _Reader(job, selection), LateEnd(job.has_ended, _LATE_LOOKS)

    def new(_is_last: bool) -> Iterator[LogLine]:
        with api_errors_as_problems():
            yield from reader.lines()
        if selection.attempt is None:  # without `follow` nothing was described, so there are none
            yield from map(event_line, job.new_events())

    return followed(new, lambda: not follow or has_ended(), partial(time.sleep, poll_s))


@dataclass(slots=True)
class _Reader:
    """Reads each stream from where the last read ended.

    Args:
        tokens: Token of each stream's next page, by stream.
        headed: Streams whose heading has been yielded.
    """

    job: TrainingJob
    selection: LogSelection
    tokens: dict[str, str] = field(default_factory=dict)
    headed: set[str] = field(default_factory=set)

    def lines(self) -> Iterator[LogLine]:
        """Yield the selected lines that are new, host by host, a heading before the first one of each stream."""
        for number, (host, streams) in enumerate(self.job.streams().items()):
            first = number * self.job.processes
            ranks = selected_ranks(range(first, first + self.job.processes), self.selection)
            if number and not ranks:
                continue
            for attempt, stream in enumerate(streams):
                if self.selection.attempt not in (None, attempt):
                    continue
                for event in self._new(stream):
                    if (line := self._line(event, attempt, host, ranks)) is None:
                        continue
                    if self.selection.has_headings and stream not in self.headed:
                        self.headed.add(stream)
                        yield LogLine("attempt", None, f"attempt {attempt} on {host}", attempt, host)
                    yield line

    def _line(self, event: Mapping[str, Any], attempt: int, host: str, ranks: Sequence[int]) -> LogLine | None:
        """Return an entry of a host's log as a line; None if it belongs to no selected rank."""
        text, job, time_ms = event["message"], self.job, event.get("timestamp")
        time_s = None if time_ms is None else time_ms / 1000
        found = _TAG.match(text)
        if found is None or (rank := int(found[1])) >= job.nodes * job.processes:
            return LogLine("line", ranks[0], text, attempt, host, time_s) if ranks else None
        if not selected_ranks((rank,), self.selection):
            return None
        host = host_names(job.nodes)[rank // job.processes]
        return LogLine("line", rank, text[len(found[0]) :], attempt, host, time_s, writer=f"rank {rank} on {host}")

    def _new(self, stream: str) -> Iterator[Mapping[str, Any]]:
        """Yield a stream's new entries; a repeated token marks its current end."""
        query: dict[str, Any] = {"logGroupName": LOG_GROUP, "logStreamName": stream, "startFromHead": True}
        if self.selection.is_excerpt:
            query |= {"startFromHead": False, "limit": LAST_LINES}
            yield from self.job.services.call("logs", "get_log_events", **query)["events"]
            return
        while True:
            token = self.tokens.get(stream)
            page = self.job.services.call(
                "logs", "get_log_events", **query, **({"nextToken": token} if token else {})
            )
            self.tokens[stream] = page["nextForwardToken"]
            yield from page["events"]
            if page["nextForwardToken"] == token:
                return
