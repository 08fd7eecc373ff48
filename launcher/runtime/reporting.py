"""Metrics: a file of the steps as they happened, from which `metric_shipping` sends each step once to MLflow.

Training only appends lines; a step that is repeated after a fault gets another line.

A job has one MLflow run, in which each step exists once. The steps of a launch that starts training from scratch
would be lost among earlier ones, so its curves get names of their own, `launch-2/loss`. Steps of the old curve that
the server has not acknowledged by then remain in the file only.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from launcher.common import names
from launcher.runtime import startup_timing
from launcher.runtime.durable import append_json, write_text
from launcher.runtime.metric_shipping import Shipper, acknowledge, acknowledged
from launcher.runtime.startup_timing import StartRecord

TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One optimizer step, over all ranks.

    Args:
        step: From 1.
        loss: Mean over the samples of the step; None if the script reports none.
        learning_rate: Of the optimizer's first group; None if no optimizer stepped.
        time: Seconds since the epoch, at the end of the step.
        attempt: Starts of the workers before the one that did it.
        cursor: Samples consumed since the start of training, this step's included.
        data_s: Seconds of the step in which rank 0 waited for its data.
        further: Further metrics of the script, by name.
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
    further: Mapping[str, float] = field(default_factory=dict)


class MetricsFile:
    """Appends steps to the metrics file of a run.

    An incomplete last line, left by a killed process, is dropped.
    """

    def __init__(self, run_dir: Path):
        run_dir.mkdir(parents=True, exist_ok=True)
        self._file = (run_dir / names.METRICS_FILE).open("a+b")
        self._file.truncate(_end_of_lines(self._file))

    @property
    def size(self) -> int:
        """Size of the lines in bytes."""
        return self._file.seek(0, os.SEEK_END)

    def append(self, record: Mapping[str, object]) -> None:
        """Write one line and flush it."""
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _end_of_lines(file: BinaryIO) -> int:
    """Return where the last complete line of `file` ends, in bytes."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(end - TAIL_BYTES, 0)
        file.seek(start)
        if newline := file.read(end - start).rfind(b"\n") + 1:
            return start + newline
        end = start
    return 0


@functools.cache
def reporter_of(run_dir: Path, tracking_uri: str | None, run_id: str) -> "Reporter":
    """Return the reporter of a run: one for all attempts of a process, so that no two send the same metrics."""
    return Reporter(run_dir, tracking_uri, run_id)


class Reporter:
    """Rank 0's files and, if there is an MLflow run, the shipper. It can be used again after `close`.

    Args:
        tracking_uri: Of MLflow; None for MLflow's default.
        run_id: MLflow run; empty for none.
    """

    def __init__(self, run_dir: Path, tracking_uri: str | None = None, run_id: str = ""):
        self.run_dir = run_dir
        self._file: MetricsFile | None = MetricsFile(run_dir)
        self._new_shipper = (lambda: Shipper(run_dir, tracking_uri, run_id)) if run_id else None
        self._shipper: Shipper | None = None
        self._longest_s: dict[str, float] = {}

    def begin_new_curves(self) -> None:
        """Start new curves at the tracking server for later steps; call it before any `report`."""
        if self._new_shipper and self._file and self._file.size:
            acknowledge(self.run_dir, self._file.size, acknowledged(self.run_dir)[1] + 1)

    def describe(self, tags: Mapping[str, object]) -> None:
        """Give the MLflow run tags, such as the size of the model; the shipper sends them with the first step."""
        if self._new_shipper:
            write_text(self.run_dir / names.TAGS_FILE, json.dumps(dict(tags)) + "\n")

    def started(self, start: StartRecord) -> None:
        """Record this start of the workers."""
        append_json(self.run_dir / names.STARTS_FILE, asdict(start))

    def report(self, metrics: StepMetrics) -> None:
        """Record a step; the shipper sends it."""
        record = asdict(metrics)
        if not metrics.further:
            del record["further"]
        self._append(record)

    def last_step(self) -> int:
        """Return the last step of the metrics file; 0 for none."""
        path = self.run_dir / names.METRICS_FILE
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().splitlines()
        for line in reversed(lines):
            with suppress(ValueError, TypeError):
                record = json.loads(line)
                if "world_size" in record:
                    return int(record["step"])
        return 0

    def report_further(self, step: int, attempt: int, metrics: Mapping[str, float]) -> None:
        """Record metrics measured after a step, in a line of their own."""
        self._append({"time": time.time(), "attempt": attempt, "step": step, "further": dict(metrics)})

    def _append(self, record: Mapping[str, object]) -> None:
        if self._file is None:
            self._file = MetricsFile(self.run_dir)
        self._file.append(record)
        # Not before the first step: even in a thread, importing MLflow slows this process down.
        if self._new_shipper and (self._shipper is None or self._shipper.has_ended):
            self._shipper = self._new_shipper()

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Announce work between steps while it lasts: a checkpoint, an evaluation, an export."""
        self.announce(what)
        began = time.monotonic()
        try:
            yield
        finally:
            self._longest_s[what] = max(time.monotonic() - began, self._longest_s.get(what, 0.0))
            self.announce(names.STEPS)

    def announce(self, what: str) -> None:
        """Publish the activity of this rank, from which the hang detector takes what may last how long.

        The longest work of each kind stands beside it, since two announcements may come between two of its polls.
        """
        own = {"time": time.time(), "attempt": startup_timing.attempt(), "what": what, "longest_s": self._longest_s}
        text = json.dumps(own)
        partial = self.run_dir / f".{names.ACTIVITY_FILE}.partial"
        with suppress(OSError):  # a full disk must not end training; the last activity then remains
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.run_dir / names.ACTIVITY_FILE)

    def close(self, timeout_s: float) -> None:
        """Close the files, giving the shipper at most `timeout_s` seconds to send the rest."""
        if self._file:
            self._file.close()
            self._file = None
        if self._shipper and self._shipper.close(timeout_s):
            self._shipper = None
        elif self._shipper:  # it remains: a second one would send twice
            print("some metrics are not sent yet; they are kept", file=sys.stderr, flush=True)
