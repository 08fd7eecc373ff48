"""Metrics: a file that holds each step once, and a thread that carries it to MLflow.

Training only ever appends a line. Whatever reaches the tracking server late, twice or not at all is
settled between the file, the acknowledged offset beside it and the server.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher import contract
from launcher.runtime.durable import write_text

METRIC_NAMES = ("learning_rate", "world_size", "samples_per_s", "loss")
"""Sent for each step. Loss comes last: a step whose loss is there was sent whole."""

STEPS_PER_CALL = 250
"""Steps per `log_batch`, of four metrics each.

Source: MLflow REST API, Log Batch, request limits: 1000 metrics a request.
"""

POLL_INTERVAL_S = 1.0
MAX_BACKOFF_S = 60.0
REQUEST_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""MLflow's own defaults retry for minutes inside one call; the retries here are the ones that count."""


class TrackingUnavailable(RuntimeError):
    """The tracking server did not take the metrics."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One optimizer step.

    Args:
        step: From 1.
        loss: Mean over the samples of the step.
        samples: Samples of the step, over all ranks.
        samples_per_s: Over all ranks.
        time: Seconds since the epoch, at the end of the step.
    """

    step: int
    loss: float
    learning_rate: float
    world_size: int
    nodes: int
    samples_per_s: float
    samples: int
    time: float


class MetricsFile:
    """Appends steps to the metrics file of a run; a step that is already there is not written again.

    A torn last line, left by a process that was killed, is dropped.
    """

    def __init__(self, run_dir: Path):
        run_dir.mkdir(parents=True, exist_ok=True)
        self._file = (run_dir / contract.METRICS_FILE).open("a+b")
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            self._file.truncate(self._file.tell() - len(lines.pop()))
        self.last_step = json.loads(lines[-1])["step"] if lines else 0

    def append(self, metrics: StepMetrics) -> bool:
        """Write one line and flush it; return False for a step that the file already holds."""
        if metrics.step <= self.last_step:
            return False
        self._file.write(json.dumps(asdict(metrics)).encode() + b"\n")
        self._file.flush()
        self.last_step = metrics.step
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Courier:
    """Carries the lines after the acknowledged offset to one MLflow run."""

    def __init__(self, run_dir: Path, tracking_uri: str | None, run_id: str):
        self._metrics_path = run_dir / contract.METRICS_FILE
        self._offset_path = run_dir / contract.SHIPPED_FILE
        self._tracking_uri = tracking_uri
        self._run_id = run_id
        self._client: Any = None
        self._last_acknowledged: int | None = None

    def deliver(self) -> int:
        """Send every complete line that is not acknowledged yet and return how many were sent.

        Raises:
            TrackingUnavailable: The server refused or could not be reached. What it acknowledged
                before is kept.
        """
        sent = 0
        for records, end in self._batches():
            if self._client is None:
                self._connect()
            # Unknown after a failure: the server may have taken a batch whose answer was lost.
            if self._last_acknowledged is None:
                self._last_acknowledged = self._last_step_of_server()
            new = [record for record in records if record["step"] > self._last_acknowledged]
            self._log(new)
            sent += len(new)
            self._last_acknowledged = max(self._last_acknowledged, records[-1]["step"])
            write_text(self._offset_path, str(end))
        return sent

    def _batches(self) -> Iterator[tuple[list[dict[str, Any]], int]]:
        if not self._metrics_path.exists():
            return
        offset = int(self._offset_path.read_text()) if self._offset_path.exists() else 0
        with self._metrics_path.open("rb") as file:
            file.seek(offset)
            lines = [line for line in file if line.endswith(b"\n")]
        for start in range(0, len(lines), STEPS_PER_CALL):
            chosen = lines[start : start + STEPS_PER_CALL]
            offset += sum(map(len, chosen))
            yield [json.loads(line) for line in chosen], offset

    def _connect(self) -> None:
        for name, value in REQUEST_SETTINGS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            self._client = MlflowClient(tracking_uri=self._tracking_uri)
        except (MlflowException, OSError) as error:
            raise TrackingUnavailable(str(error)) from error

    def _last_step_of_server(self) -> int:
        from mlflow.exceptions import MlflowException

        try:
            history = self._client.get_metric_history(self._run_id, METRIC_NAMES[-1])
        except (MlflowException, OSError) as error:
            raise TrackingUnavailable(str(error)) from error
        return max((metric.step for metric in history), default=0)

    def _log(self, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        points = [
            Metric(name, record[name], int(record["time"] * 1000), record["step"])
            for record in records
            for name in METRIC_NAMES
        ]
        try:
            self._client.log_batch(self._run_id, metrics=points)
        except (MlflowException, OSError) as error:
            self._last_acknowledged = None
            raise TrackingUnavailable(str(error)) from error


def ship(run_dir: Path, tracking_uri: str | None, run_id: str) -> int:
    """Send every step that a run's metrics file holds and its MLflow run does not; return how many.

    For use once the workers are gone: only one process may ship a run at a time.

    Raises:
        TrackingUnavailable: The server refused or could not be reached.
    """
    return _Courier(run_dir, tracking_uri, run_id).deliver()


class Shipper:
    """Follows the metrics file in a thread and sends what is new. Training never waits for it.

    MLflow, which takes seconds to import, is imported by the thread once there is a first step to send.
    """

    def __init__(self, run_dir: Path, tracking_uri: str | None, run_id: str):
        self._courier = _Courier(run_dir, tracking_uri, run_id)
        self._closing = threading.Event()
        self._told = False
        self._thread = threading.Thread(target=self._follow, name="metrics shipper", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Send what is left for at most `timeout_s` seconds; return whether all of it was sent."""
        self._closing.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _follow(self) -> None:
        wait_s = POLL_INTERVAL_S
        is_last = False
        while not is_last:
            is_last = self._closing.wait(wait_s)
            try:
                self._courier.deliver()
                wait_s = POLL_INTERVAL_S
            except TrackingUnavailable as error:
                self._tell(f"the tracking server takes no metrics, training goes on: {error}")
                wait_s = min(wait_s * 2, MAX_BACKOFF_S)
            except ModuleNotFoundError as error:
                self._tell(f"metrics stay in {contract.METRICS_FILE}: {error}")
                return

    def _tell(self, message: str) -> None:
        if not self._told:
            print(message, file=sys.stderr, flush=True)
        self._told = True


class Reporter:
    """Rank 0's metrics: the file, and the shipper where there is an MLflow run.

    Args:
        run_dir: Folder of the metrics file.
        tracking_uri: MLflow's; None leaves it to MLflow.
        run_id: MLflow run; empty for none.
    """

    def __init__(self, run_dir: Path, tracking_uri: str | None, run_id: str):
        self._file = MetricsFile(run_dir)
        self._new_shipper = (lambda: Shipper(run_dir, tracking_uri, run_id)) if run_id else None
        self._shipper: Shipper | None = None

    def report(self, metrics: StepMetrics) -> None:
        """Write a step down; the shipper picks it up."""
        self._file.append(metrics)
        # After the first step: importing MLflow in a thread still takes this process's time.
        if self._new_shipper and self._shipper is None:
            self._shipper = self._new_shipper()

    def close(self, timeout_s: float) -> None:
        """Stop, giving the shipper at most `timeout_s` seconds for what it has not sent."""
        self._file.close()
        if self._shipper and not self._shipper.close(timeout_s):
            print("some metrics are not sent yet; they are kept", file=sys.stderr, flush=True)
