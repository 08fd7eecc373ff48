"""A training job's description as DescribeTrainingJob would return it, kept in a file of the run folder.

Source: Amazon SageMaker API, DescribeTrainingJob, SecondaryStatusTransition.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.backends.sagemaker.status import LEFT_OUT
from launcher.common import redaction

DESCRIPTION_FILE = "training-job.json"
OPERATOR_LOG = "operator.log"
LOG_DIR = "logs"

ACCOUNT, REGION = "000000000000", "us-east-1"
"""Account and default region of jobs that AWS never sees."""

MOST_REASON = 1024
"""Maximum length of a FailureReason. Source: DescribeTrainingJob."""

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


def arn(name: str, region: str) -> str:
    """Return the ARN of a job of this machine."""
    return f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{name}"


@dataclass(slots=True)
class Record:
    """A job's description while it runs; each change is written before it takes effect.

    Args:
        path: The file.
        fields: The description; times are seconds since the epoch.
        is_stopping: Whether the job has been requested to stop.
    """

    path: Path
    fields: dict[str, Any]
    is_stopping: bool = field(default=False)

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
        draft = self.path.with_name(f".{self.path.name}.draft")
        text = json.dumps(self.fields, indent=1, ensure_ascii=False)
        draft.write_bytes(text.encode(errors="replace"))  # a file's name may not be UTF-8
        draft.replace(self.path)  # a reader sees the old text or the new


def begin(run_dir: Path, request: Mapping[str, Any], region: str) -> Record:
    """Return the record of a job that is about to start."""
    name = request["TrainingJobName"]
    fields = {**request, "TrainingJobArn": arn(name, region), "SecondaryStatusTransitions": []}
    return Record(run_dir / DESCRIPTION_FILE, fields | {"CreationTime": time.time()})


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
