"""The life of a training job on this machine: input, programs, output; stop, time limit and retries.

Source: Amazon SageMaker API, StoppingCondition, RetryStrategy, StopTrainingJob, DescribeTrainingJob.
"""

import logging
import os
import shutil
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from launcher.backends.sagemaker_local import artefacts, program
from launcher.backends.sagemaker_local.channels import Feed, Place, channels_of, input_data_config, prepare
from launcher.backends.sagemaker_local.hosts import Fleet, kill_all
from launcher.backends.sagemaker_local.interrupts import Interrupts
from launcher.backends.sagemaker_local.isolation import Isolation
from launcher.backends.sagemaker_local.objects import Stores
from launcher.backends.sagemaker_local.optml import Host, hosts, lay_out
from launcher.backends.sagemaker_local.record import LOG_DIR, Record
from launcher.backends.sagemaker_local.sync import Sync, Syncing, kept
from launcher.common.problems import ProblemsFound

HOSTS_DIR = "hosts"
"""Folder of the run folder that holds each host's /opt/ml. It is removed when the job ends, like instances."""

EXIT_STOPPED = 130
"""Exit status of the operator of a job that was stopped."""

_LOOK_S = 0.25
"""Seconds between two polls of channels and of the time, which raise no signal."""
_TAKE_BACK_S = 2.0
"""Time limit for a store to remove an incomplete object when the user stops the job again."""

