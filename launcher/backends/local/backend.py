"""cluster=local: the job on this machine, one real agent per simulated node."""

import contextlib
import importlib.util
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from launcher.backends.local.simulation import Hang, local_options
from launcher.bundle.store import config_of
from launcher.common import os_errors, syntax
from launcher.common.interrupts import reap
from launcher.common.locks import is_alive, refuse_running
from launcher.common.names import (
    ENTRYPOINT,
    ENV_COLLECTIVE_TIMEOUT,
    GRACEFUL_ENV,
    RUN_DIR,
    SCENARIO_FILE,
    WARM_MODULE,
)
from launcher.common.paths import python_path
from launcher.common.problems import Problem, ProblemsFound, fail, raise_any
from launcher.common.suggestions import did_you_mean
from launcher.common.templating import render_template
from launcher.model import following
from launcher.model.backend import RANK_0
from launcher.model.config_tree import get
from launcher.model.environment import plain_variables, secret_variables, unset_secrets
from launcher.model.family_registry import interface, recipe_model
from launcher.model.interface import BUNDLE_CONFIGS, after_options
from launcher.model.job_spec import (
    OPEN,
    Bundle,
    JobEvent,
    JobHandle,
    JobSpec,
    JobState,
    JobStatus,
    LogLine,
    LogSelection,
)
from launcher.operator.job_request import (
    LOCAL_FILE,
    REQUEST_FILE,
    SCRIPT_FILE,
    HangLimits,
    collective_timeout_s,
    local_json,
    read_job_request,
    refuse_unplanned_size,
    size_request,
)
from launcher.operator.snapshot import (
    OPERATOR_LOG,
    STATE_FILE,
    STOP_FILE,
    Snapshot,
    publish,
    read_snapshot,
    unknown_state,
)
from launcher.operator.worker_logs import POLL_S, known_attempts, read_logs, tail
from launcher.runtime.durable import write_text

LOOPBACK_ENV = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Keeps collectives off the network, and off a host name that does not resolve. A recipe may override it.

