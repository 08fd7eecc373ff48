"""Sends the lines of the metrics file to MLflow: each step once, even over an unreliable connection.

The file, the acknowledged offset beside it and the server's own history show which steps the server lacks.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.common import names
from launcher.runtime import store_errors
from launcher.runtime.durable import write_text

METRIC_NAMES = ("loss", "learning_rate", "world_size", "samples_per_s")
"""Sent for each step. The last one is never null: a step with its last metric was sent completely."""

POINTS_PER_CALL = 1000
"""Metrics per `log_batch`. Source: MLflow REST API, Log Batch, request limits."""

POLL_INTERVAL_S = 1.0
MAX_BACKOFF_S = 60.0
REQUEST_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""MLflow's defaults retry for minutes within one call; the retries here replace them."""


class TrackingUnavailable(RuntimeError):
    """The tracking server did not accept the metrics."""


def acknowledged(run_dir: Path) -> tuple[int, int]:
    """Return how many bytes of the metrics file are settled, and the number, from 1, of the curve continued there."""
    path = run_dir / names.SHIPPED_FILE
    offset, _, curve = (path.read_text(encoding="utf-8") if path.exists() else "0").partition(" ")
    return int(offset), int(curve or 1)


def acknowledge(run_dir: Path, offset: int, curve: int) -> None:
    """Record that `offset` bytes of the metrics file are settled, and the number of the curve continued there."""
    write_text(run_dir / names.SHIPPED_FILE, f"{offset} {curve}")


def prefix(run_dir: Path) -> str:
    """Return the prefix of names at the tracking server: empty, or `launch-2/` after a start from scratch."""
    curve = acknowledged(run_dir)[1]
    return f"launch-{curve}/" if curve > 1 else ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the metrics file: a step, or metrics reported after it; `values` in the order of sending."""

    step: int
    time_ms: int
    values: dict[str, float | None]
    is_step: bool


def parsed(line: bytes) -> Line | None:
    """Return a line of the metrics file; None if it is malformed, as a script or a full disk may leave one, or empty
    of metrics."""
    try:
        fields = json.loads(line)
        values: dict[str, float | None] = {name: float(value) for name, value in fields.get("further", {}).items()}
        is_step = METRIC_NAMES[-1] in fields
        if not is_step and not values:
            return None
        if is_step:  # after the others: the last metric marks the step as sent
            values |= {name: None if fields[name] is None else float(fields[name]) for name in METRIC_NAMES}
        return Line(int(fields["step"]), int(fields["time"] * 1000), values, is_step)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


_Point = tuple[str, float, int, int]
"""Name, value, milliseconds since the epoch, and step of a metric."""


def _checkpoint_points(line: bytes) -> list[_Point]:
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
    """Return the complete lines of a file from `offset` on, and the offset of their end."""
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        lines = [line for line in file if line.endswith(b"\n")]
    return lines, offset + sum(map(len, lines))


def _calls(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield the lines in parts of one request each; a line is not divided."""
    call: list[Line] = []
    size = 0
    for line in lines:
        if size + len(line.values) > POINTS_PER_CALL and call:
            yield call
            call, size = [], 0
        call.append(line)
        size += len(line.values)
    if call:
        yield call


