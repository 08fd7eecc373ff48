"""What every backend must do with a job, from its submission to its end. One suite; each backend brings a stage.

A module of tests that imports * from here defines a module-scoped fixture `stage`, a Stage. One whose jobs can be
resized imports the test of that, too.
"""

import threading
import time
from pathlib import Path
from typing import Protocol

import pytest
from background import await_true
from conftest import written
from log_texts import log_texts, shown

from launcher import pipeline
from launcher.bundle import store as bundles
from launcher.common.names import RUN_DIR
from launcher.common.problems import ProblemsFound
from launcher.job_store import registry
from launcher.model.backend import Backend
from launcher.model.job_spec import Bundle, JobHandle, JobState, LogSelection

__all__ = [
    "submitted",
    "test_a_cancelled_job_has_ended_for_everybody",
    "test_a_failed_job_says_why",
    "test_a_job_that_is_there_is_not_submitted_again",
    "test_a_submitted_job_is_found_again_from_its_record",
    "test_an_ended_job_can_still_be_looked_at",
    "test_logs_of_several_ranks_are_followed_to_the_end_each_line_once",
    "test_logs_of_what_is_not_there_are_refused_before_the_first_line",
    "test_waiting_ends_when_its_time_is_over",
]

NODES = 2
START_TIMEOUT_S = 300.0
TIMEOUT_S = 200.0


class Stage(Protocol):
    """Where jobs run, and the hand that moves them: two nodes at first, one process each, planned sizes 1 to 4.

    A stage whose jobs have another number of ranks with logs has `num_ranks`.
    """

    def backend(self) -> Backend:
        """Return a backend that remembers nothing, as in a new process."""

    def bundle(self, name: str) -> Bundle:
        """Write the bundle of a job; see `write_bundle`."""

    def say(self, handle: JobHandle, rank: int, line: str) -> None:
        """Let the worker of a rank print a line to standard output."""

    def end(self, handle: JobHandle, state: JobState) -> None:
        """Let the job succeed or fail."""


WORKER = """
import os, pathlib, sys, time
if sys.argv[1:2] == ["--orders"]:
    orders = pathlib.Path(sys.argv[2])
else:
    orders = pathlib.Path(os.environ["RECIPES_RUN_DIR"], f"orders-{os.environ['RANK']}")
done = 0
while True:
    for order in (orders.read_text() if orders.exists() else "").splitlines()[done:]:
        done += 1
        word, _, rest = order.partition(" ")
        if word == "exit":
            os._exit(int(rest))
        print(rest, flush=True)
    time.sleep(0.05)
"""
"""Does as the file that `OrderedStage.orders` names tells it."""


class OrderedStage:
    """The hand of a Stage whose ranks with logs run WORKER."""

    def say(self, handle: JobHandle, rank: int, line: str) -> None:
        self._order(handle, rank, f"say {line}")

    def end(self, handle: JobHandle, state: JobState) -> None:
        for rank in range(num_ranks(self)):
            self._order(handle, rank, f"exit {0 if state is JobState.SUCCEEDED else 3}")

    def orders(self, handle: JobHandle, rank: int) -> Path:
        """Return the file of what a rank must do."""
        return handle.bundle_dir / RUN_DIR / f"orders-{rank}"

    def _order(self, handle: JobHandle, rank: int, order: str) -> None:
        with self.orders(handle, rank).open("a") as file:
            file.write(f"{order}\n")


def write_bundle(folder: Path, name: str, cluster: str, *overrides: str) -> Bundle:
    """Write the bundle of an untracked elastic job of NODES nodes, one process each; its name begins with `name`."""
    recipe = (
        f"recipes.run.name={name}",
        "recipes.training_config.mlflow.enabled=false",
        "recipes.trainer.devices=1",
        f"recipes.trainer.num_nodes={NODES}",
        "recipes.elastic_policy.is_elastic=true",
        "recipes.elastic_policy.max_nodes=4",
        "++recipes.scale_config=auto",
    )
    return written(folder, "recipes=training/tiny/tiny_lm_cpu", f"cluster={cluster}", *recipe, *overrides)


@pytest.fixture(scope="module")
def submitted(stage):
    """Return the records of jobs that run at the same time, by name; end what a test has left."""
    records = {}
    try:
        for name in ("stays", "succeeds", "fails", "cancelled"):
            records[name] = pipeline.submit(stage.bundle(name), stage.backend())
        yield records
    finally:
        for record in records.values():
            stage.backend().cancel(record.handle)


def running(stage, record):
    """Wait until a job runs on all its nodes; return its status."""
    for status in stage.backend().wait(record.handle, timeout_s=START_TIMEOUT_S):
        assert not status.state.is_final, status
        if status.state is JobState.RUNNING and status.nodes == NODES:
            return status
    raise AssertionError(f"does not run after {START_TIMEOUT_S} s: {status}")


def ended(stage, record, state):
    """Bring a job to its end, unless it has ended; return its status. Tests come in any order."""
    if not stage.backend().status(record.handle).state.is_final:
        running(stage, record)
        stage.end(record.handle, state)
    return ending(stage, record)


def ending(stage, record):
    """Wait until a job has ended; return its status."""
    *_, status = stage.backend().wait(record.handle, timeout_s=TIMEOUT_S)
    assert status.state.is_final
    return status


def num_ranks(stage):
    """Return the number of ranks that have a log."""
    return getattr(stage, "num_ranks", NODES)


def all_ranks(stage):
    return LogSelection(ranks=tuple(range(num_ranks(stage))))


def workers_lines(lines):
    """Return the lines of workers, without the news between them."""
    return [line for line in lines if line.kind == "line"]


