"""The process that simulates SageMaker on this machine for one job: input, programs, output; stop, limit, retries.

    python -m launcher.backends.sagemaker_local.operator BUNDLE_DIR

SIGTERM, SIGINT or SIGHUP stops the job as StopTrainingJob does; a second one at once. Exit status: 0 the job
completed, 3 it failed, 130 it was stopped.

Source: Amazon SageMaker API, StoppingCondition, RetryStrategy, StopTrainingJob, DescribeTrainingJob.
"""

import argparse
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from launcher.backends.sagemaker.request import RAY, REQUEST, START, model_uri
from launcher.backends.sagemaker.submit import recipe_uri
from launcher.backends.sagemaker_local import artefacts, isolation, program, record
from launcher.backends.sagemaker_local.channels import Feed, Place, channels_of, input_data_config, prepare
from launcher.backends.sagemaker_local.hosts import Fleet, kill_all
from launcher.backends.sagemaker_local.interrupts import Interrupts
from launcher.backends.sagemaker_local.objects import Stores
from launcher.backends.sagemaker_local.optml import hosts, lay_out
from launcher.backends.sagemaker_local.sync import INTERVAL_S, Sync, Syncing, kept
from launcher.common import prctl, redaction
from launcher.common.locks import JobAlreadyRunning, lock
from launcher.common.names import CONFIG_DIR, LOG_DIR, RUN_DIR
from launcher.common.problems import ProblemsFound

HOSTS_DIR = "hosts"
"""Folder of the run folder that holds each host's /opt/ml. It is removed when the job ends, like instances."""

MACHINE_FILE = "machine.json"
"""File in the bundle for settings that the request omits because AWS would know them."""

PATIENCE_S = 120.0
"""Seconds between SIGTERM and SIGKILL. Source: Amazon SageMaker API, StopTrainingJob."""

_EXIT_FAILED, _EXIT_BUSY, _EXIT_STOPPED = 3, 4, 130
_EXITS = {"Completed": 0, "Stopped": _EXIT_STOPPED}

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