Source: torch.distributed documentation, "Choosing the network interface to use".
"""

STOP_MARGIN_S = 30.0
"""How long the operator may take to end a job, beyond the time its workers have to save."""

KILL_PATIENCE_S = 20.0
"""What ending at once may take on a loaded machine; under 2 s seen."""

_NEEDED_MODULES = ("torch", "hyperpod_elastic_agent", "httpx", "psutil")
INSTALL_TRAINER = "pip install '.[local,trainer]'"
_INSTALL = "pip install '.[local]'\n     pip install --no-deps hyperpod-elastic-agent==1.1.3"


_NOT_SUBMITTED = JobStatus(JobState.PENDING, 0, "not submitted")


class LocalBackend:
    """Runs jobs on this machine. Jobs end with the process that submitted them."""

    name: ClassVar[str] = "local"

    def __init__(self) -> None:
        self._operators: dict[Path, subprocess.Popen[bytes]] = {}

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return what keeps `job` from running on this machine. Looks for modules, imports none."""
        problems = []
        if missing := _absent(_NEEDED_MODULES):
            message = f"cluster=local runs the real agent, but this Python has no {', '.join(missing)}"
            problems.append(Problem("E401", "cluster", message, remedy=_INSTALL))
        if missing := _absent(interface(job).needs):
            message = f"the {job.trainer} trainer needs packages that this Python does not have: {', '.join(missing)}"
            problems.append(Problem("E401", "cluster.trainer", message, remedy=INSTALL_TRAINER))
        if sys.platform != "linux":
            message = "cluster=local needs Linux, whose kernel ends a job's processes with the job"
            problems.append(Problem("E402", "cluster", message, value=sys.platform))
        if "," in str(job.base_results_dir):
            message = "the results folder has a comma in its name, which --rdzv-conf cannot carry"
            problems.append(Problem("E403", "base_results_dir", message, value=str(job.base_results_dir)))
        options = local_options(job)
        if not options.command:
            problems += _absent_program(job)
        pattern = options.hang and options.hang.stopPattern
        if pattern and isinstance(fault := syntax.compiled(pattern), str):
            message = f"is not a valid regular expression: {fault}"
            problems.append(Problem("E417", "cluster.hang.stopPattern", message, value=pattern))
        return (*problems, *_scenario(job)[1])

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return `run.sh`, which starts one node's agent or the complete job, and the scenario, if it has one.

        Raises:
            ProblemsFound: The scenario's file has changed since it was checked, and is faulty now.
        """
        family = interface(job)
        graceful = job.elastic is not None and job.elastic.use_graceful_shutdown
        own = [*family.workers.program(job)]
        if family.takes_config_path:
            own += ["--config-path", BUNDLE_CONFIGS]
        command = after_options([str(word) for word in local_options(job).command or own])
        context = {
            "job_name": job.name,
            "nproc_per_node": job.nproc_per_node,
            "env": {
                **LOOPBACK_ENV,
                **(GRACEFUL_ENV if graceful else {}),
                **family.workers.env(job),
                **_collective_timeout(job),
                **plain_variables(job.config),
            },
            "secrets": {name: ref["env"] for name, ref in secret_variables(job.config).items()},
            "command": command,
            "graceful": graceful,
            "in_place_timeout_s": job.in_place_timeout_s,
            "warm_module": WARM_MODULE,
            "warm_modules": family.modules(job) if ENTRYPOINT in command else (),
        }
        files, problems = _scenario(job)
        raise_any(problems)
        local = local_json(_hang_limits(job), _checkpoint_folder(job))
        return {SCRIPT_FILE: render_template("local/run.sh.j2", **context), LOCAL_FILE: local, **files}

    def validate(self, bundle: Bundle) -> tuple[Problem, ...]:
        """Refuse: no server exists that could validate the bundle."""
        message = "a job on this machine has no server that could be asked; its checks are those of every launch"
        return (Problem("E416", "server_dry_run", message, value=True, remedy="dry_run=true"),)

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return None: a job here ends with its launch."""

    def submit(self, bundle: Bundle) -> JobHandle:
        """Start the bundle's operator; it ends with this process. Call it from the main thread.

        Raises:
            ProblemsFound: The bundle's job is running already (E405), or a secret of it is not set here (E448).
        """
        raise_any(unset_secrets(config_of(bundle)))
        handle = JobHandle(self.name, bundle.job_name, bundle.directory.resolve())
        run_dir = handle.bundle_dir / RUN_DIR
        run_dir.mkdir(exist_ok=True)
        refuse_running(run_dir)
        with (run_dir / OPERATOR_LOG).open("wb") as log:  # while it is empty, the state is not lost
            for left in (STATE_FILE, REQUEST_FILE, STOP_FILE):
                (run_dir / left).unlink(missing_ok=True)
            operator = subprocess.Popen(
                [sys.executable, "-m", "launcher.backends.local.operator"]
                + ["--parent", str(os.getpid()), str(handle.bundle_dir)],
                env={**os.environ, **python_path()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._operators[handle.bundle_dir] = operator
        try:
            _await_first_word(run_dir, operator)
        except KeyboardInterrupt:
            _end(operator, (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL))
            raise
        return replace(handle, native_id=str(operator.pid), kind="process")

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the job's current status; failed if its operator ended without reporting a result.

        Raises:
            ProblemsFound: The folder of a job that this process submitted was removed; the job has ended (E418).
                The state of another one is missing or damaged (E414).
        """
        return self._observed(handle) or _without_state(handle)

    def _observed(self, handle: JobHandle) -> JobStatus | None:
        if operator := self._operators.get(handle.bundle_dir):
            operator.poll()
        run_dir = handle.bundle_dir / RUN_DIR
        # First the lock, then the file, so that the file of a dead operator is its last state.
        alive = is_alive(run_dir)
        snapshot = read_snapshot(run_dir)
        if snapshot is None and operator:
            _end(operator, (None, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL))
            raise _folder_removed(run_dir)
        if snapshot is None:
            return None
        if alive or snapshot.state.is_final:
            return JobStatus(snapshot.state, snapshot.nodes, snapshot.message, restarts=snapshot.attempt)
        return JobStatus(JobState.FAILED, 0, _why_it_died(run_dir), restarts=snapshot.attempt)

    def wait(self, handle: JobHandle, *, timeout_s: float | None = None) -> Iterator[JobStatus]:
        """Yield the job's status now and after each change, until it has ended or the time is over.

        After the final state, the operator of a job that this process submitted is given time to remove its files.

        Raises:
            ProblemsFound: The job's folder was removed meanwhile (E418).
        """
        last: JobStatus | None = None

        def read() -> JobStatus:
            nonlocal last
            seen = self._observed(handle)
            if seen is None and last not in (None, _NOT_SUBMITTED):
                raise _folder_removed(handle.bundle_dir / RUN_DIR)
            last = seen or _without_state(handle)
            return last

        yield from following.changes(read, timeout_s, POLL_S)
        if last and last.state.is_final and (operator := self._operators.get(handle.bundle_dir)):
            _end(operator, (None,))

    def logs(self, handle: JobHandle, selection: LogSelection = RANK_0, *, follow: bool) -> Iterator[LogLine]:
        """Yield what the selected ranks wrote, attempt after attempt; with `follow`, until the job has ended.

        Raises:
            ProblemsFound: The job has no such attempt (E706) or rank (E707).
        """
        if read_snapshot(handle.bundle_dir / RUN_DIR) is None:
            _without_state(handle)
            return iter(())
        return read_logs(handle.bundle_dir, selection, follow=follow)

    def events(self, handle: JobHandle, *, follow: bool) -> Iterator[JobEvent]:
        """Yield what the operator saw and did in the job's last launch; with `follow`, until the job has ended."""
        from launcher.operator.event_log import job_events

        run_dir = handle.bundle_dir / RUN_DIR
        pause = partial(time.sleep, POLL_S) if follow else None
        return job_events(run_dir, lambda: known_attempts(run_dir)[1], pause)

    def scale(self, handle: JobHandle, num_nodes: int, min_nodes: int | None = None) -> None:
        """Ask the operator of a running job for another size; the job follows according to its recipe.

        Raises:
            ProblemsFound: The job does not run (E412), or has no such size (E413); its least is always the plan's.
        """
        run_dir = handle.bundle_dir / RUN_DIR
        if not is_alive(run_dir):
            again = " --again" if self.status(handle).state is JobState.SUCCEEDED else ""
            remedy = f"recipes launch {handle.bundle_dir}{again}"
            raise fail("E412", "job", "is not running", value=handle.job_name, remedy=remedy)
        refuse_unplanned_size(handle.bundle_dir, num_nodes, min_nodes)
        write_text(run_dir / REQUEST_FILE, size_request(num_nodes))

    def cancel(self, handle: JobHandle) -> None:
        """Stop the job according to its recipe and return when no process of it is left.

        Raises:
            ProblemsFound: It did not end even when it was killed (E415).
        """
        run_dir = handle.bundle_dir / RUN_DIR
        if not is_alive(run_dir):
            return
        snapshot = None
        with contextlib.suppress(ProblemsFound):  # a job whose state is damaged can be ended, too
            snapshot = read_snapshot(run_dir)
        pid = snapshot.pid if snapshot else int(handle.native_id or 0)
        if not pid:
            return
        patience_s = (read_job_request(handle.bundle_dir).policy.graceful_timeout_s or 0) + STOP_MARGIN_S
        rungs = (
            (signal.SIGTERM, patience_s),
            (signal.SIGTERM, KILL_PATIENCE_S),
            (signal.SIGKILL, KILL_PATIENCE_S),
        )
        for signum, wait_s in rungs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
            if following.until(lambda: not is_alive(run_dir), wait_s, POLL_S / 4):
                if operator := self._operators.get(handle.bundle_dir):
                    reap(operator)
                return
        message = f"does not end: its operator, process {pid}, or a node of it still runs"
        raise fail("E415", "job", message, value=handle.job_name)

    def clear(self, handle: JobHandle) -> None:
        """Return at once: a launch here replaces what the one before it has left."""


def _end(operator: subprocess.Popen[bytes], signals: Sequence[signal.Signals | None]) -> None:
    """Send signals until an operator has ended, and its nodes with it; None waits first."""
    for signum in signals:
        if signum is not None:
            operator.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            operator.wait(STOP_MARGIN_S)
            return


def _why_it_died(run_dir: Path) -> str:
    """Return why an operator exited without a final state: it could not write one, or the last line of its log."""
    if refusal := os_errors.written(run_dir):
        reason, remedy = os_errors.described(refusal, run_dir)
        return f"{reason}, so the job was ended; {remedy}, then: recipes launch {run_dir.parent}"
    last = tail(run_dir / OPERATOR_LOG, 1)
    return f"the job's operator died{f' ({last})' if last else ''}; see {run_dir / OPERATOR_LOG}"


def _await_first_word(run_dir: Path, operator: subprocess.Popen[bytes]) -> None:
    """Wait until the operator has published its state; publish its failure when it ends before."""
    state = run_dir / STATE_FILE
    following.until(lambda: state.exists() or operator.poll() is not None, math.inf, POLL_S / 4)
    if state.exists():
        return
    if not run_dir.exists():
        raise _folder_removed(run_dir)
    code = operator.returncode
    message = f"the operator ended with status {code}:\n{tail(run_dir / OPERATOR_LOG)}"
    publish(run_dir, Snapshot(JobState.FAILED, 0, message, 0, operator.pid, exit_code=code))


def _without_state(handle: JobHandle) -> JobStatus:
    """Return that a job without a state file was not submitted.

    Raises:
        ProblemsFound: Its operator has run and ended, or its launch is recorded (E414).
    """
    run_dir = handle.bundle_dir / RUN_DIR
    try:
        has_run = (run_dir / OPERATOR_LOG).stat().st_size > 0  # empty while an operator is about to begin
    except FileNotFoundError:
        has_run = bool(handle.native_id)
    if has_run and not is_alive(run_dir):
        raise unknown_state(run_dir, "is missing: the state of its job is unknown")
    return _NOT_SUBMITTED


def _folder_removed(run_dir: Path) -> ProblemsFound:
    """Return the Problem that the folder of a running job was removed (E418)."""
    message = "was removed while the job ran; the job was ended, and its checkpoints there are lost"
    return fail("E418", "job", message, value=str(run_dir), remedy="launch the recipe again")


def _absent(modules: Sequence[str]) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


def _hang_limits(job: JobSpec) -> HangLimits:
    options = local_options(job)
    hang = options.hang or Hang()
    start_s = hang.expectedStartCutOffInSeconds
    variables = {**_collective_timeout(job), **plain_variables(job.config)}
    return HangLimits(
        start_cut_off_s=start_s,
        recurring_s=hang.expectedRecurringFrequencyInSeconds,
        stop_pattern=hang.stopPattern,
        other_work_s=hang.otherWorkCutOffInSeconds,
        watches_start=not options.command or start_s is not None,
        collective_timeout_s=collective_timeout_s(variables.get(ENV_COLLECTIVE_TIMEOUT)),
    )


def _collective_timeout(job: JobSpec) -> dict[str, str]:
    timeout_s = local_options(job).collective_timeout
    return {} if timeout_s is None else {ENV_COLLECTIVE_TIMEOUT: f"{timeout_s:g}"}


def _checkpoint_folder(job: JobSpec) -> str | None:
    """Return the folder that the recipe names for its checkpoints, as a process in the user's folder finds it."""
    key = recipe_model(job.model_type).keys.training_dir
    folder = get(job.config, f"recipes.{key}") if key else None
    return str(job.cwd / folder) if folder else None


def _scenario(job: JobSpec) -> tuple[dict[str, str], tuple[Problem, ...]]:
    """Return the file of the job's scenario, if it has one, and every fault in that."""
    if not local_options(job).has_scenario:
        return {}, ()
    from launcher.backends.local.scenario import scenario_json
    from launcher.backends.local.scenario_files import resolve

    scenario, problems = resolve(job)
    return {SCENARIO_FILE: scenario_json(scenario)} if scenario else {}, problems


def _absent_program(job: JobSpec) -> Iterator[Problem]:
    """Yield a Problem if the script or module that the job would start does not exist."""
    first, *rest = interface(job).workers.program(job)
    if first != "-m" and not Path(first).is_file():
        beside = sorted(path.name for path in Path(first).parent.glob("*.py"))
        remedy = did_you_mean(Path(first).name, beside) or "training_cfg.entry_script=<path of your script>"
        message = "no such file; a relative path starts in the folder that you launch from"
        yield Problem("E404", "recipes.training_cfg.entry_script", message, value=first, remedy=remedy)
    elif first == "-m" and not _is_importable(rest[0], job.cwd):
        message = f"this recipe trains with {rest[0]}, which is not installed here"
        if job.trainer:
            remedy = f"cluster.trainer={OPEN}, or cluster=k8s"
            yield Problem("E404", "cluster.trainer", message, value=job.trainer, remedy=remedy)
        else:
            yield Problem("E404", "cluster", message, value="local", remedy="cluster=k8s")


def _is_importable(module: str, cwd: Path) -> bool:
    """Return whether a worker would find a module: installed, or under the folder it is launched from."""
    top = module.partition(".")[0]
    return importlib.util.find_spec(top) is not None or (cwd / top).is_dir() or (cwd / f"{top}.py").is_file()


BACKEND = LocalBackend()
