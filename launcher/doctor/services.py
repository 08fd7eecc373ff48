"""What a job reports to: its tracking server, whose clock is compared with this machine's."""

from collections.abc import Iterator
from functools import partial

from launcher.job_store import tracking
from launcher.model.context import LaunchContext
from launcher.model.finding import Answer, Question, clock, ok
from launcher.pipeline import Prepared

TRACKING = "tracking"


def questions(prepared: Prepared, context: LaunchContext) -> Iterator[Question]:
    """Yield the question about the tracking store, if the job has one."""
    if tracking.is_tracked(prepared.job):
        yield Question(TRACKING, partial(_tracking, prepared, context))


def _tracking(prepared: Prepared, context: LaunchContext) -> Iterator[Answer]:
    store = tracking.contacted(prepared.job, context)
    yield ok(TRACKING, f"{store.uri} {'answers' if store.clock else 'is where runs are written'}")
    if store.clock:
        yield clock("the tracking server", store.clock)