class Job:
    """The training job of a bundle, run as the operator's command line says, under the held lock of its folder."""

    def __init__(self, bundle_dir: Path, args: argparse.Namespace, interrupts: Interrupts, lock_file: IO[bytes]):
        self._args, self._interrupts, self._lock = args, interrupts, lock_file
        self._run_dir = bundle_dir / RUN_DIR
        self._request: dict[str, Any] = json.loads((bundle_dir / REQUEST).read_text(encoding="utf-8"))
        machine = json.loads((bundle_dir / MACHINE_FILE).read_text(encoding="utf-8"))
        region = machine["region"] or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        self._region: str = region or record.REGION
        self._stores = Stores(machine["s3_endpoint"], machine["region"], machine["file_systems"])
        self._record = record.begin(self._run_dir, self._request, self._region)
        self._isolation = isolation.named(args.isolation)
        self._hosts_dir = self._run_dir / HOSTS_DIR
        self._hosts = hosts(self._request["ResourceConfig"], self._hosts_dir, is_private=self._isolation.is_private)
        self._deadline: float | None = None  # end of its time limit, on the monotonic clock, once it trains
        starts = [path for path in (bundle_dir / START, bundle_dir / RAY) if path.exists()]
        # Ray listens on all addresses of this machine, and runs the code of whoever connects.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._token = token if bundle_dir / RAY in starts else {}
        self._recipe = [*sorted((bundle_dir / CONFIG_DIR).iterdir()), *starts]

    def run(self) -> str:
        """Run the job to its end; return its last secondary status."""
        image = self._request["AlgorithmSpecification"].get("TrainingImage")
        differences = (
            self._isolation.note,
            "hosts keep their network" if self._request.get("EnableNetworkIsolation") else "",
            f"the software installed here replaces {image}" if image else "",
        )
        note = "; ".join(filter(None, differences))
        retries = (self._request.get("RetryStrategy") or {}).get("MaximumRetryAttempts", 0)
        for number in range(retries + 1):
            self._record.enter("Starting", note)
            end = self._attempt(number, is_last=number == retries)
            if not end.is_lost:
                break
            note = f"again: {end.reason}"
            _log.info("%s", end.reason)
        shutil.rmtree(self._hosts_dir, ignore_errors=True)
        if end.reason:
            self._record.fail(end.reason)
        self._record.enter(end.secondary)
        return end.secondary

    def _attempt(self, number: int, *, is_last: bool) -> End:
        """Run the job's programs once, from new hosts to the upload of their output."""
        shutil.rmtree(self._hosts_dir, ignore_errors=True)
        feeds: dict[str, list[Feed]] = {}
        syncing = None
        try:
            self._record.enter("Downloading")
            with self._interrupts.at_once(self._end_at_once):
                syncs = self._download(feeds)
            syncing = Syncing(syncs, self._args.sync)
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
        request = self._request
        for path in self._recipe:
            self._stores.put(path, f"{recipe_uri(request)}{path.name}")
        mode = request["AlgorithmSpecification"]["TrainingInputMode"]
        channels = request["InputDataConfig"]
        groups: dict[str, tuple[str, ...]] = {}
        for host in self._hosts if "InstanceGroups" in request["ResourceConfig"] else ():
            groups[host.group] = (*groups.get(host.group, ()), host.name)
        for host in self._hosts:
            place = Place(host.data_dir, host.name, tuple(each.name for each in self._hosts), groups)
            lay_out(host, self._hosts, request, input_data_config(channels_of(channels, place), mode))
            program.bring_code(request, host)
            feeds[host.name] = prepare(channels, mode, place, self._stores)
        syncs = [Sync(each, self._hosts, self._stores, self._hosts_dir) for each in kept(request)]
        for sync in syncs:
            sync.bring()
        return syncs

    def _end_at_once(self) -> NoReturn:
        """End the job before any program has started."""
        self._record.enter("Stopped")
        _exit()

    def _give_up(self, end: End) -> NoReturn:
        """End the job during the upload of its output: incomplete objects are removed, if that is quick."""
        if end.reason:
            self._record.fail(end.reason)
        self._record.enter("Stopped" if end is COMPLETED else end.secondary, "incomplete output was not kept")
        signal.signal(signal.SIGALRM, lambda _signum, _frame: _exit())
        signal.setitimer(signal.ITIMER_REAL, _TAKE_BACK_S)  # a store that does not answer is not waited for
        raise _GivenUp

    def _train(self, number: int, feeds: Mapping[str, Sequence[Feed]]) -> End:
        """Run the programs until they have ended or must be stopped."""
        self._record.enter("Training", "; ".join(sorted({feed.note for feed in _all(feeds) if feed.note})))
        if self._deadline is None:
            self._deadline = time.monotonic() + self._request["StoppingCondition"]["MaxRuntimeInSeconds"]
        fleet = Fleet(self._run_dir / LOG_DIR, number, self._lock)
        for feed in _all(feeds):
            feed.start()
        # The first host last: mpirun may start there, and needs to find the others.
        for host in reversed(self._hosts):
            words = program.words(self._request, self._hosts, host)
            arn, endpoint = self._record.fields["TrainingJobArn"], self._stores.endpoint
            environment = program.environment(self._request, arn, self._region, endpoint, self._hosts, host)
            fleet.start(host, words, {**self._token, **environment}, feeds[host.name])
        while not (end := self._verdict(fleet, feeds)):
            if self._interrupts.count or time.monotonic() >= self._deadline:
                return self._stop(fleet)
            self._interrupts.rest(min(_LOOK_S, self._deadline - time.monotonic()))
        return end

    def _verdict(self, fleet: Fleet, feeds: Mapping[str, Sequence[Feed]]) -> End | None:
        """Return how the attempt ended; None while it runs."""
        ended = fleet.collect()
        # If one host is lost, the others' programs fail because of it.
        if failed := sorted((each for each in ended if each.code), key=lambda each: not each.is_lost):
            first = failed[0]
            if first.is_lost:
                return End("Failed", f"InternalServerError: {first.host.name} was lost", is_lost=True)
            candidates = (*(each.host for each in failed), *self._hosts)
            return End("Failed", artefacts.failure_reason(candidates, first.code))
        if problem := next((feed.problem for feed in _all(feeds) if feed.problem), None):
            return End("Failed", _client_error(ProblemsFound((problem,))))
        is_mpi = program.is_mpi(self._request)
        if not fleet.running or (is_mpi and any(each.host is self._hosts[0] for each in ended)):
            return COMPLETED
        return None

    def _stop(self, fleet: Fleet) -> End:
        """Stop the programs, and wait as long as SageMaker does, or until a second request to stop."""
        asked = self._interrupts.count
        self._record.enter("Stopping")
        fleet.terminate()
        kill_at = time.monotonic() + self._args.patience
        while fleet.running and self._interrupts.count == asked and (left := kill_at - time.monotonic()) > 0:
            self._interrupts.rest(left)
            fleet.collect()
        return End("Stopped" if asked else "MaxRuntimeExceeded")

    def _upload(self, end: End, syncing: Syncing, *, is_repeated: bool) -> End:
        """Upload checkpoints, then output if no attempt follows, however the programs ended; return the end."""
        self._record.enter("Uploading")
        try:
            # The first request is StopTrainingJob's, which keeps the output.
            with self._interrupts.at_once(lambda: self._give_up(end), max(1, self._interrupts.count)):
                notes, faults = self._put(syncing, is_repeated=is_repeated)
        except _GivenUp:
            _exit()
        for note in notes:
            _log.warning("%s", note)
        self._record.leave_out(notes)
        if faults:
            return End("Failed", end.reason or "; ".join(faults))
        if end is COMPLETED:
            uri = model_uri(self._request)
            self._record.fields["ModelArtifacts"] = {"S3ModelArtifacts": uri}
        return end

    def _put(self, syncing: Syncing, *, is_repeated: bool) -> tuple[list[str], list[str]]:
        """Upload checkpoints and output; return messages for the user, and errors."""
        notes, faults = [], []
        steps = [syncing.finish]
        if not is_repeated:
            steps.append(lambda: artefacts.publish(self._request, self._hosts, self._stores, self._hosts_dir))
        for step in steps:  # one store's refusal does not stop the others
            try:
                notes += step()
            except (ProblemsFound, OSError) as error:
                faults.append(_client_error(error))
        return notes, faults


