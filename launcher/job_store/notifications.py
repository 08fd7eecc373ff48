"""Messages about a job, sent by the process that follows it to the addresses that `notify` refers to.

They are sent in a thread, once their reason is recorded: an address that refuses or hangs only gives a notice.
"""

import importlib.util
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import yaml

from launcher.common import console, redaction, yaml_io
from launcher.common import variables as environment
from launcher.common.problems import Problem, ProblemsFound
from launcher.job_store import failures, registry
from launcher.job_store.registry import JobRecord
from launcher.model.backend import Backend
from launcher.model.backend_registry import described
from launcher.model.environment import notified
from launcher.model.failure import Failure
from launcher.model.job_spec import JobEvent, JobSpec, JobState, JobStatus

Say = Callable[[str], object]
"""Prints a notice: one line."""
_PATIENCE_S = 10.0
"""Time that messages have once the job has ended."""
_INSTALL = "pip install '.[notify]'"
_ENDS = {JobState.SUCCEEDED: "finished", JobState.CANCELLED: "finished", JobState.FAILED: "failed"}
_KINDS = {"failed": "failure", "finished": "success", "recovered": "info", "stalled": "warning", "started": "info"}
"""Kind of message, by event. Source: apprise, NotifyType."""
_CANCELLED = "warning"
"""Kind of message about a job that was stopped."""


class Message(NamedTuple):
    """A message about an event of `notify_on`; `number` tells it from others about the same event."""

    event: str
    number: int
    reason: str
    is_cancelled: bool = False


class Milestones:
    """Finds the events of `notify_on` in what a follower sees of a job."""

    def __init__(self) -> None:
        self._before: JobStatus | None = None
        self._has_started = False
        self._fault = ""

    def of_status(self, seen: JobStatus, failure: Failure | None = None) -> Iterator[Message]:
        """Yield what a change of status means; of a failed job with its first error and its cause."""
        before, self._before = self._before, seen
        if seen.state.is_final:
            reason = seen.message or seen.state.value
            reason = f"{reason.splitlines()[0]}\n{failure}" if failure else reason
            is_cancelled = seen.state is JobState.CANCELLED
            yield Message(_ENDS.get(seen.state, "failed"), 0, reason, is_cancelled)
        elif seen.state is JobState.RUNNING and not self._has_started:
            self._has_started = True
            yield Message("started", 0, f"runs on {seen.nodes} nodes")
        elif before and seen.state is JobState.PENDING and before.state is not JobState.PENDING:
            yield Message("stalled", seen.restarts, seen.message or "it waits for nodes again")
        elif self._is_recovery(before, seen):
            yield Message("recovered", seen.restarts, f"runs again on {seen.nodes} nodes, restart {seen.restarts}")

    @staticmethod
    def _is_recovery(before: JobStatus | None, seen: JobStatus) -> bool:
        is_running = seen.state is JobState.RUNNING
        if before is None or not is_running or before.state is JobState.SCALING:
            return False  # workers that are restarted for another size have not failed
        return seen.restarts > before.restarts or before.state is JobState.PENDING

    def of_event(self, event: JobEvent) -> Iterator[Message]:
        """Yield what an event of the operator means."""
        number = int(event.time_s * 1000)
        if event.kind == "fault":
            from launcher.timeline.records import HANG  # not when a recipe is compiled

            self._fault = event.message
            if event.message.startswith(HANG):
                yield Message("stalled", number, event.message)
        elif event.kind == "abandoned":
            self._fault = ""  # the fault was of a new node, which had not taken part
        elif event.kind == "starting" and not self._has_started:
            self._has_started = True
            yield Message("started", 0, event.message)
        elif event.kind == "starting" and self._fault:
            yield Message("recovered", number, f"{event.message}, after: {self._fault}")
            self._fault = ""


