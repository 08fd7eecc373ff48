"""Runs a sweep: asks for trials, launches their jobs, some at a time, follows them and reports how they end.

A trial is on record before its job is launched, with the folder of its bundle: if this process ends in any way,
another one finds every job, launches none twice and loses none.
"""

import dataclasses
import math
import time
from collections import deque
from collections.abc import Iterator

from launcher import pipeline
from launcher.api import job as jobs
from launcher.api import launching
from launcher.api.job import Job, JobTimeout
from launcher.api.plan import Plan
from launcher.api.sweeps import choosing
from launcher.api.sweeps.measuring import Meter
from launcher.api.sweeps.record import (
    CANCELLED,
    FAILED,
    PRUNED,
    RUNNING,
    SUCCEEDED,
    WAITING,
    Description,
    SweepFolder,
    Trial,
)
from launcher.bundle import store
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.job_store import registry, tracking
from launcher.job_store.tracking import TrackedRun
from launcher.model import backend_registry
from launcher.model.following import Deadline
from launcher.model.job_spec import JobState, JobStatus

_HERE_S, _ELSEWHERE_S = 0.3, 10.0
"""Pause between two looks at jobs: on this machine, and where each look is a request."""
_PATIENCE_S = 900.0
"""How long a cluster or an MLflow store that has answered may not answer; a sweep may run for days."""
_STATES = {JobState.SUCCEEDED: SUCCEEDED, JobState.CANCELLED: CANCELLED}


