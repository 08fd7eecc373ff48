"""The calls that follow a training job, answered from the run folder of a job on this machine."""

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.backends.sagemaker.client import Refused
from launcher.backends.sagemaker_local import record
from launcher.common.job_lock import is_alive
from launcher.common.problems import fail

_MOST_BYTES = 1 << 20
"""Maximum size of a page of log lines. Source: GetLogEvents."""

PID_FILE = "operator.pid"
"""File in the run folder: the operator's process group id on this machine."""

_AGAIN = "recipes launch <bundle> runs the job again"
_DIED = "InternalServerError: the process that ran the job ended without reporting a result; see"


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
            found = record.read(self.run_dir)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            path = str(self.run_dir / record.DESCRIPTION_FILE)
            raise fail("E414", path, "is damaged: the state of its job cannot be read", remedy=_AGAIN) from error
        if found is None:
            raise Refused("ResourceNotFound", f"{arguments['TrainingJobName']} was never started", 400)
        if is_running or found["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"):
            return found
        reason = f"{_DIED} {self.run_dir / record.OPERATOR_LOG}"
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
        logs = sorted((self.run_dir / record.LOG_DIR).glob("*.log"))
        return {"logStreams": [{"logStreamName": f"{prefix}{path.stem}"} for path in logs]}

    def _events(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return complete lines from the token's position; after the job has ended, also an incomplete last line."""
        is_running = is_alive(self.run_dir)
        name = arguments["logStreamName"].rpartition("/")[2]
        offset = int(arguments.get("nextToken", 0))
        with (self.run_dir / record.LOG_DIR / f"{name}.log").open("rb") as file:
            file.seek(offset)
            read = file.read(_MOST_BYTES)
        is_partial = is_running and len(read) < _MOST_BYTES
        end = read.rfind(b"\n") + 1
        page = read[:end] if end or is_partial else read
        if not is_running and len(read) < _MOST_BYTES:
            page = read
        text = page.decode(errors="replace")
        lines = text.removesuffix("\n").split("\n") if text else []
        return {"events": [{"message": line} for line in lines], "nextForwardToken": str(offset + len(page))}
