"""How much of a launch's work outlives the job. Pure."""

from collections.abc import Iterator

from launcher.timeline.records import CheckpointRecord, Launch

_LOST = ("broken", "cleared")
"""Events after which no checkpoint is left."""


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
        if start.restored is not None:
            yield start.restored, start.cursor, not _is_from_memory(launch, start.step)
    started = {start.attempt for start in launch.starts}
    for first in {step.attempt: step for step in reversed(launch.steps) if step.attempt not in started}.values():
        yield first.time - first.duration_s, first.cursor - first.samples, True


def _is_from_memory(launch: Launch, step: int) -> bool:
    loads = [record for record in launch.checkpoints if record.event == "loaded" and record.step == step]
    return bool(loads) and not loads[-1].outlives_job


def _cursor(launch: Launch, record: CheckpointRecord) -> int | None:
    """Return the samples in a checkpoint; None if no step records them."""
    if record.cursor is not None:
        return record.cursor
    steps = [step for step in (*launch.earlier_steps, *launch.steps) if step.step == record.step]
    return next((step.cursor for step in reversed(steps) if step.time <= record.time), None)
