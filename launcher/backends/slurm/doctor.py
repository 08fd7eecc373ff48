"""Examines a Slurm cluster by its commands before a launch, here or on the login node that ssh reaches."""

import shlex
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar

from launcher.backends.slurm import limits, preflight, programs
from launcher.backends.slurm.demand import Demand, demand_of
from launcher.backends.slurm.options import runtime_of
from launcher.backends.slurm.place import CONFIG, HERE, RECENT, Place, settings
from launcher.backends.slurm.requests import Request, request_for
from launcher.common.problems import Problem
from launcher.common.texts import counted, first_of
from launcher.model.finding import Answer, Question, clock, found, ok, or_ok, unknown, warning
from launcher.model.job_spec import Bundle, JobSpec

_SUBJECTS = {
    "cluster.partition": "partition",
    "cluster.nodelist": "partition",
    "cluster.account": "account",
    "cluster.qos": "QOS",
    "cluster.time": "time limit",
    "cluster.mem": "node memory",
    "cluster.mem_per_cpu": "node memory",
    "cluster.mem_per_gpu": "node memory",
    "cluster.dependency": "dependency",
}
_DOWN = ("DOWN", "DRAIN", "FAIL", "MAINT", "POWERED_DOWN", "UNKNOWN", "NOT_RESPONDING")
"""Parts of states of nodes that start no job now. Source: sinfo(1), Node State Codes."""
_PROGRAMS = {"apptainer": "apptainer", "charliecloud": "ch-run", "docker": "docker"}
"""What a node starts a container with, by `cluster.container_runtime`."""
_PYXIS = "--container-image"
_OF_ONE_NODE = ("ext2/ext3", "xfs", "btrfs", "tmpfs", "overlayfs", "zfs", "ramfs", "f2fs")
"""Kinds of file systems that other nodes do not have. Source: stat(1), --file-system, %T."""
_FOLDER = 'cd -- "$1" 2>/dev/null || cd; stat --file-system --format=%T . && df -Pk . | tail -n 1'


class SlurmDoctor:
    """Examines the cluster of a job's `cluster` section."""

    unanswered: ClassVar[frozenset[str]] = frozenset({"E447", "E455"})

    def examine(self, job: JobSpec, bundle: Bundle) -> Iterator[Answer]:
        """Yield whether the controller answers, and the questions about the job."""
        request = request_for((bundle,))
        place = request.place
        answer = RECENT.ask(place, *CONFIG)
        if answer.code:
            (problem,) = programs.unanswered("scontrol", answer).problems
            never = answer.code in programs.NOT_STARTED  # then a launch fails too
            yield found("cluster", problem, frozenset() if never else self.unanswered)
            return
        known, login = settings(answer.out), request.config["cluster"].get("ssh")
        where = f"by ssh at {login}" if login else "from this machine"
        yield ok("cluster", f"{known.get('ClusterName')} answers, Slurm {known.get('SLURM_VERSION')}, {where}")
        yield from _questions(job, request)


def _questions(job: JobSpec, request: Request) -> Iterator[Question]:
    demand, cluster = demand_of(request), request.config["cluster"]
    yield Question("limits", partial(_limits, request, demand))
    yield Question("nodes", partial(_nodes, request, demand))
    yield Question("submission", partial(_submission, request))
    if cluster.get("dependency"):
        yield Question("dependency", partial(_dependency, request))
    if (runtime := runtime_of(cluster.get("container_runtime"), job.image)) != "none":
        yield Question("container", partial(_container, request.place, runtime))
    yield Question("folder", partial(_folder, request))
    if request.place is not HERE:
        yield Question("clock", partial(_clock, request.place))
        yield Question("versions", partial(_versions, request))


def _limits(request: Request, demand: Demand) -> Iterator[Answer]:
    """Yield what partition, account, QOS and limits never allow, each as its own subject."""
    faults = list(limits.problems(request.config, demand, request.place))
    for fault in faults:
        yield found(_SUBJECTS.get(fault.path, "size"), fault)
    if not faults:
        cluster = request.config["cluster"]
        names = [f"{key} {cluster.get(key) or 'by default'}" for key in ("partition", "account", "qos")]
        sizes = f"{demand.nodes} to {counted(demand.most_nodes, 'node')}"
        yield ok("limits", f"{', '.join(names)}: they allow {sizes} for {cluster.get('time') or 'the default time'}")