@contextmanager
def _translated(errors: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise TrackingUnavailable(store_errors.plain(error)) from error


class _Delivery:
    """Sends the lines after the acknowledged offset to one MLflow run."""

    def __init__(self, run_dir: Path, tracking_uri: str | None, run_id: str):
        self._run_dir, self._tracking_uri, self._run_id = run_dir, tracking_uri, run_id
        self._curve, self._prefix = acknowledged(run_dir)[1], prefix(run_dir)
        self._client: Any = None
        self._errors: tuple[type[Exception], ...] = (OSError,)
        self._last_acknowledged: int | None = None
        self._last_further: dict[str, int] = {}
        self._sent_tags = b""

    def deliver(self) -> int:
        """Send all lines that are not acknowledged yet; return the number of steps sent.

        TrackingUnavailable keeps earlier acknowledgements.
        """
        self._deliver_tags()
        sent = self._deliver_steps()
        # The server treats a repeated point as the same one: nothing is asked of it first.
        shipped = self._run_dir / names.CHECKPOINTS_SHIPPED_FILE
        offset = int(shipped.read_text(encoding="utf-8")) if shipped.exists() else 0
        lines, end = _lines_after(self._run_dir / names.CHECKPOINTS_FILE, offset)
        self._log_points([point for line in lines for point in _checkpoint_points(line)])
        if end > offset:
            write_text(shipped, str(end))
        return sent

    def _deliver_tags(self) -> None:
        """Send the tags, once for each process: the server replaces a repeated tag."""
        path = self._run_dir / names.TAGS_FILE
        text = path.read_bytes() if path.exists() else b""
        if text == self._sent_tags:
            return
        self._connect()
        from mlflow.entities import RunTag

        tags = [RunTag(name, str(value)) for name, value in json.loads(text).items()]
        with _translated(self._errors):
            self._client.log_batch(self._run_id, tags=tags)
        self._sent_tags = text

    def _deliver_steps(self) -> int:
        """Send every step that is not acknowledged yet and return the number of steps sent.

        If a step was repeated before it was sent, the last time counts. A step that the server has is unchanged.
        """
        raw, end = _lines_after(self._run_dir / names.METRICS_FILE, acknowledged(self._run_dir)[0])
        lines = [line for each in raw if (line := parsed(each))]
        if not lines:
            return 0
        self._connect()
        if self._last_acknowledged is None:
            self._last_acknowledged = self._last_step_of_server(METRIC_NAMES[-1])
        # In the order of steps, so that the server has every step up to its last.
        last_of_step = {line.step: line for line in lines if line.is_step}
        new = [last_of_step[step] for step in sorted(last_of_step) if step > self._last_acknowledged]
        for call in _calls(new):
            self._log(call)
        self._send_further([line for line in lines if not line.is_step])
        acknowledge(self._run_dir, end, self._curve)
        return len(new)

    def _send_further(self, lines: Sequence[Line]) -> None:
        """Send the metrics reported after a step, each name once per step."""
        last = {(line.step, name): (value, line.time_ms) for line in lines for name, value in line.values.items()}
        for name in {name for _, name in last} - set(self._last_further):
            self._last_further[name] = self._last_step_of_server(name)
        points = [
            (name, value, time_ms, step)
            for (step, name), (value, time_ms) in sorted(last.items())
            if value is not None and step > self._last_further[name]
        ]
        self._log_points(points)
        self._last_further |= {name: step for name, _, _, step in points}

    def _connect(self) -> None:
        if self._client is not None:
            return
        for name, value in REQUEST_SETTINGS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient  # start-up time: MLflow takes seconds to import

        self._errors = store_errors.raised()
        with _translated(self._errors):
            self._client = MlflowClient(tracking_uri=self._tracking_uri)

    def _last_step_of_server(self, name: str) -> int:
        with _translated(self._errors):
            history = self._client.get_metric_history(self._run_id, self._prefix + name)
        return max((metric.step for metric in history), default=0)

    def _log(self, lines: Sequence[Line]) -> None:
        values = ((name, value, line) for line in lines for name, value in line.values.items())
        self._log_points(
            [(name, value, line.time_ms, line.step) for name, value, line in values if value is not None]
        )
        self._last_acknowledged = lines[-1].step

    def _log_points(self, points: list[_Point]) -> None:
        if not points:
            return
        self._connect()
        from mlflow.entities import Metric

        metrics = [Metric(self._prefix + name, value, time_ms, step) for name, value, time_ms, step in points]
        try:
            for start in range(0, len(metrics), POINTS_PER_CALL):
                with _translated(self._errors):
                    self._client.log_batch(self._run_id, metrics=metrics[start : start + POINTS_PER_CALL])
        except TrackingUnavailable:
            # The server may have accepted a request whose answer was lost.
            self._last_acknowledged = None
            self._last_further.clear()
            raise


def ship(run_dir: Path, tracking_uri: str | None, run_id: str) -> int:
    """Send every step of a run's metrics file that its MLflow run lacks; return the number sent.

    Use it once the workers are gone: only one process may ship a run at a time.

    Raises:
        TrackingUnavailable: The server refused or is unreachable.
    """
    return _Delivery(run_dir, tracking_uri, run_id).deliver()


def log_artifacts(tracking_uri: str | None, run_id: str, files: Sequence[Path], folder: str) -> None:
    """Upload files to a run's artifacts; TrackingUnavailable also if MLflow is not installed."""
    try:
        from mlflow import MlflowClient

        errors = store_errors.raised()
    except ModuleNotFoundError as error:
        raise TrackingUnavailable(str(error)) from error
    with _translated(errors):
        for file in files:
            MlflowClient(tracking_uri=tracking_uri).log_artifact(run_id, str(file), folder)


class Shipper:
    """Follows the metrics file in a thread and sends new lines. Training never waits for it.

    The thread imports MLflow, which takes seconds, once there is a first step to send.
    """

    def __init__(self, run_dir: Path, tracking_uri: str | None, run_id: str):
        self._delivery = _Delivery(run_dir, tracking_uri, run_id)
        self._closing = threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._follow, name="metrics shipper", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether it was closed and sends nothing any more."""
        return not self._thread.is_alive()

    def close(self, timeout_s: float) -> bool:
        """Send the rest for at most `timeout_s` seconds; return whether all was sent."""
        self._closing.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _follow(self) -> None:
        wait_s = POLL_INTERVAL_S
        is_last = False
        while not is_last:
            is_last = self._closing.wait(wait_s)
            try:
                self._delivery.deliver()
                wait_s = POLL_INTERVAL_S
            except TrackingUnavailable as error:
                self._warn(f"the tracking server does not accept metrics; training continues: {error}")
                wait_s = min(wait_s * 2, MAX_BACKOFF_S)
            except ModuleNotFoundError as error:
                self._warn(f"metrics stay in {names.METRICS_FILE}: {error}")
                return

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            print(message, file=sys.stderr, flush=True)
        self._has_warned = True
