"""The operator's event log, `run/events.jsonl`: it is written, and read as lines of the job's log or as events."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from launcher.common import redaction
from launcher.common.lines import LineReader
from launcher.common.names import EVENTS_FILE
from launcher.common.texts import counted
from launcher.model.following import followed
from launcher.model.job_spec import NEWS, JobEvent, LogLine
from launcher.runtime.durable import append_json
from launcher.timeline.records import LAUNCHED, OperatorEvent, parse_event

_EVENT, _FAULT, _SCALE = NEWS
_HIDDEN_FIELDS = ("time", "kind", "message", "cause_time", "failure")
_HEADINGS = {"scenario": _EVENT, "request": _EVENT, "operator": _EVENT, "slow": _EVENT, "fault": _FAULT}


class EventWriter:
    """Appends to the event log of a run."""

    def __init__(self, run_dir: Path):
        self._path = run_dir / EVENTS_FILE

    def add(self, kind: str, message: str = "", fields: Mapping[str, object] | None = None) -> None:
        """Append one event with the current time."""
        masked = redaction.masked_tree({"message": message, **(fields or {})})
        append_json(self._path, {"time": time.time(), "kind": kind, **masked})


class EventLogReader:
    """Returns the events of a run's last launch as lines, each once."""

    def __init__(self, run_dir: Path):
        self._reader = LineReader(run_dir / EVENTS_FILE)
        self._pending: list[OperatorEvent] = []

    def until(self, time_s: float | None) -> Iterator[LogLine]:
        """Yield a line for each event that came until a time (seconds since the epoch; None for all so far)."""
        self._pending = _of_last_launch([*self._pending, *_new_events(self._reader)])
        while self._pending and (time_s is None or self._pending[0].time <= time_s):
            if line := log_line(self._pending.pop(0)):
                yield line


def _new_events(reader: LineReader) -> list[OperatorEvent]:
    return [event for line in reader.new_lines(complete_only=True) if (event := parse_event(line))]


def _of_last_launch(events: list[OperatorEvent]) -> list[OperatorEvent]:
    begins = [index for index, event in enumerate(events) if event.kind == LAUNCHED]
    return events[begins[-1] :] if begins else events


def job_events(
    run_dir: Path, has_ended: Callable[[], bool], pause: Callable[[], object] | None
) -> Iterator[JobEvent]:
    """Yield the events of a run's last launch, oldest first; `pause` waits before the next poll, None polls once."""
    reader, is_first = LineReader(run_dir / EVENTS_FILE), True

    def new(_is_last: bool) -> Iterator[JobEvent]:
        nonlocal is_first
        events = _new_events(reader)
        yield from map(_job_event, _of_last_launch(events) if is_first else events)
        is_first = False

    return followed(new, lambda: pause is None or has_ended(), pause or (lambda: None))


def _job_event(event: OperatorEvent) -> JobEvent:
    fields = {name: value for name, value in event.fields.items() if name not in _HIDDEN_FIELDS}
    parts = {name: " ".join(map(str, v)) if isinstance(v, list) else str(v).lower() for name, v in fields.items()}
    words = ", ".join(map(" ".join, parts.items()))
    is_fault = event.kind == "fault" or (event.kind == "ended" and fields.get("state") == "failed")
    about = f"node {fields['node']}" if "node" in fields else ""
    message = event.message.partition("\n")[0].removeprefix(f"{about}: ")
    return JobEvent(event.time, event.kind, message or words, about, is_fault)


def log_line(event: OperatorEvent) -> LogLine | None:
    """Return the log line of an event; None for an event that only the timeline uses."""
    kind, words = _HEADINGS.get(event.kind), event.message.partition("\n")[0]
    if event.kind == "transition":
        before, after, reason = (event.fields[name] for name in ("from_nodes", "to_nodes", "reason"))
        change = f"{before} -> {counted(after, 'node')}{'' if after else ', until there is room again'}"
        change = "stopping the workers that are left" if reason == "recover" else change
        kind, words = None if reason == "start" else _SCALE, change
    elif event.kind == "fault" and event.fields.get("warming"):  # it does not interrupt training
        kind = _EVENT
    elif event.kind == "abandoned":
        kind, words = _SCALE, f"given up: {words}"
    return LogLine(kind, None, words, time_s=event.time) if kind else None
