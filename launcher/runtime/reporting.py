"""Metrics: a file of the steps as they happened, and a thread that carries each step once to MLflow.

Training only ever appends a line; a step that is redone after a fault gets another. Whatever reaches the
tracking server late, twice or not at all is settled between the file, the acknowledged offset beside it
and the server.

A job has one MLflow run, in which a step is there once. A launch that starts training anew would be lost among
the steps of the one before it: its curves get names of their own, `launch-2/loss`. Steps of the old curve that
the server had not acknowledged by then stay in the file only.
"""

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from launcher import contract
from launcher.runtime.durable import write_text
from launcher.runtime.starts import Start

METRIC_NAMES = ("loss", "learning_rate", "world_size", "samples_per_s")
"""Sent for each step. The last one is never null: a step whose last metric is there was sent whole."""

STEPS_PER_CALL = 250
"""Steps per `log_batch`, of four metrics each.

Source: MLflow REST API, Log Batch, request limits: 1000 metrics a request.
"""

POINTS_PER_CALL = STEPS_PER_CALL * len(METRIC_NAMES)

TAIL_BYTES = 4096
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
        loss: Mean over the samples of the step; None where the script tells none.
        learning_rate: Of the optimizer's first group; None where no optimizer stepped.
        samples: Samples of the step, over all ranks.
        samples_per_s: Over all ranks.
        time: Seconds since the epoch, at the end of the step.
        attempt: Starts of the workers before the one that did it.
        cursor: Samples consumed since the start of training, this step's included.
        data_s: Seconds of the step in which rank 0 waited for its data.
    """

    step: int
    loss: float | None
    learning_rate: float | None
    world_size: int
    nodes: int
    samples_per_s: float
    samples: int
    time: float
    attempt: int
    cursor: int
    data_s: float = 0.0


class MetricsFile:
    """Appends steps to the metrics file of a run.

    A torn last line, left by a process that was killed, is dropped.
    """

    def __init__(self, run_dir: Path):
        run_dir.mkdir(parents=True, exist_ok=True)
        self._file = (run_dir / contract.METRICS_FILE).open("a+b")
        self._file.truncate(_whole_lines(self._file))

    @property
    def size(self) -> int:
        """Bytes of the lines that are there."""
        return self._file.seek(0, os.SEEK_END)

    def append(self, metrics: StepMetrics) -> None:
        """Write one line and flush it."""
        self._file.write(json.dumps(asdict(metrics)).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _whole_lines(file: BinaryIO) -> int:
    """Return where the last complete line of `file` ends, in bytes."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(end - TAIL_BYTES, 0)
        file.seek(start)
        if newline := file.read(end - start).rfind(b"\n") + 1:
            return start + newline
        end = start
    return 0


def _acknowledged(run_dir: Path) -> tuple[int, int]:
    """Return how many bytes of the metrics file are settled, and which curve goes on there, from 1."""
    path = run_dir / contract.SHIPPED_FILE
    offset, _, curve = (path.read_text(encoding="utf-8") if path.exists() else "0").partition(" ")
    return int(offset), int(curve or 1)


def _acknowledge(run_dir: Path, offset: int, curve: int) -> None:
    write_text(run_dir / contract.SHIPPED_FILE, f"{offset} {curve}")


def prefix(run_dir: Path) -> str:
    """Return what the names at the tracking server begin with: nothing, or `launch-2/` after a start anew."""
    curve = _acknowledged(run_dir)[1]
    return f"launch-{curve}/" if curve > 1 else ""


def _step_record(line: bytes) -> dict[str, Any] | None:
    """Return the step of a line and its metrics, the time in milliseconds; None for a malformed line."""
    try:
        fields = json.loads(line)
        values = {name: None if fields[name] is None else float(fields[name]) for name in METRIC_NAMES}
        return values | {"step": int(fields["step"]), "time_ms": int(fields["time"] * 1000)}
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


_Point = tuple[str, float, int, int]
"""Name, value, milliseconds since the epoch, and step of a metric."""


def _checkpoint_points(line: bytes) -> list[_Point]:
    """Return the metrics of a record of a save or a load; none for a malformed line."""
    try:
        fields = json.loads(line)
        name, time_ms, step = f"checkpoint/{fields['tier']}", int(fields["time"] * 1000), int(fields["step"])
        if fields["event"] not in ("saved", "loaded"):
            return [(f"{name}/failed", 1.0, time_ms, step)] if fields["event"] == "failed" else []
        size, seconds = float(fields["num_bytes"]), float(fields["seconds"])
        values = {"bytes": size, "seconds": seconds, "gb_per_s": size / seconds / 1e9 if seconds else 0.0}
        values |= {} if fields["blocked_s"] is None else {"blocked_seconds": float(fields["blocked_s"])}
        verb = fields["event"].removesuffix("ed").replace("sav", "save")
        return [(f"{name}/{verb}_{key}", value, time_ms, step) for key, value in values.items()]
    except (ValueError, KeyError, TypeError, OverflowError):
        return []


def _lines_after(path: Path, offset: int) -> tuple[list[bytes], int]:
    """Return the complete lines of a file from `offset` on, and where they end."""
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        lines = [line for line in file if line.endswith(b"\n")]
    return lines, offset + sum(map(len, lines))


