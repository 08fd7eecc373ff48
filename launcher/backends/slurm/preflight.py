"""Reasons why Slurm would refuse a job, or would accept it and never start it. Creates nothing."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launcher.backends.slurm import limits, programs
from launcher.backends.slurm.demand import NODES, demand_of, nodes_key
from launcher.backends.slurm.options import runtime_of
from launcher.backends.slurm.place import CONFIG, HERE, RECENT, Place, settings
from launcher.backends.slurm.queue import POLL_S, Seen, queue_of
from launcher.backends.slurm.requests import Request
from launcher.backends.slurm.run_files import ELASTIC_FILE
from launcher.bundle import store
from launcher.common.problems import Problem
from launcher.model.config_tree import get
from launcher.model.environment import unset_secrets
from launcher.model.job_spec import JobState

_KEYS = (
    ("walldurationperjob", "cluster.time"),
    ("nodeperjob", NODES[0]),
    ("assocmax", "cluster.account"),
    ("assocgrp", "cluster.account"),
    ("qosmax", "cluster.qos"),
    ("qosgrp", "cluster.qos"),
    ("access/permission denied", "cluster.partition"),
    ("to use this partition", "cluster.partition"),
    ("not in this partition", "cluster.nodelist"),
    ("partition specified", "cluster.partition"),
    ("required partition", "cluster.partition"),
    ("account", "cluster.account"),
    ("qos", "cluster.qos"),
    ("time limit", "cluster.time"),
    ("--time", "cluster.time"),
    ("node name", "cluster.nodelist"),
    ("feature", "cluster.constraint"),
    ("gres", "cluster.gres"),
    ("reservation", "cluster.reservation"),
    ("dependency", "cluster.dependency"),
    ("memory", "cluster.mem"),
    ("--mem", "cluster.mem"),
    ("cpu count", "cluster.cpus_per_task"),
    ("processors", "cluster.cpus_per_task"),
    ("--signal", "cluster.signal"),
    ("mail", "cluster.mail_type"),
    ("job array", "--multirun"),
    ("node count", NODES[0]),
    ("node configuration", NODES[0]),
)
"""Part of a refusal of sbatch, in lower case, to the key that it is about. Source: Slurm 22.05, slurm_errno.c."""
_REGISTRATION_S = 20.0
"""Time that nodes have to register with a controller that has started, which refuses every job until then."""
_PREFIX = re.compile(r"^(allocation failure|Batch job submission failed): ")
"""What sbatch puts before the controller's reason, with --test-only and without."""
_DEPENDENCY = re.compile(r"([a-z]+)((?::[0-9]+(?:_[0-9]+)?(?:\+[0-9]+)?)+)")
PYTHON = (3, 11)
"""The oldest Python of this package. Source: pyproject.toml, requires-python."""
OPERATOR = {"httpx": "", "psutil": "", "pydantic": "2.11"}
"""Packages that the operator imports, each with the oldest version that works; "" for any. Source: pyproject.toml."""
AGENTS = {"hyperpod_elastic_agent": "", "torch": ""}
"""Packages that agents and workers import, where they do not run in a container."""
_DOCS = "see docs/slurm.md, From a laptop"
_ENVIRONMENT = 'cd / && unset PYTHONPATH && exec "$@"'
"""A batch script replaces this variable, and starts elsewhere."""
_SCRIPT = """\
import sys
oldest = tuple(map(int, sys.argv[1].split(".")))
if sys.version_info < oldest:
    print("it is Python %d.%d" % sys.version_info[:2])
    sys.exit()
from importlib import metadata, util
def release(text):
    parts = text.split(".")[:2]
    return [int("".join(filter(str.isdigit, part)) or 0) for part in parts]
for word in sys.argv[2:]:
    name, _, version = word.partition("=")
    if util.find_spec(name) is None:
        print("%s is not installed" % name)
    elif version and release(metadata.version(name)) < release(version):
        print("%s is of version %s" % (name, metadata.version(name)))
"""
"""Prints what a Python lacks, one per line. The first lines run with any Python."""


def problems(request: Request, *, is_tried: bool = True) -> tuple[Problem, ...]:
    """Return every reason why the jobs of a request would not run.

    Args:
        is_tried: Whether to run sbatch --test-only in any case. Without, this is left to the submission if Slurm
            then refuses every job that the nodes of its partition cannot run.
    """
    demand = demand_of(request)
    found = [problem for bundle in request.bundles for problem in unset_secrets(store.config_of(bundle))]
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(refusals, request) if is_tried or not demand.is_plain else None
        found += limits.problems(request.config, demand, request.place)
        found += dependencies(request.config["cluster"], request.place)
        found += operator_problems(request)
        if early is None and (found or limits.limit_nodes(request.config, request.place)):
            early = pool.submit(refusals, request)
        return (*found, *_further(early.result() if early else (), found))