class Follower:
    """Reads a job's log in a thread, until the job has ended."""

    def __init__(self, stage, record, selection):
        self.lines = []
        self._source = stage.backend().logs(record.handle, selection, follow=True)
        self._selection = selection
        self._thread = threading.Thread(target=lambda: self.lines.extend(self._source), daemon=True)
        self._thread.start()

    def result(self):
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), f"still follows; so far {self.lines}"
        return list(shown(workers_lines(self.lines), self._selection))


def test_a_submitted_job_is_found_again_from_its_record(stage, submitted):
    record = submitted["stays"]
    handle = record.handle
    assert registry.read(handle.bundle_dir) == record and record.ended is None
    assert handle.native_id and handle.is_new
    assert handle.backend == stage.backend().name
    bundle, backend_name = bundles.read(handle.bundle_dir)
    assert (record.digest, handle.backend) == (bundle.digest, backend_name)


def test_a_job_that_is_there_is_not_submitted_again(stage, submitted):
    record = submitted["stays"]
    running(stage, record)
    bundle, _ = bundles.read(record.handle.bundle_dir)
    try:
        again = stage.backend().submit(bundle)
    except ProblemsFound as error:
        assert [problem.code for problem in error.problems] == ["E405"]
    else:
        assert not again.is_new and again == record.handle
        assert registry.record(bundle, again, "somebody else") == record
    assert running(stage, record).restarts == 0


def test_logs_of_several_ranks_are_followed_to_the_end_each_line_once(stage, submitted):
    record, ranks = submitted["succeeds"], num_ranks(stage)
    running(stage, record)
    one = Follower(stage, record, LogSelection(ranks=(ranks - 1,)))
    every = Follower(stage, record, LogSelection(ranks=None))
    for number in range(20):
        for rank in range(ranks):
            stage.say(record.handle, rank, f"line {number} of {rank}")
    await_true(
        lambda: (
            f"rank {ranks - 1} | line 19 of {ranks - 1}"
            in log_texts(stage.backend(), record.handle, LogSelection(ranks=None), follow=False)
        ),
        "the last line",
    )
    assert registry.status(record, stage.backend()).state is JobState.RUNNING
    stage.end(record.handle, JobState.SUCCEEDED)
    by_rank = [[f"line {number} of {rank}" for number in range(20)] for rank in range(ranks)]
    assert one.result() == by_rank[-1]
    lines = every.result()
    for rank, expected in enumerate(by_rank):
        prefix = f"rank {rank} | "
        assert [line.removeprefix(prefix) for line in lines if line.startswith(prefix)] == expected
    assert len(lines) == ranks * 20
    assert ending(stage, record).state is JobState.SUCCEEDED


def test_an_ended_job_can_still_be_looked_at(stage, submitted):
    record, backend = submitted["fails"], stage.backend()
    status = ended(stage, record, JobState.FAILED)
    assert list(backend.wait(record.handle)) == [status] == [backend.status(record.handle)]
    events = list(backend.events(record.handle, follow=True))
    assert events and events == sorted(events, key=lambda event: event.time_s)
    assert all(event.kind and event.message for event in events)
    assert list(backend.events(record.handle, follow=False)) == events
    backend.cancel(record.handle)
    assert backend.status(record.handle) == status
    with pytest.raises(ProblemsFound, match="E412"):
        backend.scale(record.handle, 1)


@pytest.mark.parametrize(
    "selection",
    [LogSelection(ranks=(7,)), LogSelection(ranks=(0, 7)), LogSelection(attempt=99)],
    ids=["rank", "one-of-two-ranks", "attempt"],
)
def test_logs_of_what_is_not_there_are_refused_before_the_first_line(stage, submitted, selection):
    record = submitted["stays"]
    running(stage, record)
    with pytest.raises(ProblemsFound, match="E70[67]"):
        log_texts(stage.backend(), record.handle, selection, follow=False)


def test_waiting_ends_when_its_time_is_over(stage, submitted):
    record = submitted["stays"]
    status = running(stage, record)
    began = time.monotonic()
    assert list(stage.backend().wait(record.handle, timeout_s=1.0)) == [status]
    assert 1.0 <= time.monotonic() - began < 60.0
    with pytest.raises(ProblemsFound, match="E712 .*\n.*has not ended after 0.1 s: running"):
        list(registry.changes(record, stage.backend(), timeout_s=0.1))


def test_a_failed_job_says_why(stage, submitted):
    record = submitted["fails"]
    status = ended(stage, record, JobState.FAILED)
    assert status.state is JobState.FAILED and status.message
    assert [seen.state for seen in registry.changes(record, stage.backend())] == [JobState.FAILED]


def test_a_job_is_scaled_within_its_plan_only(stage, submitted):
    record, backend = submitted["stays"], stage.backend()
    running(stage, record)
    for nodes in (0, 5):
        with pytest.raises(ProblemsFound, match="E413") as refused:
            backend.scale(record.handle, nodes)
        assert refused.value.problems[0].allowed == "1, 2, 3, 4"
    backend.scale(record.handle, NODES)


def test_a_cancelled_job_has_ended_for_everybody(stage, submitted):
    record = submitted["cancelled"]
    running(stage, record)
    follower = Follower(stage, record, all_ranks(stage))
    seen = []
    waiter = threading.Thread(target=lambda: seen.extend(registry.changes(record, stage.backend())), daemon=True)
    waiter.start()
    await_true(lambda: seen, "the first status")
    status = registry.cancel(record, stage.backend(), "ada")
    assert status.state is JobState.CANCELLED
    waiter.join(TIMEOUT_S)
    assert not waiter.is_alive() and seen[-1].state is JobState.CANCELLED
    follower.result()
    fresh = registry.submitted(record.handle.bundle_dir)
    assert registry.status(fresh, stage.backend()).state is JobState.CANCELLED
    stage.backend().cancel(record.handle)
