"""The records of a job on disk: the events, steps and starts of a launch.

Incomplete lines of killed processes are skipped. Of earlier launches of the bundle only the steps count.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from launcher.common.names import CHECKPOINTS_FILE, EVENTS_FILE, METRICS_FILE, STARTS_FILE
from launcher.runtime.startup_timing import StartRecord

LAUNCHED = "launched"
"""The kind of a launch's first event."""

HANG = "hang"
"""The cause of the fault of a job that hangs."""

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class OperatorEvent:
    """A line of the operator's event log.

    Args:
        time: Seconds since the epoch.
        kind: Determines the fields.
        message: For people.
        fields: All fields of the line.
    """

    time: float
    kind: str
    message: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """An optimizer step as it happened.

    Args:
        time: Its end, in seconds since the epoch.
        cursor: Samples from the start of training to the end of this step.
        data_s: Seconds of it in which rank 0 waited for data.
        is_skipped: Whether it changed no weight, since its loss or gradients were not finite.
    """

    time: float
    step: int
    attempt: int
    nodes: int
    world_size: int
    samples: int
    samples_per_s: float
    cursor: int
    loss: float | None
    data_s: float = 0.0
    is_skipped: bool = False

    @property
    def duration_s(self) -> float:
        """Seconds the step took."""
        return self.samples / self.samples_per_s if self.samples_per_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint that was published or loaded, or the loss of all of them.

    Args:
        time: Seconds since the epoch.
        event: `saved`, `loaded`, `cleared`, or `broken`: none is intact. Other events change nothing.
        tier: Its tier.
        step: Last optimizer step in it.
        cursor: Samples consumed by then; None if not recorded.
        seconds: How long it took on the slowest rank.
    """

    time: float
    event: str
    tier: str
    step: int
    cursor: int | None
    seconds: float = 0.0

    @property
    def outlives_job(self) -> bool:
        """Whether the checkpoint still exists when all processes of the job have ended."""
        return self.tier not in ("memory", "replica")


@dataclass(frozen=True, slots=True)
class Launch:
    """The records of one launch, each kind in order of time.

    Args:
        time: When it began, in seconds since the epoch.
        earlier_steps: Steps of the launches before it.
        checkpoints: Checkpoints published and loaded, those of earlier launches included.
    """

    time: float
    events: tuple[OperatorEvent, ...]
    steps: tuple[StepRecord, ...]
    starts: tuple[StartRecord, ...]
    earlier_steps: tuple[StepRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()


class LaunchReader:
    """Reads the records of a run folder, again and again: each time only the lines that were written since."""

    def __init__(self, run_dir: Path):
        self._events = _Lines(run_dir / EVENTS_FILE, _event)
        self._steps = _Lines(run_dir / METRICS_FILE, _step)
        self._starts = _Lines(run_dir / STARTS_FILE, _start)
        self._checkpoints = _Lines(run_dir / CHECKPOINTS_FILE, _checkpoint)

    def num_launches(self) -> int:
        """Return how many launches have written events to the folder."""
        return sum(event.kind == LAUNCHED for event in self._events.read())

    def events(self, launch: int | None = None) -> tuple[list[OperatorEvent], float]:
        """Return the events of a launch, and when the next one began, in seconds since the epoch.

        Args:
            launch: Its number, from 0; None for the last.
        """
        every = self._events.read()
        begins = [i for i, event in enumerate(every) if event.kind == LAUNCHED]
        begin, end = begins[-1] if begins else 0, len(every)
        if launch is not None:
            begin, end = (*begins, end)[launch : launch + 2]
        return every[begin:end], every[end].time if end < len(every) else math.inf

    def read(self, launch: int | None = None) -> Launch:
        """Return the records of a launch as in `events`; missing files count as empty."""
        events, until = self.events(launch)
        steps, starts = self._steps.read(), self._starts.read()
        if events:
            began = events[0].time
        else:  # without events, the first record is the start of the launch
            began = min(
                [start.spawned for start in starts] + [step.time - step.duration_s for step in steps], default=0.0
            )
        return Launch(
            began,
            tuple(events),
            tuple(step for step in steps if began <= step.time < until),
            tuple(start for start in starts if began <= _last_time(start) < until),
            tuple(step for step in steps if step.time < began),
            tuple(each for each in self._checkpoints.read() if each.time < until),
        )


def parse_event(line: bytes | str) -> OperatorEvent | None:
    """Return the event of a line; None for an incomplete one."""
    return _parse(line, _event)


class _Lines(Generic[_Record]):
    """The records of a file that grows; one that has shrunk is read anew."""

    def __init__(self, path: Path, build: Callable[[Mapping[str, Any]], _Record]):
        self._path, self._build = path, build
        self._offset = 0
        self._found: list[_Record] = []

    def read(self) -> list[_Record]:
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset, self._found = 0, []
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            self._offset, self._found = 0, []
            return []
        end = text.rfind(b"\n") + 1
        self._found += self._parsed(text[:end])
        self._offset += end
        return self._found + self._parsed(text[end:])  # of a line whose end is still to come, perhaps

    def _parsed(self, text: bytes) -> list[_Record]:
        return [record for line in text.splitlines() if (record := _parse(line, self._build)) is not None]


def _parse(line: bytes | str, build: Callable[[Mapping[str, Any]], _Record]) -> _Record | None:
    try:
        fields = json.loads(line)
        return build(fields) if isinstance(fields, dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def _event(fields: Mapping[str, Any]) -> OperatorEvent:
    return OperatorEvent(float(fields["time"]), str(fields["kind"]), str(fields.get("message") or ""), fields)


def _step(fields: Mapping[str, Any]) -> StepRecord:
    loss = fields.get("loss")
    return StepRecord(
        time=float(fields["time"]),
        step=int(fields["step"]),
        attempt=int(fields["attempt"]),
        nodes=int(fields["nodes"]),
        world_size=int(fields["world_size"]),
        samples=int(fields["samples"]),
        samples_per_s=float(fields["samples_per_s"]),
        cursor=int(fields["cursor"]),
        loss=float(loss) if loss is not None and math.isfinite(loss) else None,
        data_s=float(fields.get("data_s") or 0.0),
        is_skipped="skipped_steps" in (fields.get("further") or {}),
    )


def _start(fields: Mapping[str, Any]) -> StartRecord:
    return StartRecord(
        attempt=int(fields["attempt"]),
        nodes=int(fields["nodes"]),
        world_size=int(fields["world_size"]),
        step=int(fields["step"]),
        cursor=int(fields["cursor"]),
        spawned=float(fields["spawned"]),
        imported=fields["imported"],
        joined=fields["joined"],
        restored=fields["restored"],
        first_step=fields["first_step"],
        kept_by=fields.get("kept_by"),
        moved_bytes=int(fields.get("moved_bytes") or 0),
        ready_s=fields.get("ready_s"),
    )


def _checkpoint(fields: Mapping[str, Any]) -> CheckpointRecord:
    cursor = fields.get("cursor")
    return CheckpointRecord(
        time=float(fields["time"]),
        event=str(fields["event"]),
        tier=str(fields["tier"]),
        step=int(fields["step"]),
        cursor=None if cursor is None else int(cursor),
        seconds=float(fields.get("seconds") or 0.0),
    )


def _last_time(start: StartRecord) -> float:
    times = (start.spawned, start.imported, start.joined, start.restored, start.first_step)
    return max(time for time in times if time is not None)
