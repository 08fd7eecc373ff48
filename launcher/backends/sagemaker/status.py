"""SageMaker's description of a training job as a state and a short message. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.model.job_spec import JobEvent, JobState, JobStatus

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

DELETED = JobStatus(JobState.DELETED, 0, "no longer exists in SageMaker")


def read(job: Mapping[str, Any]) -> JobStatus:
    """Return the status of a described job."""
    secondary: str = job["SecondaryStatus"]
    state = JobState.FAILED if secondary in _OUT_OF_TIME else _STATES[job["TrainingJobStatus"]]
    if state is JobState.RUNNING and secondary not in _TRAINING:
        state = JobState.PENDING
    nodes = 0 if state is not JobState.RUNNING else num_instances(job.get("ResourceConfig") or {})
    return JobStatus(state, nodes, _words(job, state), restarts=_restarts(_transitions(job)))


def num_instances(resources: Mapping[str, Any]) -> int:
    """Return the instances of a ResourceConfig."""
    groups = resources.get("InstanceGroups") or ()
    return sum(group["InstanceCount"] for group in groups) or resources.get("InstanceCount") or 0


def events(job: Mapping[str, Any]) -> Iterator[JobEvent]:
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
    words = "".join(
        f" {c}" if c.isupper() and i and not name[i - 1].isupper() else c for i, c in enumerate(name)
    ).split()
    return " ".join(word if word.isupper() or word == "MLInstances" else word.lower() for word in words)


def _transitions(job: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    transitions: Sequence[Mapping[str, Any]] = job.get("SecondaryStatusTransitions") or ()
    return sorted(transitions, key=lambda each: each["StartTime"])


def _restarts(transitions: Sequence[Mapping[str, Any]]) -> int:
    """Return how often a job restarted. Source: RetryStrategy: its secondary status is Starting again."""
    return max(0, len([each for each in transitions if each["Status"] == "Starting"]) - 1)
