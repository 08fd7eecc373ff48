"""A training job's description, kept in a file of the run folder, and the calls that follow a job, answered from it.

Source: Amazon SageMaker API, DescribeTrainingJob, SecondaryStatusTransition.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.backends.sagemaker.client import Refused
from launcher.backends.sagemaker.follow import LEFT_OUT
from launcher.common import redaction
from launcher.common.locks import is_alive
from launcher.common.names import LOG_DIR
from launcher.common.problems import fail
from launcher.operator.snapshot import OPERATOR_LOG
from launcher.runtime.durable import write_atomically

DESCRIPTION_FILE = "training-job.json"
PID_FILE = "operator.pid"
"""File in the run folder: the operator's process group id on this machine."""

ACCOUNT, REGION = "000000000000", "us-east-1"
"""Account and default region of jobs that AWS never sees."""

MOST_REASON = 1024
"""Maximum length of a FailureReason. Source: DescribeTrainingJob."""

_MOST_BYTES = 1 << 20
"""Maximum size of a page of log lines. Source: GetLogEvents."""

_MOST_NOTES = 10
"""Number of omitted files that a description names."""

_MESSAGES = {
    "Starting": "Preparing the hosts",
    "Downloading": "Downloading input data",
    "Training": "Training in progress",
    "Stopping": "Stopping the training job",
    "Uploading": "Uploading generated training model",
    "Completed": "Training job completed",
    "Failed": "Training job failed",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job ran longer than MaxRuntimeInSeconds, and was stopped",
}
_STATUSES = {"Completed": "Completed", "Failed": "Failed", "Stopped": "Stopped", "MaxRuntimeExceeded": "Stopped"}
"""TrainingJobStatus of each final SecondaryStatus."""


@dataclass(slots=True)
class Record:
    """A job's description while it runs; each change is written before it takes effect.

    Args:
        fields: The description; times are seconds since the epoch.
    """

    path: Path
    fields: dict[str, Any]
    is_stopping: bool = False

    def enter(self, secondary: str, note: str = "") -> None:
        """Begin a secondary status; `note` is appended to its message."""
        now, transitions = time.time(), self.fields["SecondaryStatusTransitions"]
        if transitions:
            transitions[-1].setdefault("EndTime", now)
        message = "; ".join(filter(None, (_MESSAGES[secondary], note)))
        transitions.append({"Status": secondary, "StartTime": now, "StatusMessage": message})
        running = "Stopping" if self.is_stopping or secondary == "Stopping" else "InProgress"
        self.is_stopping = running == "Stopping"
        final = _STATUSES.get(secondary)
        self.fields |= {"SecondaryStatus": secondary, "TrainingJobStatus": final or running, "LastModifiedTime": now}
        if secondary == "Training":
            self.fields.setdefault("TrainingStartTime", now)
        if final:
            self.fields["TrainingEndTime"] = transitions[-1]["EndTime"] = now
        self._write()

    def leave_out(self, notes: Sequence[str]) -> None:
        """Add the output that is not kept to the current status and to the job; the log lists all of it."""
        if not notes:
            return
        further = [f"and {len(notes) - _MOST_NOTES} more, in {OPERATOR_LOG}"] if len(notes) > _MOST_NOTES else []
        text = redaction.masked("; ".join((*notes[:_MOST_NOTES], *further)))
        self.fields["SecondaryStatusTransitions"][-1]["StatusMessage"] += f"; {text}"
        self.fields[LEFT_OUT] = f"left out: {text}"
        self._write()

    def fail(self, reason: str) -> None:
        """Record why the job fails."""
        self.fields["FailureReason"] = redaction.masked(reason)[:MOST_REASON]

    def _write(self) -> None:
        text = json.dumps(self.fields, indent=1, ensure_ascii=False)
        content = text.encode(errors="replace")  # a file's name may not be UTF-8
        write_atomically(self.path, lambda file: file.write(content))


def begin(run_dir: Path, request: Mapping[str, Any], region: str) -> Record:
    """Return the record of a job that is about to start."""
    arn = f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{request['TrainingJobName']}"
    own = {"TrainingJobArn": arn, "SecondaryStatusTransitions": [], "CreationTime": time.time()}
    return Record(run_dir / DESCRIPTION_FILE, {**request, **own})


def read(run_dir: Path) -> dict[str, Any] | None:
    """Return a job's description with times as boto3 returns them; None if there is none.

    Raises:
        ValueError: It is damaged.
    """
    try:
        found = json.loads((run_dir / DESCRIPTION_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return _timed(found) | {"SecondaryStatusTransitions": [_timed(t) for t in found["SecondaryStatusTransitions"]]}


def _timed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: datetime.fromtimestamp(value, UTC) if name.endswith("Time") else value for name, value in fields.items()
    }


@dataclass(frozen=True, slots=True)
class LocalServices:
    """SageMaker and CloudWatch Logs for one job."""

    run_dir: Path

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation of a service; both names are boto3's.

        Raises:
            Refused: No such job or stream exists, or the job has ended.
            ProblemsFound: The job's record is damaged (E414).
        """
        calls = {
            "describe_training_job": self._describe,
            "stop_training_job": self._stop,
            "describe_log_streams": self._streams,
            "get_log_events": self._events,
        }
        return calls[operation](arguments)

    def _describe(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        # First the lock, then the file: a dead operator no longer changes it.
        is_running = is_alive(self.run_dir)
        try:
            found = read(self.run_dir)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            path, remedy = str(self.run_dir / DESCRIPTION_FILE), "recipes launch <bundle> --again runs the job again"
            raise fail("E414", path, "is damaged: the state of its job cannot be read", remedy=remedy) from error
        if found is None:
            raise Refused("ResourceNotFound", f"{arguments['TrainingJobName']} was never started", 400)
        if is_running or found["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"):
            return found
        what = "InternalServerError: the process that ran the job ended without reporting a result"
        reason = f"{what}; see {self.run_dir / OPERATOR_LOG}"
        return found | {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": reason}

    def _stop(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if not is_alive(self.run_dir):
            raise Refused("ValidationException", f"{arguments['TrainingJobName']} has ended", 400)
        group = int((self.run_dir / PID_FILE).read_text(encoding="ascii"))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)
        return {}

    def _streams(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        prefix = arguments["logStreamNamePrefix"]
        logs = sorted((self.run_dir / LOG_DIR).glob("*.log"))
        return {"logStreams": [{"logStreamName": f"{prefix}{path.stem}"} for path in logs]}

    def _events(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return complete lines from the token's position; after the job has ended, also an incomplete last line."""
        is_running = is_alive(self.run_dir)
        name = arguments["logStreamName"].rpartition("/")[2]
        offset = int(arguments.get("nextToken", 0))
        with (self.run_dir / LOG_DIR / f"{name}.log").open("rb") as file:
            file.seek(offset)
            found = file.read(_MOST_BYTES)
        page = found[: found.rfind(b"\n") + 1]
        is_at_end = len(found) < _MOST_BYTES
        # Nothing follows the last line of a job that has ended, and a line may be longer than a page.
        if (is_at_end and not is_running) or not (is_at_end or page):
            page = found
        text = page.decode(errors="replace")
        lines = text.removesuffix("\n").split("\n") if text else []
        return {"events": [{"message": line} for line in lines], "nextForwardToken": str(offset + len(page))}