def _further(refused: Iterable[Problem], found: Sequence[Problem]) -> Iterator[Problem]:
    """Yield refusals by sbatch for other reasons than those that were found."""
    known = {problem.path for problem in found if problem.code == "E446"}
    for problem in refused:
        if problem.path not in known and not (known and problem.path in (*NODES, "cluster")):
            yield problem


def refusal(answer: programs.Answer, config: Mapping[str, Any]) -> Problem:
    """Return the Problem of a job that sbatch refused, with its reason and the key that the reason is about.

    Raises:
        ProblemsFound: The controller did not answer, or sbatch is not installed (E447).
    """
    if answer.code in programs.NOT_STARTED or answer.is_unreachable:
        raise programs.unanswered("sbatch", answer)
    lines = [_PREFIX.sub("", line) for line in answer.error.splitlines()]
    text = "; ".join(line for line in lines if line) or f"exit code {answer.code}"
    path = next((key for words, key in _KEYS if words in text.lower()), "cluster")
    path = nodes_key(config) if path in NODES else path
    value = get(config, path) if path != "cluster" else None
    return Problem("E445", path, f"Slurm refuses the job: {text}", value=value, remedy=programs.remedy_of(text))


def refusals(request: Request) -> list[Problem]:
    """Return why sbatch would refuse a job, which it then does not submit."""
    answer = answer_of_sbatch(request, "--test-only", text=request.text)
    return [refusal(answer, request.config)] if answer.code else []


def answer_of_sbatch(request: Request, option: str, *file: str, **how: Any) -> programs.Answer:
    """Return the answer of sbatch to a request; `how` has further arguments of `Place.run`.

    It is asked again while a controller that has just started refuses every job: without its nodes, no configuration
    fits.
    """
    while True:
        answer = request.place.run("sbatch", option, f"--job-name={request.name}", *request.words, *file, **how)
        if not answer.code or "node configuration" not in answer.error:
            return answer
        started = settings(request.place.run(*CONFIG, env={"SLURM_TIME_FORMAT": "%s"}).out).get("BOOT_TIME", "")
        if not started.isdigit() or not 0 <= time.time() - int(started) < _REGISTRATION_S:
            return answer
        time.sleep(POLL_S)


def dependencies(cluster: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """Yield the dependencies that Slurm would ignore, and those that are never fulfilled."""
    value = cluster.get("dependency") or ""
    for match in _DEPENDENCY.finditer(value):
        for word in match[2].split(":")[1:]:
            job_id = re.split(r"[_+]", word)[0]
            if message := _unmet(match[1], queue_of(place).find(job_id), job_id):
                yield Problem("E446", "cluster.dependency", message, value=value)


def _unmet(kind: str, job: Seen | None, job_id: str) -> str | None:
    """Return why waiting for a job has no effect or no end; None if it has both."""
    if job is None:
        return f"Slurm does not know job {job_id}, and would not wait for it"
    has_failed = job.state in (JobState.FAILED, JobState.CANCELLED)
    if (kind == "afterok" and has_failed) or (kind == "afternotok" and job.state is JobState.SUCCEEDED):
        return f"job {job_id} has ended as {job.word}; the job would stay pending for ever"
    return None


def operator_problems(request: Request) -> list[Problem]:
    """Return why an elastic job that is submitted by ssh could not run there: its nodes are assumed to be alike."""
    place = request.place
    if place is HERE or ELASTIC_FILE not in request.bundles[0].files:
        return []
    cluster = request.config["cluster"]
    python = str(cluster.get("python") or "python3")
    runtime = runtime_of(cluster.get("container_runtime"), request.config.get("container"))
    needed = {**OPERATOR, **AGENTS} if runtime == "none" else OPERATOR
    words = (".".join(map(str, PYTHON)), *(f"{name}={version}" for name, version in needed.items()))
    answer = RECENT.ask(place, "bash", "-c", _ENVIRONMENT, "bash", python, "-c", _SCRIPT, *words)
    if answer.code == programs.NOT_FOUND:
        lacks = ["no such program was found"]
    elif answer.code:
        lacks = (answer.error.strip().splitlines() or [f"exit code {answer.code}"])[-1:]
    else:
        lacks = answer.out.split("\n")[:-1]
    if not lacks:
        return []
    message = f"cannot run this launcher's operator on {cluster['ssh']}: {', '.join(lacks)}"
    named = ", ".join(f"{name}>={version}" if version else name for name, version in needed.items())
    allowed = f"Python {words[0]} or later with {named}"
    remedy = f"install them there, or name another Python of the cluster; {_DOCS}"
    return [Problem("E472", "cluster.python", message, value=python, allowed=allowed, remedy=remedy)]
