"""cluster=sm_local: a training job on this machine, under SageMaker's container contract."""

import importlib.util
import itertools
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from launcher.backends.sagemaker import request, submit
from launcher.backends.sagemaker.backend import SageMakerBackend, planned_request
from launcher.backends.sagemaker.client import Services
from launcher.backends.sagemaker.constraints import FILE
from launcher.backends.sagemaker.keys import JOBS, SCRIPT, given_jobs, jobs_of
from launcher.backends.sagemaker_local import isolation, program, record
from launcher.backends.sagemaker_local.contract_options import Settings
from launcher.backends.sagemaker_local.operator import HOSTS_DIR, MACHINE_FILE, PATIENCE_S
from launcher.backends.sagemaker_local.optml import OPT_ML
from launcher.backends.sagemaker_local.record import PID_FILE, LocalServices
from launcher.backends.sagemaker_local.sync import INTERVAL_S, kept
from launcher.bundle.store import json_of
from launcher.common.interrupts import reap
from launcher.common.locks import is_alive, refuse_running
from launcher.common.names import LOG_DIR, RUN_DIR
from launcher.common.problems import Problem, fail
from launcher.model import following
from launcher.model.base_model import options_of
from launcher.model.config_tree import get
from launcher.model.family_registry import interface
from launcher.model.interface import Entry
from launcher.model.job_spec import OPEN, Bundle, JobHandle, JobSpec
from launcher.operator.snapshot import OPERATOR_LOG
from launcher.operator.worker_logs import tail

_OTHER_SCRIPT = "training_cfg.entry_script=<path in that folder>"
_POLL_S = 0.1
_ROLE = f"arn:aws:iam::{record.ACCOUNT}:role/you"
"""Placeholder for a role: programs on this machine run with your own credentials."""

_END_PATIENCE_S = 30.0
"""Time limit for an operator to exit after its job."""