def _exit() -> NoReturn:
    """End this process, and with it all that remains of its job."""
    logging.shutdown()
    os._exit(_EXIT_STOPPED)


def _client_error(error: ProblemsFound | OSError) -> str:
    """Return a failure to read data or upload output as a FailureReason."""
    text = "; ".join(f"{p.path}: {p.message}" for p in error.problems) if isinstance(error, ProblemsFound) else error
    return f"ClientError: {text}"


def _all(feeds: Mapping[str, Sequence[Feed]]) -> Iterable[Feed]:
    return (feed for each in feeds.values() for feed in each)


def main() -> int:
    """Run the job of a bundle; return the exit status."""
    parser = argparse.ArgumentParser(prog="operator", description="Run a bundle's training job on this machine.")
    parser.add_argument("--isolation", default=isolation.FOLDERS.name, help="how hosts are isolated")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, metavar="SECONDS", help="from SIGTERM to SIGKILL"
    )
    parser.add_argument(
        "--sync", type=float, default=INTERVAL_S, metavar="SECONDS", help="between scans for checkpoints"
    )
    parser.add_argument("--with-launcher", action="store_true", help="stop when standard input ends")
    parser.add_argument("bundle_dir", type=Path)
    args = parser.parse_args()
    redaction.install()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    log = logging.getLogger("operator")
    interrupts = Interrupts(sys.stdin.fileno() if args.with_launcher else None)
    interrupts.listen()
    prctl.adopt_orphans()
    bundle_dir = args.bundle_dir.resolve()
    run_dir = bundle_dir / RUN_DIR
    run_dir.mkdir(exist_ok=True)
    try:
        with lock(run_dir) as lock_file:
            secondary = Job(bundle_dir, args, interrupts, lock_file).run()
    except JobAlreadyRunning as error:
        log.error("%s", error)
        return _EXIT_BUSY
    log.info("%s", secondary)
    return _EXITS.get(secondary, _EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(main())