class _Courier:
    """Carries the lines after the acknowledged offset to one MLflow run."""

    def __init__(self, run_dir: Path, tracking_uri: str | None, run_id: str):
        self._run_dir = run_dir
        self._curve = _acknowledged(run_dir)[1]
        self._prefix = prefix(run_dir)
        self._tracking_uri = tracking_uri
        self._run_id = run_id
        self._client: Any = None
        self._last_acknowledged: int | None = None

    def deliver(self) -> int:
        """Send all that is not acknowledged yet; return how many steps were sent.

        Raises:
            TrackingUnavailable: The server refused or could not be reached. What it acknowledged
                before is kept.
        """
        sent = self._deliver_steps()
        self._deliver_checkpoints()
        return sent

    def _deliver_checkpoints(self) -> None:
        """Send what was done to checkpoints; the server takes a point that it has already for the same."""
        told = self._run_dir / contract.CHECKPOINTS_SHIPPED_FILE
        offset = int(told.read_text(encoding="utf-8")) if told.exists() else 0
        lines, end = _lines_after(self._run_dir / contract.CHECKPOINTS_FILE, offset)
        points = [point for line in lines for point in _checkpoint_points(line)]
        if points and self._client is None:
            self._connect()
        for start in range(0, len(points), POINTS_PER_CALL):
            self._log_points(points[start : start + POINTS_PER_CALL])
        if end > offset:
            write_text(told, str(end))

    def _deliver_steps(self) -> int:
        """Send every step of the lines that are not acknowledged yet and return how many were sent.

        Of a step that was done again before it was sent, the last time counts. One that the server has
        stays as it is.

        Raises:
            TrackingUnavailable: The server refused or could not be reached. What it acknowledged
                before is kept.
        """
        last_of_step, end = self._unacknowledged()
        if not last_of_step:
            return 0
        if self._client is None:
            self._connect()
        # Unknown after a failure: the server may have taken a batch whose answer was lost.
        if self._last_acknowledged is None:
            self._last_acknowledged = self._last_step_of_server()
        # In the order of steps, so that the server has every step up to its last.
        new = [last_of_step[step] for step in sorted(last_of_step) if step > self._last_acknowledged]
        for start in range(0, len(new), STEPS_PER_CALL):
            self._log(new[start : start + STEPS_PER_CALL])
        _acknowledge(self._run_dir, end, self._curve)
        return len(new)

    def _unacknowledged(self) -> tuple[dict[int, dict[str, Any]], int]:
        """Return the last line of each step after the acknowledged offset, and where these lines end.

        A malformed line, of a script's own or of a disk that was full, is passed over.
        """
        last_of_step: dict[int, dict[str, Any]] = {}
        lines, end = _lines_after(self._run_dir / contract.METRICS_FILE, _acknowledged(self._run_dir)[0])
        for line in lines:
            if record := _step_record(line):
                last_of_step[record["step"]] = record
        return last_of_step, end

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
            history = self._client.get_metric_history(self._run_id, self._prefix + METRIC_NAMES[-1])
        except (MlflowException, OSError) as error:
            raise TrackingUnavailable(str(error)) from error
        return max((metric.step for metric in history), default=0)

    def _log(self, records: list[dict[str, Any]]) -> None:
        points = [
            (name, record[name], record["time_ms"], record["step"])
            for record in records
            for name in METRIC_NAMES
            if record[name] is not None
        ]
        self._log_points(points)
        self._last_acknowledged = records[-1]["step"]

    def _log_points(self, points: list[_Point]) -> None:
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        try:
            metrics = [Metric(self._prefix + name, *others) for name, *others in points]
            self._client.log_batch(self._run_id, metrics=metrics)
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
    """Rank 0's files, and the shipper where there is an MLflow run. Who closed it may go on to report.

    Args:
        run_dir: Folder of the files.
        tracking_uri: MLflow's; None leaves it to MLflow.
        run_id: MLflow run; empty for none.
    """

    def __init__(self, run_dir: Path, tracking_uri: str | None = None, run_id: str = ""):
        self._run_dir = run_dir
        self._file: MetricsFile | None = MetricsFile(run_dir)
        self._new_shipper = (lambda: Shipper(run_dir, tracking_uri, run_id)) if run_id else None
        self._shipper: Shipper | None = None

    def begin_anew(self) -> None:
        """Give the steps from the next one on curves of their own at the tracking server; before any `report`."""
        if self._new_shipper and self._file and self._file.size:
            _acknowledge(self._run_dir, self._file.size, _acknowledged(self._run_dir)[1] + 1)

    def started(self, start: Start) -> None:
        """Write down how this start of the workers went."""
        start.append(self._run_dir)

    def report(self, metrics: StepMetrics) -> None:
        """Write a step down; the shipper picks it up."""
        if self._file is None:
            self._file = MetricsFile(self._run_dir)
        self._file.append(metrics)
        # After the first step: importing MLflow in a thread still takes this process's time.
        if self._new_shipper and self._shipper is None:
            self._shipper = self._new_shipper()

    def saved(self, step: int, cursor: int) -> None:
        """Record a published checkpoint: what a failed job has done after its last one is lost.

        Args:
            step: Last optimizer step in it.
            cursor: Samples consumed by then.
        """
        record = {"time": time.time(), "event": "saved", "step": step, "cursor": cursor, "tier": "training_dir"}
        with (self._run_dir / contract.CHECKPOINTS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def close(self, timeout_s: float) -> None:
        """Stop, giving the shipper at most `timeout_s` seconds for what it has not sent."""
        if self._file:
            self._file.close()
            self._file = None
        if self._shipper and self._shipper.close(timeout_s):
            self._shipper = None
        elif self._shipper:  # it stays: a second one beside it would send twice
            print("some metrics are not sent yet; they are kept", file=sys.stderr, flush=True)