class Notifier:
    """Sends messages about one job, each once; without `notify` it does nothing.

    Args:
        variables: Environment variables with the addresses.
        events: Those of `notify_on`.
        say: Prints why a message was not sent; called in the thread of the caller.
    """

    def __init__(self, job: JobRecord, variables: Sequence[str], events: Sequence[str], say: Say) -> None:
        self._job, self._variables, self._events, self._say = job, variables, events, say
        self._environment = environment.current()
        self._milestones = Milestones()
        self._failures: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        for name in variables:
            if address := self._environment.get(name):
                redaction.learn({"webhook": address})
            else:
                say(f"notify: {name} is not set in this environment; no message is sent to it")

    def watch(self, backend: Backend) -> None:
        """Follow a job in a thread, except for its end: by the events of its operator if that is on this machine."""
        if self._variables:
            threading.Thread(target=self._watch, args=(backend,), daemon=True).start()

    def _watch(self, backend: Backend) -> None:
        try:
            if described(backend.name).runs_here:
                for event in backend.events(self._job.handle, follow=True):
                    self._send(self._milestones.of_event(event))
                return
            for seen in registry.changes(self._job, backend):
                if not seen.state.is_final:
                    self._send(self._milestones.of_status(seen))
        except (ProblemsFound, OSError) as error:
            self._failures.put(f"notify: the job can no longer be observed: {error}")

    def saw(self, status: JobStatus, backend: Backend) -> None:
        """Send what a recorded status means."""
        if self._variables:
            self._send(self._milestones.of_status(status, failures.of(self._job, backend, status)))
            self._report()

    def close(self) -> None:
        """Wait a bounded time for messages under way, and print which were not sent."""
        deadline = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._failures.put(f"notify: {thread.name} has not answered within {_PATIENCE_S:g} s")
        self._report()

    def _report(self) -> None:
        while not self._failures.empty():
            self._say(redaction.masked(self._failures.get()))

    def _send(self, messages: Iterator[Message]) -> None:
        for message in messages:
            about = f"{message.event} {message.number}"
            if message.event not in self._events or not registry.claim_message(self._job, about):
                continue
            for variable in self._variables:
                if address := self._environment.get(variable):
                    given = (variable, address, message)
                    sender = threading.Thread(target=self._post, args=given, name=variable, daemon=True)
                    sender.start()  # before `close`, in another thread, may join it
                    self._threads.append(sender)

    def _post(self, variable: str, address: str, message: Message) -> None:
        job = self._job.handle
        title = f"{job.job_name} {'cancelled' if message.is_cancelled else message.event}"
        body = redaction.masked(f"{message.reason}\nrecipes status {job.bundle_dir}\nrecipes logs {job.bundle_dir}")
        try:
            kind = _CANCELLED if message.is_cancelled else _KINDS[message.event]
            failure = _posted(address, title, body, kind)
        except Exception as error:  # of a plugin: whatever it raises, the job and its follower go on
            failure = f"raised {type(error).__name__}"
        if failure:
            self._failures.put(f"notify: {variable} {failure}; the message about {message.event} was not sent")


def _posted(address: str, title: str, body: str, kind: str) -> str:
    """Send a message; return why that failed, without the address, or nothing."""
    try:
        import apprise
    except ImportError:
        return f"needs apprise ({_INSTALL})"
    import logging  # only here: it takes long to import

    log = logging.getLogger("apprise")
    log.addHandler(logging.NullHandler())
    log.propagate = False  # its lines may contain the address
    service = apprise.Apprise()
    if not service.add(address):
        return "is not an address of apprise"
    if not service.notify(body=body, title=title, notify_type=apprise.NotifyType(kind)):
        names = ", ".join(str(each.service_name) for each in service)
        return f"({names}) refused, or was not reached"
    return ""


def of_job(job: JobRecord, say: Say | None = None) -> Notifier:
    """Return what sends the messages about a job.

    Args:
        say: Prints a notice; None for standard error.
    """
    say = say or (lambda line: console.say(line, "yellow", stderr=True))
    try:
        config = yaml_io.load((job.handle.bundle_dir / "recipe.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):  # an adopted job has no bundle
        config = {}
    return Notifier(job, notified(config), config.get("notify_on") or (), say)


def changes(
    job: JobRecord, backend: Backend, *, timeout_s: float | None = None, say: Say | None = None
) -> Iterator[JobStatus]:
    """Yield what `registry.changes` does, and send messages about it, unless the job's launcher does."""
    found = registry.changes(job, backend, timeout_s=timeout_s)
    if job.ended or described(backend.name).runs_here:
        yield from found
        return
    notifier = of_job(job, say)
    try:
        for seen in found:
            notifier.saw(seen, backend)
            yield seen
    finally:
        notifier.close()


def problems(job: JobSpec) -> Iterator[Problem]:
    """Yield why messages about a planned job cannot be sent."""
    if job.config.get("notify") and importlib.util.find_spec("apprise") is None:
        yield Problem("E615", "notify", "messages are sent with apprise, which is not installed", remedy=_INSTALL)