def _nodes(request: Request, demand: Demand) -> Iterator[Answer]:
    """Yield whether nodes of the partitions can start a job now, and have its memory."""
    nodes = limits.nodes_of(request.config["cluster"], request.place)
    up = [each for each in nodes if not any(state in each.get("State", "").upper() for state in _DOWN)]
    has = f"{len(up)} of {counted(len(nodes), 'node')} are up"
    if not nodes:
        yield unknown("nodes", "a reservation names the nodes", "scontrol show reservation")
    elif len(up) < demand.nodes:
        yield warning("nodes", f"{has}, and the job starts with {demand.nodes}: it waits", "sinfo --list-reasons")
    else:
        most = max(int(each.get("RealMemory") or 0) for each in nodes)
        yield ok("nodes", f"{has}; the largest has {most} MiB of memory")


def _submission(request: Request) -> Iterable[Answer]:
    """Return why sbatch would refuse the job; nothing is submitted."""
    return or_ok("submission", preflight.refusals(request), "sbatch --test-only accepts the job")


def _dependency(request: Request) -> Iterable[Answer]:
    cluster = request.config["cluster"]
    message = f"{cluster['dependency']}: Slurm knows these jobs"
    return or_ok("dependency", preflight.dependencies(cluster, request.place), message)


def _container(place: Place, runtime: str) -> Iterator[Answer]:
    """Yield whether srun has the plugin, or the login node the program, that starts containers."""
    if runtime == "pyxis":
        answer = RECENT.ask(place, "srun", "--help")
        if _PYXIS in answer.out:
            yield ok("container", f"srun has {_PYXIS}: pyxis is installed")
        elif answer.code:
            yield unknown("container", f"srun --help: {answer.error or answer.code}")
        else:
            remedy = "cluster.container_runtime=apptainer, or ask your administrator for pyxis"
            message = f"srun has no {_PYXIS}: the plugin pyxis is not installed"
            yield Problem("E435", "cluster.container_runtime", message, value=runtime, remedy=remedy)
        return
    name = _PROGRAMS[runtime]
    if RECENT.ask(place, "bash", "-c", f"command -v {shlex.quote(name)}").code:
        message = f"{name} is not on the path of the login node; the nodes may have it"
        yield warning("container", message, f"srun --nodes=1 {name} --version, or another cluster.container_runtime")
    else:
        yield ok("container", f"the login node has {name}; the nodes are assumed to be alike")


def _folder(request: Request) -> Iterator[Answer]:
    """Yield whether the nodes may see the folder that receives the bundle, by the kind of its file system."""
    cluster = request.config["cluster"]
    near = next(each for each in request.folder.parents if each.exists())
    folder = str(cluster["ssh_folder"] if cluster.get("ssh") else near)
    answer = request.place.run("bash", "-c", _FOLDER, "bash", folder)
    lines = answer.out.split("\n")
    if answer.code or len(lines) < 2:
        yield unknown("folder", f"{folder}: its file system is unknown: {answer.error or answer.out}")
        return
    kind, fields = lines[0].strip(), lines[1].split()
    free_gib = int(fields[3]) / 2**20 if len(fields) > 3 and fields[3].isdigit() else 0.0
    hosts = {each.get("NodeHostName") for each in limits.nodes_of(cluster, request.place)}
    if kind in _OF_ONE_NODE and len(hosts) > 1:
        message = f"{folder} is on {kind}, which other nodes most likely do not have"
        yield warning(
            "folder", message, "base_results_dir=<folder that all nodes share>, with ssh cluster.ssh_folder"
        )
    else:
        seen = "the only host of the partition" if len(hosts) == 1 else first_of(sorted(map(str, hosts)), 3)
        yield ok("folder", f"{folder} is on {kind}, {free_gib:.1f} GiB free; nodes: {seen}")


def _clock(place: Place) -> Iterator[Answer]:
    answer = place.run("date", "+%s")
    if answer.code or not answer.out.strip().isdigit():
        yield unknown("clock", f"date: {answer.error or answer.out}")
    else:
        yield clock("the login node", datetime.fromtimestamp(int(answer.out), UTC))


def _versions(request: Request) -> Iterable[Answer]:
    """Return whether the cluster's Python runs an elastic job's operator, and the agents without a container."""
    if faults := preflight.operator_problems(request):
        return faults
    python = request.config["cluster"].get("python") or "python3"
    answer = request.place.run(str(python), "--version")
    return [ok("versions", f"{python} there: {(answer.out or answer.error).strip()}")]
