"""Builds the Timeline of a launch from its records. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from launcher.model.failure import failure_from
from launcher.model.job_spec import JobState
from launcher.runtime.startup_timing import StartRecord
from launcher.timeline.causes import ROOTS, Causes, running_faults
from launcher.timeline.records import LAUNCHED, CheckpointRecord, Launch, OperatorEvent, StepRecord
from launcher.timeline.values import Attempt, Event, StartParts, StayParts, Step, Timeline, Transition

_SHOWN_EVENTS = (*ROOTS, "fault", "operator")
_FROM_NOTHING = ("start", "resume")
"""Reasons of transitions before which no worker runs."""
_LOST = ("broken", "cleared")
"""Events after which no checkpoint is left."""


@dataclass(frozen=True, slots=True)
class _Trace:
    """The records of one attempt: its start, if recorded, and its steps. Samples count from the start of training."""

    number: int
    start: StartRecord | None
    steps: tuple[StepRecord, ...]

    @property
    def began(self) -> float:
        """The time of its first record, in seconds since the epoch."""
        return self.start.spawned if self.start else self.steps[0].time

    @property
    def size(self) -> tuple[int, int | None]:
        """Its nodes and ranks; (0, None) if not recorded."""
        record = self.steps[0] if self.steps else self.start
        return (record.nodes, record.world_size) if record else (0, None)

    @property
    def resumed(self) -> int | None:
        """Samples of the checkpoint it resumed from; None if it did not get that far."""
        if self.start:
            return self.start.cursor
        return self.steps[0].cursor - self.steps[0].samples if self.steps else None

    @property
    def resumed_step(self) -> int | None:
        if self.start:
            return self.start.step
        return self.steps[0].step - 1 if self.steps else None

    @property
    def reached(self) -> int | None:
        """Samples at its end."""
        return self.steps[-1].cursor if self.steps else self.resumed

    @property
    def first_step(self) -> float | None:
        """When its first step ended, in seconds since the epoch."""
        if self.start and self.start.first_step is not None:
            return self.start.first_step
        return self.steps[0].time if self.steps else None


def build(launch: Launch, *, is_alive: bool = False) -> Timeline:
    """Return the timeline of a launch; `is_alive` is whether any process of its job still exists."""
    end = _end(launch)
    last = end.time if end else max(_times(launch), default=launch.time)
    traces = tuple(_traces(launch))
    causes = Causes(launch)
    transitions = tuple(_transitions(launch, traces, causes))
    attempts = tuple(_attempts(launch, traces, transitions, last))
    state = str(end.fields.get("state")) if end else None
    is_running = end is None and is_alive
    steps = tuple(_steps(launch, traces))
    # Without events the end is unknown.
    survives = is_running or state == JobState.SUCCEEDED or not launch.events
    limit = float("inf") if survives else preserved(launch)
    surviving = tuple(step if step.cursor <= limit else replace(step, kept=False) for step in steps)
    return Timeline(
        launched=launch.time,
        sizes=tuple(_opening(launch).get("sizes") or ()),
        state=state,
        message=end.message if end else "",
        is_running=is_running,
        wall_s=last - launch.time,
        restarts=max(0, len(attempts) - 1),
        transitions=transitions,
        attempts=attempts,
        events=tuple(_events(launch, causes)),
        unfired=tuple(event.message for event in launch.events if event.kind == "unfired"),
        steps=surviving,
        samples_lost_at_end=_kept_samples(steps) - _kept_samples(surviving),
        skipped_steps=len({step.step for step in launch.steps if step.is_skipped}),
        failure=failure_from(end.fields.get("failure")) if end else None,
        restart_s=_restart_s(launch),
    )


def _end(launch: Launch) -> OperatorEvent | None:
    return next((event for event in reversed(launch.events) if event.kind == "ended"), None)


def _events(launch: Launch, causes: Causes) -> Iterator[Event]:
    for event in launch.events:
        if event.kind in _SHOWN_EVENTS:
            yield Event(event.time - launch.time, event.kind, event.message, causes.of_event(event))


def _times(launch: Launch) -> Iterator[float]:
    for records in (launch.events, launch.steps):
        yield from (record.time for record in records)
    yield from (start.first_step for start in launch.starts if start.first_step is not None)


def _opening(launch: Launch) -> Mapping[str, Any]:
    return launch.events[0].fields if launch.events and launch.events[0].kind == LAUNCHED else {}


def _traces(launch: Launch) -> Iterator[_Trace]:
    """Yield the records of every attempt, in order."""
    starts = {start.attempt: start for start in launch.starts}
    ordered = {event.fields["attempt"] for event in launch.events if event.kind == "starting"}
    for number in sorted(ordered | starts.keys() | {step.attempt for step in launch.steps}):
        yield _Trace(number, starts.get(number), tuple(step for step in launch.steps if step.attempt == number))


def _kept_samples(steps: tuple[Step, ...]) -> int:
    return sum(step.samples for step in steps if step.kept)


def _steps(launch: Launch, traces: tuple[_Trace, ...]) -> Iterator[Step]:
    """Yield every step. It is kept unless a later attempt resumed from before it."""
    for index, trace in enumerate(traces):
        kept_until = min((later.resumed for later in traces[index + 1 :] if later.resumed is not None), default=None)
        for record, redone in zip(trace.steps, _redone(launch, traces, trace), strict=True):
            yield Step(
                time_s=record.time - launch.time,
                duration_s=record.duration_s,
                data_s=min(record.data_s, record.duration_s),
                step=record.step,
                loss=record.loss,
                nodes=record.nodes,
                world_size=record.world_size,
                attempt=record.attempt,
                cursor=record.cursor,
                samples=record.samples,
                samples_redone=redone,
                kept=kept_until is None or record.cursor <= kept_until,
            )


def _redone(launch: Launch, traces: tuple[_Trace, ...], trace: _Trace) -> list[int]:
    """Return for each step of `trace` the number of its samples that an earlier attempt or launch had trained."""
    trained = [record for earlier in traces if earlier.number < trace.number for record in earlier.steps]
    trained += launch.earlier_steps
    low = min((record.cursor - record.samples for record in trained), default=0)
    high = max((record.cursor for record in trained), default=0)
    return [max(0, min(record.cursor, high) - max(record.cursor - record.samples, low)) for record in trace.steps]


def _lost(launch: Launch, traces: tuple[_Trace, ...], trace: _Trace) -> int:
    """Return the samples that were trained after the checkpoint from which `trace` resumed."""
    ends = [record.cursor for record in launch.earlier_steps[-1:]]
    ends += [earlier.reached for earlier in traces if earlier.number < trace.number and earlier.reached is not None]
    return max(0, ends[-1] - trace.resumed) if ends and trace.resumed is not None else 0


@dataclass(frozen=True, slots=True)
class _Passage:
    """A decision and the start it led to: the decisions in between, and the actions of the operator.

    It is overtaken if a later decision replaced it.
    """

    decisions: tuple[OperatorEvent, ...]
    actions: tuple[OperatorEvent, ...] = ()
    is_overtaken: bool = False

    @property
    def reason(self) -> str:
        first, last = (str(self.decisions[i].fields["reason"]) for i in (0, -1))
        return first if first in _FROM_NOTHING else last

    @property
    def is_given_up(self) -> bool:
        """Whether nothing was stopped or started for it, and nothing will be."""
        is_over = self.is_overtaken or self.first("ended") or self.first("abandoned")
        is_idle = self.stop()[0] is None and self.first("starting") is None
        return bool(is_over) and is_idle and self.reason != "start"

    @property
    def is_planned(self) -> bool:
        """Whether no fault led to it, and workers ran before."""
        return self.decisions[0].fields["reason"] not in (*_FROM_NOTHING, "recover")

    @property
    def suspends(self) -> bool:
        """Whether it leaves the job without nodes."""
        return self.decisions[-1].fields["reason"] == "suspend" and not self.is_given_up

    def first(self, kind: str) -> OperatorEvent | None:
        """Return the first action of a kind, or None."""
        return next((action for action in self.actions if action.kind == kind), None)

    def stop(self) -> tuple[OperatorEvent | None, OperatorEvent | None]:
        """Return the start and end of the stop. A cancelled job is stopped, too, but not for a transition."""
        stopping, stopped, starting = map(self.first, ("stopping", "stopped", "starting"))
        if stopping is None or self.first("abandoned") or self.reason in _FROM_NOTHING:
            return None, None
        if starting and starting.time < stopping.time:
            return None, None
        is_the_end_s = stopped is None and self.first("ended") is not None
        return (None, None) if is_the_end_s else (stopping, stopped)

    def continues(self) -> bool:
        """Return whether the next decision belongs to this passage.

        After a fault the operator first decides to stop the remaining workers, and then on how many nodes to start.
        """
        if self.first("starting") or self.decisions[-1].fields["reason"] == "suspend":
            return False
        return self.reason in _FROM_NOTHING or self.first("stopping") is not None


def _passages(launch: Launch) -> list[_Passage]:
    passages: list[_Passage] = []
    if opening := _opening(launch):
        fields = {"reason": "start", "from_nodes": 0, "to_nodes": opening["nodes"]}
        passages.append(_Passage((OperatorEvent(launch.time, "transition", LAUNCHED, fields),)))
    for event in launch.events:
        if event.kind == "transition" and passages and passages[-1].continues():
            passages[-1] = replace(passages[-1], decisions=(*passages[-1].decisions, event))
        elif event.kind == "transition":
            if passages:
                passages[-1] = replace(passages[-1], is_overtaken=True)
            passages.append(_Passage((event,)))
        elif passages:
            passages[-1] = replace(passages[-1], actions=(*passages[-1].actions, event))
    return passages


def _transitions(launch: Launch, traces: tuple[_Trace, ...], causes: Causes) -> Iterator[Transition]:
    size = 0
    for passage in _passages(launch):
        transition = _transition(launch, traces, causes, passage, size)
        if passage.first("starting"):
            size = transition.to_nodes
        elif passage.suspends:
            size = 0
        yield transition


def _transition(
    launch: Launch, traces: tuple[_Trace, ...], causes: Causes, passage: _Passage, from_nodes: int
) -> Transition:
    came, cause = causes.find(passage.decisions[0], is_given_up=passage.is_given_up)
    if passage.is_planned:
        later = map(causes.overtaking, passage.decisions[1:])
        cause = "; ".join([cause, *filter(None, later)])
    stopping, stopped = passage.stop()
    prewarmed, starting = passage.first("prewarmed"), passage.first("starting")
    number = starting.fields["attempt"] if starting else None
    trace = next((each for each in traces if each.number == number), None)
    # As the worker recorded it or, if it did not, as the operator noticed it.
    first_step = trace.first_step if trace and trace.first_step is not None else _time(passage.first("running"))
    start, stop, stop_end = map(_time, (starting, stopping, stopped))
    return Transition(
        reason=passage.reason,
        from_nodes=from_nodes,
        to_nodes=int(starting.fields["size"] if starting else passage.decisions[-1].fields["to_nodes"]),
        cause=cause,
        came_s=came - launch.time,
        decided_s=passage.decisions[0].time - launch.time,
        prewarmed_s=prewarmed.time - launch.time if prewarmed else None,
        wait_s=_between(came, start if stop is None else stop),
        stop_s=_between(stop, stop_end),
        regroup_s=_between(stop_end, start),
        restart_s=_between(start, first_step),
        total_s=_between(came, first_step),
        parts=_parts(start, trace),
        stay=_stay(traces, trace, stop, stop_end, start),
        graceful=stopping.fields.get("graceful") if stopping else None,
        saved=stopped.fields.get("saved") if stopped else None,
        kept_by=trace.start.kept_by if trace and trace.start else None,
        given_up=passage.is_given_up,
        attempt=number,
        samples_lost=_lost(launch, traces, trace) if trace else 0,
        samples_redone=sum(_redone(launch, traces, trace)) if trace else 0,
    )


def _time(event: OperatorEvent | None) -> float | None:
    return event.time if event else None


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(0.0, end - begin)


def _parts(ordered: float | None, trace: _Trace | None) -> StartParts | None:
    if ordered is None or trace is None or trace.start is None:
        return None
    start = trace.start
    # The clock of process creation is coarser, so a part may appear to end before it began.
    marks = [ordered]
    parts = []
    for mark in (start.spawned, start.imported, start.joined, start.restored, start.first_step):
        parts.append(None if mark is None else max(0.0, mark - marks[-1]))
        marks.append(marks[-1] if mark is None else max(mark, marks[-1]))
    return StartParts(*parts)


def _stay(
    traces: tuple[_Trace, ...],
    trace: _Trace | None,
    stop: float | None,
    stop_end: float | None,
    ordered: float | None,
) -> StayParts | None:
    if trace is None or trace.start is None or trace.start.kept_by is None:
        return None
    start = trace.start
    before = [step.time for each in traces if each.number < trace.number for step in each.steps]
    last = max(before, default=None)
    ended = max((each for each in (last, stop) if each is not None), default=None)
    return StayParts(
        finish_s=_between(stop, ended),
        leave_s=_between(ended, stop_end),
        join_s=_between(ordered, start.joined),
        move_s=_between(start.joined, start.restored),
        first_step_s=_between(start.restored, start.first_step),
        blocked_s=_between(last, start.restored),
        moved_bytes=start.moved_bytes,
    )


def _restart_s(launch: Launch) -> float | None:
    """Return how much longer a restart would block training: a process until it is ready, a save, and its load."""
    ready_s = [start.ready_s for start in launch.starts if start.ready_s is not None]
    if not ready_s or all(start.kept_by is None for start in launch.starts):
        return None
    saves_s = [each.seconds for each in launch.checkpoints if each.event == "saved" and each.time >= launch.time]
    return ready_s[0] + 2 * (median(saves_s) if saves_s else 0.0)


def _attempts(
    launch: Launch, traces: tuple[_Trace, ...], transitions: tuple[Transition, ...], last: float
) -> Iterator[Attempt]:
    starts = {event.fields["attempt"]: event for event in launch.events if event.kind == "starting"}
    for index, trace in enumerate(traces):
        start = starts.get(trace.number)
        began = start.time if start else trace.began
        later = [starts[each.number].time for each in traces[index + 1 :] if each.number in starts]
        until = min(later, default=float("inf"))
        nodes, ranks = trace.size
        yield Attempt(
            number=trace.number,
            nodes=int(start.fields["size"]) if start else nodes,
            ranks=ranks,
            started_s=began - launch.time,
            first_step_s=None if trace.first_step is None else trace.first_step - launch.time,
            ended_s=_end_of_work(launch, trace, began, min(until, last)) - launch.time,
            resumed_step=trace.resumed_step,
            last_step=trace.steps[-1].step if trace.steps else None,
            ending=_ending(launch, transitions, began, until),
        )


def _end_of_work(launch: Launch, trace: _Trace, began: float, until: float) -> float:
    """Return when the workers of an attempt stopped: with a fault or a command, but not before their last step."""
    stops = (event for event in launch.events if event.kind == "stopping")
    ends = (event.time for event in (*running_faults(launch.events), *stops))
    end = min((time for time in ends if began <= time <= until), default=until)
    return max(end, *(step.time for step in trace.steps), 0)


def _ending(launch: Launch, transitions: tuple[Transition, ...], began: float, until: float) -> str:
    """Return the reason for the end of an attempt: the last decision before the next start, or the end of the job."""
    for transition in reversed(transitions):
        if began < transition.decided_s + launch.time <= until and transition.reason not in _FROM_NOTHING:
            return f"{transition.reason} ({transition.cause})"
    end = _end(launch)
    if end is None or until != float("inf"):
        return ""
    return str(end.fields.get("state"))


def preserved(launch: Launch) -> int:
    """Return the samples in the checkpoint from which another launch would resume; 0 without one.

    Computed from the records alone, so that the number stays the same if the files change later. A resume from an
    older checkpoint discards the newer ones, and a load that finds none intact discards all. A checkpoint in the
    memory of nodes ends with them.
    """
    held = 0
    for _, cursor, is_saved in sorted(_points(launch)):
        held = cursor if is_saved else min(held, cursor)
    return held


def _points(launch: Launch) -> Iterator[tuple[float, int, bool]]:
    """Yield the time of each checkpoint that outlives the job, or of a resume; its samples; whether it is on disk."""
    for record in launch.checkpoints:
        if record.event == "saved" and record.outlives_job and (cursor := _cursor(launch, record)) is not None:
            yield record.time, cursor, True
        elif record.event in _LOST:
            yield record.time, 0, False
    for start in launch.starts:
        if start.restored is not None and start.kept_by is None:  # what stays in memory is on no disk
            loads = [each for each in launch.checkpoints if each.event == "loaded" and each.step == start.step]
            yield start.restored, start.cursor, not loads or loads[-1].outlives_job
    started = {start.attempt for start in launch.starts}
    for first in {step.attempt: step for step in reversed(launch.steps) if step.attempt not in started}.values():
        yield first.time - first.duration_s, first.cursor - first.samples, True


def _cursor(launch: Launch, record: CheckpointRecord) -> int | None:
    """Return the samples in a checkpoint; None if no step records them."""
    if record.cursor is not None:
        return record.cursor
    steps = [step for step in (*launch.earlier_steps, *launch.steps) if step.step == record.step]
    return next((step.cursor for step in reversed(steps) if step.time <= record.time), None)