class Engine:
    """Runs one sweep. Hold the lock of its folder meanwhile.

    Args:
        plan: What every job has.
    """

    def __init__(self, plan: Plan, description: Description, folder: SweepFolder):
        self.plan, self.description, self.folder = plan, description, folder
        self.trials = self.folder.trials()
        self._chooser = choosing.chooser(self.description, self.folder.path)
        self._chooser.restore(self.trials)
        self._meters: dict[int, Meter] = {}
        self._answered_s = -math.inf
        first = choosing.first(self.description.dimensions)
        self._backend = backend_registry.load_backend(self.plan.trial(first).job.backend)
        cluster = backend_registry.described(self._backend.name)
        self._queue, self._is_here = cluster.queue(), cluster.runs_here

    @property
    def parent(self) -> TrackedRun | None:
        """The MLflow run of the sweep."""
        return TrackedRun(*self.description.parent_run) if self.description.parent_run else None

    def run(self, deadline: Deadline) -> Iterator[Trial]:
        """Run the sweep to its end; yield each trial when its job runs and when it has ended.

        Raises:
            JobTimeout: The time is over; jobs that run keep running.
            ProblemsFound: A job cannot be launched for a reason that other trials share, or the first trial that
                succeeded wrote no objective (E724).
        """
        yield from self._relaunch()
        while True:
            yield from self._launch_next()
            if not (running := self._in(RUNNING)):
                return
            for trial in running:
                if (seen := self._patiently_seen(trial)).is_finished:
                    self._note(seen)
                    self._chooser.tell(seen)
                    yield seen
                    self._refuse_unmeasured(seen)
            if not deadline.left_s:
                raise JobTimeout(fail("E712", self.folder.path.name, "has not ended in time").problems)
            time.sleep(min(_HERE_S if self._is_here else _ELSEWHERE_S, deadline.left_s))

    def cancel(self) -> None:
        """Cancel every job that has not ended."""
        for trial in (*self._in(RUNNING), *self._in(WAITING)):
            if trial.job and registry.read(trial.folder):
                Job(trial.folder).cancel()
            done = dataclasses.replace(trial, state=CANCELLED, reason="the sweep was cancelled")
            self._note(done)
            self._chooser.tell(done)

    def _in(self, state: str) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.state == state]

    def _note(self, trial: Trial) -> None:
        self.trials[trial.number] = trial
        self.folder.note(trial)

    def _relaunch(self) -> Iterator[Trial]:
        """Launch the jobs of trials that the process before recorded, and did not launch."""
        for trial in self._in(WAITING):
            yield self._launched(trial)
        for trial in self._in(RUNNING):
            self._adopt(trial)

    def _launch_next(self) -> Iterator[Trial]:
        """Launch jobs until as many run as may; all that are left at once where they share an array."""
        as_array = self.description.is_grid and self._queue is not None and self.description.pruner is None
        new: list[Trial] = []
        while as_array or len(self._in(RUNNING)) + len(new) < self.description.parallel:
            if (found := self._chooser.ask()) is None:
                break
            number, values = found
            trial = Trial(number, values, choosing.texts(self.description.dimensions, values))
            self._note(trial)
            if as_array:
                new.append(trial)
            else:
                yield self._launched(trial)
        if new:
            yield from self._launched_together(new)

    def _launched(self, trial: Trial) -> Trial:
        """Launch the job of a trial, unless it was launched already; a trial that does not compile has failed."""
        trial = self._written(trial)
        if trial.is_finished:
            return trial
        if not registry.read(trial.folder):
            try:
                jobs.launched(trial.folder)
            except ProblemsFound:
                if not registry.read(trial.folder):  # by a process that was still at it
                    raise
        return self._started(trial)

    def _launched_together(self, new: list[Trial]) -> list[Trial]:
        """Launch the jobs of trials as Slurm's arrays."""
        written = [self._written(trial) for trial in new]
        ready = [trial for trial in written if not trial.is_finished]
        bundles = [pipeline.complete(store.read(trial.folder)[0]) for trial in ready]
        if bundles:
            launching.submit(bundles, self._backend, is_again=False)
        return [*(each for each in written if each.is_finished), *map(self._started, ready)]

    def _written(self, trial: Trial) -> Trial:
        """Compile a trial and write its bundle, whose folder is on record first."""
        if trial.job and trial.folder.is_dir():
            return trial
        try:
            plan = self.plan.trial(trial.overrides)
        except ProblemsFound as error:
            reason = "; ".join(f"{each.code} {each.path} {each.message}" for each in error.problems)
            failed = dataclasses.replace(trial, state=FAILED, reason=reason)
            self._note(failed)
            self._chooser.tell(failed)
            return failed
        trial = dataclasses.replace(trial, job=str(plan.bundle.directory.absolute()))
        self._note(trial)
        plan.write()
        return trial

    def _started(self, trial: Trial) -> Trial:
        trial = dataclasses.replace(trial, state=RUNNING)
        self._note(trial)
        self._adopt(trial)
        return trial

    def _adopt(self, trial: Trial) -> None:
        """Make the MLflow run of a trial a child of the sweep's; its job may have been removed."""
        if self.parent and registry.read(trial.folder):
            tracking.add_child(self.parent, store.read(trial.folder)[0])

    def _patiently_seen(self, trial: Trial) -> Trial:
        """Look at the job of a trial; leave it as it is while a cluster or store that has answered does not."""
        try:
            seen = self._seen(trial)
        except ProblemsFound:
            if time.monotonic() - self._answered_s > _PATIENCE_S:
                raise
            return trial
        self._answered_s = time.monotonic()
        return seen

    def _seen(self, trial: Trial) -> Trial:
        """Look at the job of a trial; cancel it if it is worth no further step."""
        job = Job(trial.folder)
        if registry.read(job.folder) is None:
            return dataclasses.replace(trial, state=FAILED, reason="the records of its job were removed")
        status = job.status  # before its metrics, which it has all written once it has ended
        if self.description.objective is None:
            return self._ended(trial, job, status, None) if status.state.is_final else trial
        meter = self._meters.setdefault(trial.number, Meter(job, self.description.objective))
        if self._chooser.prunes(trial.number, list(meter.new_points())) and not status.state.is_final:
            status = job.cancel()
            deque(meter.new_points(), maxlen=0)  # those until its end
            if status.state is not JobState.SUCCEEDED:
                return self._pruned(trial, meter)
        return self._ended(trial, job, status, meter) if status.state.is_final else trial

    def _pruned(self, trial: Trial, meter: Meter) -> Trial:
        reason = f"{meter.objective} is {meter.value:.6g} at step {meter.step}, worse than the median"
        return dataclasses.replace(trial, state=PRUNED, value=_finite(meter.value), step=meter.step, reason=reason)

    def _ended(self, trial: Trial, job: Job, status: JobStatus, meter: Meter | None) -> Trial:
        if not self._is_here:
            launching.close_run(job.record, status)
        state, reason = _STATES.get(status.state, FAILED), None
        if state != SUCCEEDED:
            reason = status.message or status.state.value
        elif meter and (reason := meter.fault()):
            state = FAILED
        value, step = (meter.value, meter.step) if meter else (None, None)
        return dataclasses.replace(trial, state=state, value=_finite(value), step=step, reason=reason)

    def _refuse_unmeasured(self, trial: Trial) -> None:
        """Raise a Problem if the first job that reached its end wrote no objective: no other one would."""
        meter = self._meters.get(trial.number)
        is_first = all(other.value is None for other in self.trials.values())
        if trial.state == FAILED and meter and meter.value is None and trial.reason == meter.fault() and is_first:
            allowed = ", ".join(sorted(meter.seen)) or None
            remedy = "set objective to a metric of the job; the other trials that run are not affected"
            raise ProblemsFound(
                (Problem("E724", "objective", trial.reason or "", self.description.objective, allowed, remedy),)
            )


def _finite(value: float | None) -> float | None:
    """Return a value that JSON has."""
    return value if value is not None and math.isfinite(value) else None