_log = logging.getLogger("job")


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended.

    Args:
        secondary: The job's final secondary status.
        reason: Why it failed.
        is_lost: Whether a lost host, not the program, is the cause.
    """

    secondary: str
    reason: str = ""
    is_lost: bool = False


COMPLETED = End("Completed")


class _GivenUp(BaseException):
    """A second request to stop during the upload of output; when raised, a store removes its incomplete object.

    Not an Exception, so that nothing on the way catches it.
    """


@dataclass(slots=True)
class Job:
    """One training job.

    Args:
        request: CreateTrainingJob.
        recipe: Files of the recipe's channel, and their source.
        stores: The stores of its data and output.
        run_dir: Its folder on this machine.
        isolation: How its hosts are isolated.
        patience_s: Seconds between SIGTERM and SIGKILL.
        sync_s: Seconds between two scans for its checkpoints.
        interrupts: Requests to stop it.
        lock: The lock of its run folder.
        hosts_dir: Parent of the hosts' folders.
        deadline: End of its time limit, on the monotonic clock; None before it trains.
    """

    request: Mapping[str, Any]
    region: str
    recipe: Iterable[tuple[Path, str]]
    stores: Stores
    run_dir: Path
    isolation: Isolation
    patience_s: float
    sync_s: float
    record: Record
    interrupts: Interrupts
    lock: IO[bytes]
    hosts_dir: Path = field(init=False)
    hosts: tuple[Host, ...] = field(init=False)
    deadline: float | None = None

    def __post_init__(self) -> None:
        self.hosts_dir = self.run_dir / HOSTS_DIR
        self.hosts = hosts(self.request["ResourceConfig"], self.hosts_dir, is_private=self.isolation.is_private)

    def run(self) -> str:
        """Run the job to its end; return its last secondary status."""
        image = self.request["AlgorithmSpecification"].get("TrainingImage")
        differences = (
            self.isolation.note,
            "hosts keep their network" if self.request.get("EnableNetworkIsolation") else "",
            f"the software installed here replaces {image}" if image else "",
        )
        note = "; ".join(filter(None, differences))
        retries = (self.request.get("RetryStrategy") or {}).get("MaximumRetryAttempts", 0)
        for number in range(retries + 1):
            self.record.enter("Starting", note)
            end = self._attempt(number, is_last=number == retries)
            if not end.is_lost:
                break
            note = f"again: {end.reason}"
            _log.info("%s", end.reason)
        shutil.rmtree(self.hosts_dir, ignore_errors=True)
        if end.reason:
            self.record.fail(end.reason)
        self.record.enter(end.secondary)
        return end.secondary

    def _attempt(self, number: int, *, is_last: bool) -> End:
        """Run the job's programs once, from new hosts to the upload of their output."""
        shutil.rmtree(self.hosts_dir, ignore_errors=True)
        feeds: dict[str, list[Feed]] = {}
        syncing = None
        try:
            self.record.enter("Downloading")
            with self.interrupts.at_once(self._end_at_once):
                syncs = self._download(feeds)
            syncing = Syncing(syncs, self.sync_s)
            end = self._train(number, feeds)
        except (ProblemsFound, OSError) as error:
            end = End("Failed", _client_error(error))
        finally:
            for feed in _all(feeds):
                feed.close()
            kill_all()
        if syncing is None:
            return end
        return self._upload(end, syncing, is_repeated=end.is_lost and not is_last)

    def _download(self, feeds: dict[str, list[Feed]]) -> list[Sync]:
        """Create every host's folders, channels and checkpoints; return the folders to synchronise."""
        request = self.request
        for source, uri in self.recipe:
            self.stores.put(source, uri)
        mode = request["AlgorithmSpecification"]["TrainingInputMode"]
        channels = request.get("InputDataConfig") or ()
        groups: dict[str, tuple[str, ...]] = {}
        for host in self.hosts if "InstanceGroups" in request["ResourceConfig"] else ():
            groups[host.group] = (*groups.get(host.group, ()), host.name)
        for host in self.hosts:
            place = Place(host.data_dir, host.name, tuple(each.name for each in self.hosts), groups)
            lay_out(host, self.hosts, request, input_data_config(channels_of(channels, place), mode))
            program.bring_code(request, host)
            feeds[host.name] = prepare(channels, mode, place, self.stores)
        syncs = [Sync(each, self.hosts, self.stores, self.hosts_dir) for each in kept(request)]
        for sync in syncs:
            sync.bring()
        return syncs

    def _end_at_once(self) -> NoReturn:
        """End the job before any program has started."""
        self.record.enter("Stopped")
        _exit()

    def _give_up(self, end: End) -> NoReturn:
        """End the job during the upload of its output: incomplete objects are removed, if that is quick."""
        if end.reason:
            self.record.fail(end.reason)
        self.record.enter("Stopped" if end is COMPLETED else end.secondary, "incomplete output was not kept")
        signal.signal(signal.SIGALRM, lambda _signum, _frame: _exit())
        signal.setitimer(signal.ITIMER_REAL, _TAKE_BACK_S)  # a store that does not answer is not waited for
        raise _GivenUp

    def _train(self, number: int, feeds: Mapping[str, Sequence[Feed]]) -> End:
        """Run the programs until they have ended or must be stopped."""
        self.record.enter("Training", "; ".join(sorted({feed.note for feed in _all(feeds) if feed.note})))
        if self.deadline is None:
            self.deadline = time.monotonic() + self.request["StoppingCondition"]["MaxRuntimeInSeconds"]
        fleet = Fleet(self.run_dir / LOG_DIR, number, self.lock)
        for feed in _all(feeds):
            feed.start()
        # The first host last: mpirun may start there, and needs to find the others.
        for host in reversed(self.hosts):
            words = program.words(self.request, self.hosts, host)
            arn, endpoint = self.record.fields["TrainingJobArn"], self.stores.endpoint
            environment = program.environment(self.request, arn, self.region, endpoint, self.hosts, host)
            fleet.start(host, words, environment, feeds[host.name])
        while not (end := self._verdict(fleet, feeds)):
            if self.interrupts.count or time.monotonic() >= self.deadline:
                return self._stop(fleet)
            self.interrupts.rest(min(_LOOK_S, self.deadline - time.monotonic()))
        return end

    def _verdict(self, fleet: Fleet, feeds: Mapping[str, Sequence[Feed]]) -> End | None:
        """Return how the attempt ended; None while it runs."""
        ended = fleet.collect()
        # If one host is lost, the others' programs fail because of it.
        if failed := sorted((each for each in ended if each.code), key=lambda each: not each.is_lost):
            first = failed[0]
            if first.is_lost:
                return End("Failed", f"InternalServerError: {first.host.name} was lost", is_lost=True)
            hosts = (*(each.host for each in failed), *self.hosts)
            return End("Failed", artefacts.failure_reason(hosts, first.code))
        if problem := next((feed.problem for feed in _all(feeds) if feed.problem), None):
            return End("Failed", _client_error(ProblemsFound((problem,))))
        is_mpi = program.is_mpi(self.request)
        if not fleet.running or (is_mpi and any(each.host is self.hosts[0] for each in ended)):
            return COMPLETED
        return None

    def _stop(self, fleet: Fleet) -> End:
        """Stop the programs, and wait as long as SageMaker does, or until a second request to stop."""
        asked = self.interrupts.count
        self.record.enter("Stopping")
        fleet.terminate()
        kill_at = time.monotonic() + self.patience_s
        while fleet.running and self.interrupts.count == asked and (left := kill_at - time.monotonic()) > 0:
            self.interrupts.rest(left)
            fleet.collect()
        return End("Stopped" if asked else "MaxRuntimeExceeded")

    def _upload(self, end: End, syncing: Syncing, *, is_repeated: bool) -> End:
        """Upload checkpoints, then output, however the programs ended; return how the attempt ended.

        Args:
            is_repeated: Whether another attempt follows, which provides the job's output.
        """
        self.record.enter("Uploading")
        try:
            # The first request is StopTrainingJob's, which keeps the output.
            with self.interrupts.at_once(lambda: self._give_up(end), max(1, self.interrupts.count)):
                notes, faults = self._put(syncing, is_repeated=is_repeated)
        except _GivenUp:
            _exit()
        for note in notes:
            _log.warning("%s", note)
        self.record.leave_out(notes)
        if faults:
            return End("Failed", end.reason or "; ".join(faults))
        if end is COMPLETED:
            uri = artefacts.model_uri(self.request)
            self.record.fields["ModelArtifacts"] = {"S3ModelArtifacts": uri}
        return end

    def _put(self, syncing: Syncing, *, is_repeated: bool) -> tuple[list[str], list[str]]:
        """Upload checkpoints and output; return messages for the user, and errors."""
        notes, faults = [], []
        steps = [syncing.finish]
        if not is_repeated:
            steps.append(lambda: artefacts.publish(self.request, self.hosts, self.stores, self.hosts_dir))
        for step in steps:  # one store's refusal does not stop the others
            try:
                notes += step()
            except (ProblemsFound, OSError) as error:
                faults.append(_client_error(error))
        return notes, faults


def _exit() -> NoReturn:
    """End this process, and with it all that remains of its job."""
    logging.shutdown()
    os._exit(EXIT_STOPPED)


def _client_error(error: ProblemsFound | OSError) -> str:
    """Return a failure to read data or upload output as a FailureReason."""
    text = "; ".join(f"{p.path}: {p.message}" for p in error.problems) if isinstance(error, ProblemsFound) else error
    return f"ClientError: {text}"


def _all(feeds: Mapping[str, Sequence[Feed]]) -> Iterable[Feed]:
    return (feed for each in feeds.values() for feed in each)