class ContractBackend(SageMakerBackend):
    """Simulates SageMaker for one job. Jobs end with the process that submitted them.

    Args:
        patience_s: Seconds between SIGTERM and SIGKILL.
        sync_s: Seconds between two scans for checkpoints.
        chosen: How hosts are isolated; None selects the best way that the kernel allows.
    """

    name: ClassVar[str] = "contract"

    def __init__(
        self,
        patience_s: float = PATIENCE_S,
        sync_s: float = INTERVAL_S,
        chosen: isolation.Isolation | None = None,
    ):
        super().__init__(_POLL_S)
        self._options = ("--patience", str(patience_s), "--sync", str(sync_s), "--with-launcher")
        self._chosen = chosen
        self._operators: dict[Path, subprocess.Popen[bytes]] = {}

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return what the API would refuse in the request, and what this machine cannot do."""
        made = planned_request(_with_role(job))
        if sys.platform != "linux":
            message = "cluster=local needs Linux, whose kernel ends a job's processes with the job"
            return (Problem("E402", "cluster", message, value=sys.platform),)
        return (*submit.request_problems(_in_s3(made)), *_unstartable(job, made), *_unsupported(made))

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the request as for AWS, and the settings of this machine's simulation."""
        settings = options_of(job, Settings)
        machine = {
            "region": settings.sm_jobs_config.region,
            "s3_endpoint": settings.s3_endpoint,
            "file_systems": settings.file_systems or {},
        }
        return {**request.render(_with_role(job), configs), MACHINE_FILE: json.dumps(machine, indent=2) + "\n"}

    def validate(self, bundle: Bundle) -> tuple[Problem, ...]:
        """Refuse: no server exists that could validate the bundle."""
        message = "no server can validate a job on this machine; every launch runs all its checks"
        return (Problem("E416", "server_dry_run", message, value=True, remedy="dry_run=true"),)

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return None: a job here is found through its bundle."""

    def submit(self, bundle: Bundle) -> JobHandle:
        """Start the bundle's operator; it ends with this process. Call it from the main thread.

        Raises:
            ProblemsFound: The bundle's job is already running (E405), or this kernel cannot run it (E432).
        """
        made = json_of(bundle, request.REQUEST)
        folder = bundle.directory.resolve()
        run_dir = folder / RUN_DIR
        description = run_dir / record.DESCRIPTION_FILE
        run_dir.mkdir(exist_ok=True)
        refuse_running(run_dir)
        description.unlink(missing_ok=True)
        shutil.rmtree(run_dir / LOG_DIR, ignore_errors=True)
        operator = self._start(folder, run_dir, made)
        self._operators[folder] = operator
        following.until(lambda: description.exists() or operator.poll() is not None, math.inf, _POLL_S / 10)
        found = record.read(run_dir)
        if found is None:
            raise fail("E432", "cluster", f"could not be started:\n{tail(run_dir / OPERATOR_LOG)}")
        arn = found["TrainingJobArn"]
        return JobHandle(self.name, bundle.job_name, folder, made["TrainingJobName"], kind="training job", uid=arn)

    def cancel(self, handle: JobHandle) -> None:
        """Stop the job as StopTrainingJob does, at once if it is already stopping; return when none of it runs.

        Raises:
            ProblemsFound: It does not end (E415).
        """
        super().cancel(handle)
        run_dir = handle.bundle_dir / RUN_DIR
        if not following.until(lambda: not is_alive(run_dir), _END_PATIENCE_S, _POLL_S):
            raise fail("E415", "job", "does not terminate: one of its processes still runs", value=handle.job_name)
        if operator := self._operators.get(handle.bundle_dir):
            reap(operator)

    def clear(self, handle: JobHandle) -> None:
        """Return at once: a launch here replaces the previous one's remains."""

    def _services(self, handle: JobHandle) -> Services:
        if operator := self._operators.get(handle.bundle_dir):
            operator.poll()
        return LocalServices(handle.bundle_dir / RUN_DIR)

    def _start(self, folder: Path, run_dir: Path, made: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        chosen = self._chosen or isolation.probe()
        if program.is_mpi(made) and not chosen.is_private:
            message = "mpirun reaches hosts through namespaces, which this kernel does not allow"
            raise fail("E432", "recipes.distribution.mpi", message)
        if (folder / request.RAY).exists() and not chosen.is_private:
            message = "a Ray cluster needs hosts with addresses of their own, which this kernel does not allow"
            raise fail("E432", "cluster", message)
        if not chosen.has_own_pids and importlib.util.find_spec("psutil") is None:
            message = "this kernel allows no PID namespace for a job, and without psutil its processes are not found"
            raise fail("E432", "cluster", message, remedy="pip install '.[local]'")
        words = (sys.executable, "-m", "launcher.backends.sagemaker_local.operator", "--isolation", chosen.name)
        with (run_dir / OPERATOR_LOG).open("wb") as log:
            # Its standard input is closed whenever this process exits, for any reason.
            operator = subprocess.Popen(
                isolation.guarded(chosen, run_dir / HOSTS_DIR, (*words, *self._options, str(folder))),
                env=program.launcher_path(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        (run_dir / PID_FILE).write_text(str(operator.pid), encoding="ascii")
        return operator


def _with_role(job: JobSpec) -> JobSpec:
    """Return a job that acts as a role, which every request requires."""
    if jobs_of(job).role:
        return job
    own = given_jobs(job).model_copy(update={"role": _ROLE})
    return replace(job, settings=options_of(job, Settings).model_copy(update={"sm_jobs_config": own}))


def _in_s3(value: Any) -> Any:
    """Return a request with S3 URIs in place of this machine's folders, for the API's patterns."""
    if isinstance(value, dict):
        return {key: _in_s3(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_in_s3(inner) for inner in value]
    return f"s3://bucket/{value.removeprefix(FILE)}" if isinstance(value, str) and value.startswith(FILE) else value


def _unstartable(job: JobSpec, made: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the reasons why a job's program cannot be started here."""
    jobs, entry = jobs_of(job), f"{JOBS}.container_entrypoint"
    family = interface(job)
    if jobs.container_entrypoint:
        return
    if program.is_mpi(made):
        yield from _without_mpi(job, jobs.source_dir)
    elif request.is_started(request.of_job(job)):
        yield from _without_packages(job)
    elif family.entry is Entry.SCRIPT:
        if shutil.which(program.TRAIN, path=program.launcher_path()["PATH"]) is None:
            yield _without_train(job, entry)
        if jobs.source_dir and not jobs.source_dir.startswith((f"{OPT_ML}/", "s3://")):
            yield from _absent_script(job, jobs.source_dir)
    else:
        message = "this family's program is in the image, and no image runs here"
        remedy = f"cluster.trainer={OPEN}, or {entry}=[…]"
        yield Problem("E430", "cluster.trainer", message, value=job.trainer, remedy=remedy)


def _without_packages(job: JobSpec) -> Iterator[Problem]:
    """Yield the Problem that packages which a job's program imports are not installed."""
    family = interface(job)
    words = family.first.program(job)
    modules = [word.partition(".")[0] for flag, word in itertools.pairwise(words) if flag == "-m"]
    extra_of = {
        "torch": "local",
        **({"ray": "ray"} if family.is_ray else {}),
        **dict.fromkeys(family.needs, "trainer"),
    }
    wanted = dict.fromkeys((*extra_of, *modules))
    if missing := [name for name in wanted if importlib.util.find_spec(name) is None]:
        message = f"the program needs packages that are not installed in this environment: {', '.join(missing)}"
        extras = ",".join(dict.fromkeys(extra_of[name] for name in missing if name in extra_of))
        others = [name for name in missing if name not in extra_of]
        remedy = " ".join(("pip install", *([f"'.[{extras}]'"] if extras else []), *others))
        yield Problem("E430", "cluster", message, value="sm_local", remedy=remedy)


def _without_mpi(job: JobSpec, source_dir: str | None) -> Iterator[Problem]:
    if shutil.which("mpirun") is None:
        remedy = "apt-get install --no-install-recommends openmpi-bin"
        yield Problem("E430", "recipes.distribution.mpi", "mpirun is not installed", remedy=remedy)
    if not source_dir or not Path(source_dir).is_dir():
        message = "mpirun needs a script in a folder of this machine, and this is not one"
        yield Problem("E430", f"{JOBS}.source_dir", message, value=source_dir, remedy=_OTHER_SCRIPT)
    else:
        yield from _absent_script(job, source_dir)


def _without_train(job: JobSpec, entry: str) -> Problem:
    """Return the Problem that the program which the image would start is not installed."""
    words = f"{entry}=[python3,{job.cwd}/train.py]"
    if not request.has_toolkit(request.of_job(job)):
        message = "the image starts its own program, train, which is not installed on this machine"
        return Problem("E430", f"{JOBS}.toolkit", message, value=False, remedy=words)
    message = "an image starts scripts with the toolkit's train, which is not installed here"
    return Problem("E430", f"{SCRIPT}.entry_script", message, remedy=f"pip install sagemaker-training, or {words}")


def _absent_script(job: JobSpec, source_dir: str) -> Iterator[Problem]:
    """Yield a Problem if a folder of this machine lacks the script to start."""
    script = get(job.config, f"{SCRIPT}.entry_script")
    if not Path(source_dir, script).is_file():
        message = f"has no {script}, the script to start"
        yield Problem("E430", f"{JOBS}.source_dir", message, value=source_dir, remedy=_OTHER_SCRIPT)


def _unsupported(made: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the channels that cannot be read on this machine, and the folders that would not be kept."""
    for channel in made["InputDataConfig"]:
        if channel["DataSource"].get("S3DataSource", {}).get("S3DataType") == "Converse":
            path = f"{JOBS}.inputs.channels.{channel['ChannelName']}.s3_data_type"
            message = "is read by AWS's own algorithms only"
            yield Problem("E423", path, message, value="Converse", allowed="S3Prefix or a manifest")
    for folder in kept(made):
        if not folder.path.startswith(f"{OPT_ML}/"):
            message = "is not below /opt/ml, the only folder that each host here has for itself"
            yield Problem("E431", f"{JOBS}.checkpoints.local_path", message, value=folder.path)


BACKEND = ContractBackend()
