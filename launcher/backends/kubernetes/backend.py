"""HyperPod on EKS: one ConfigMap with the configurations, and one HyperPodPyTorchJob or Kubeflow PyTorchJob."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from launcher.backends.kubernetes import api_objects, manifest
from launcher.backends.kubernetes.job_options import k8s_options, kind_of
from launcher.backends.kubernetes.programs import Program, programs
from launcher.bundle import container
from launcher.bundle import store as bundles
from launcher.common import console
from launcher.common.names import BASE_CONFIG
from launcher.common.problems import Problem, fail
from launcher.common.templating import render_yaml
from launcher.model.backend import RANK_0
from launcher.model.family_registry import interface
from launcher.model.job_spec import Bundle, JobEvent, JobHandle, JobSpec, JobStatus, LogLine, LogSelection

if TYPE_CHECKING:
    from launcher.backends.kubernetes.connection import Connection
    from launcher.backends.kubernetes.target import Target
    from launcher.model.cluster_view import JobPod

_TEMPLATES = {"HyperPodPyTorchJob": "job", "PyTorchJob": "pytorchjob", "RayJob": "rayjob"}
"""Kind of a job to its template."""

CONFIG_MAP_LIMIT = 1 << 20
"""Bytes a ConfigMap may hold. Source: Kubernetes, ConfigMaps, Motivation."""

JOB_LIMIT = 1 << 20
"""Bytes of a job's manifest. Source: etcd, System limits: 1.5 MiB a request; the rest is kept for the status and the
managed fields. Our own choice."""


class KubernetesBackend:
    """Renders manifests, makes them on a cluster, and follows what becomes of them.

    What talks to a cluster is imported where it is used: a dry run pays for rendering only.
    """

    name: ClassVar[str] = "k8s"

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return what the image lacks: a start command, or a program that runs the commands before and after."""
        if container.is_own(job):
            return (*container.problems(job), *manifest.unread_scripts(job))
        family = interface(job)
        has_start = family.is_ray or family.starts_itself or family.workers.image_command(job)
        if has_start or k8s_options(job).command:
            return manifest.unread_scripts(job)
        return (
            Problem(
                "E311",
                "cluster.command",
                "this recipe's image has no start command of its own",
                remedy="cluster.command=[word, word]",
            ),
        )

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the ConfigMap and the job; of several programs, the objects of each.

        Raises:
            ProblemsFound: The configurations are larger than a ConfigMap may be, or the job than the API keeps.
        """
        return {file: text for each in programs(job) for file, text in _rendered(job, each, configs).items()}

    def validate(self, bundle: Bundle) -> tuple[Problem, ...]:
        """Return every reason for which the cluster would refuse a bundle, in its own words. Creates nothing."""
        from launcher.backends.kubernetes import submit

        findings = submit.validate(_connection(bundle), bundle)
        console.show_notice(*findings.notices, stderr=True)
        return findings.problems

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return the job's name, its namespace, and the server that the context leads to.

        Raises:
            ProblemsFound: The bundle's job that is known is on another cluster (E348).
        """
        connection = _connection(bundle)
        if known:
            from launcher.backends.kubernetes import server
            from launcher.backends.kubernetes.api_errors import api_errors_as_problems

            with api_errors_as_problems():
                server.require(connection, known.server)
        return _handle(bundle, connection)

    def submit(self, bundle: Bundle) -> JobHandle:
        """Create the bundle's objects atomically; the same bundle again changes nothing.

        Raises:
            ProblemsFound: Every reason why it was not submitted; nothing remains of it.
        """
        from launcher.backends.kubernetes import submit

        connection = _connection(bundle)
        submitted = submit.submit(connection, bundle)
        console.show_notice(*submitted.notices, stderr=True)
        return replace(
            _handle(bundle, connection),
            uid=submitted.job["metadata"]["uid"],
            server=str(submitted.server),
            is_new=submitted.is_new,
        )

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the job as the cluster has it now."""
        from launcher.backends.kubernetes import job_watch

        with _opened(handle) as (connection, target):
            seen = job_watch.read_status(connection, target)
            return seen if target.uid else _unfinished(connection, handle, seen)

    def wait(self, handle: JobHandle, *, timeout_s: float | None = None) -> Iterator[JobStatus]:
        """Yield the job's status now and after each change, the last time as it ended."""
        from launcher.backends.kubernetes import job_watch

        with _opened(handle) as (connection, target):
            yield from job_watch.wait(connection, target, timeout_s)

    def logs(self, handle: JobHandle, selection: LogSelection = RANK_0, *, follow: bool) -> Iterator[LogLine]:
        """Yield what the selected ranks' containers wrote; with `follow`, and the news of the job, until it ended."""
        from launcher.backends.kubernetes import pod_logs
        from launcher.backends.kubernetes.api_errors import api_errors_as_problems

        with _opened(handle) as (connection, target):  # what the job cannot have is refused before the first line
            lines = pod_logs.read_logs(connection, target, selection, follow=follow)

        def translated() -> Iterator[LogLine]:
            with api_errors_as_problems():
                yield from lines

        return translated()

    def events(self, handle: JobHandle, *, follow: bool) -> Iterator[JobEvent]:
        """Yield the events of the job and its pods, oldest first; with `follow`, until it has ended."""
        from launcher.backends.kubernetes import job_watch

        with _opened(handle) as (connection, target):
            yield from job_watch.events(connection, target, follow=follow)

    def scale(self, handle: JobHandle, num_nodes: int, min_nodes: int | None = None) -> None:
        """Let the operator give the job from `min_nodes` to `num_nodes` nodes.

        Raises:
            ProblemsFound: The job does not run (E412), or its plan has no such size (E413).
        """
        from launcher.backends.kubernetes import job_control

        with _opened(handle) as (connection, target):
            job_control.scale(connection, target, _planned(handle), min_nodes, num_nodes)

    def cancel(self, handle: JobHandle) -> None:
        """Remove the job from the cluster and return when none of its pods runs; one that has ended stays."""
        from launcher.backends.kubernetes import job_control

        others = _others(handle)
        with _opened(handle) as (connection, target):
            job_control.cancel(connection, target, others)

    def clear(self, handle: JobHandle) -> None:
        """Remove a job that has ended and its other objects; return when none of them exists."""
        from launcher.backends.kubernetes import job_control

        with _opened(handle) as (connection, target):
            job_control.clear(connection, target, api_objects.manifests(_bundle(handle)))

    def pods(self, handle: JobHandle) -> tuple["JobPod", ...]:
        """Return the job's pods as they are now, in the order of their ranks."""
        from launcher.backends.kubernetes import job_watch, pod_report

        with _opened(handle) as (connection, target):
            return pod_report.described(job_watch.read_objects(connection, target)[1], target.places)

    def run_in_pod(self, handle: JobHandle, rank: int, command: Sequence[str]) -> int:
        """Run a command, or a shell, in the pod of a rank; return its exit code."""
        from launcher.backends.kubernetes import interact

        with _opened(handle) as (connection, target):
            return interact.run(interact.PodOfRank(connection, target, rank), command)

    def forward_ports(self, handle: JobHandle, rank: int, ports: Sequence[tuple[int, int]]) -> None:
        """Forward ports of this machine to the pod of a rank, until interrupted."""
        from launcher.backends.kubernetes import interact

        with _opened(handle) as (connection, target):
            interact.forward(interact.PodOfRank(connection, target, rank), ports)

    def operator_log(self, handle: JobHandle) -> Iterator[str]:
        """Yield the lines of the training operator's log that mention the job."""
        from launcher.backends.kubernetes import operator_log

        with _opened(handle) as (connection, target):
            yield from operator_log.lines(connection, target)


def _rendered(job: JobSpec, program: Program, configs: Mapping[str, str]) -> dict[str, str]:
    """Return the objects of a program, by their files in the bundle."""
    if program.component:
        configs = {BASE_CONFIG: configs[program.role.config_file]}
    if manifest.has_start_script(job):
        configs = {**configs, manifest.START_SCRIPT: manifest.start_script(job)}
    size = sum(len(name.encode()) + len(text.encode()) for name, text in configs.items())
    if size > CONFIG_MAP_LIMIT:
        raise fail(
            "E312",
            "recipes",
            f"the configurations are {size} bytes, a ConfigMap holds {CONFIG_MAP_LIMIT}",
            remedy="fewer sizes in scale_config, or shorter values",
        )
    values = manifest.values(job, program)
    names = ("configmap", "service", "statefulset") if program.is_service else ("configmap", _TEMPLATES[kind_of(job)])
    texts = {name: render_yaml(f"kubernetes/{name}.yaml.j2", configs=configs, **values) for name in names}
    if (size := len(texts[names[-1]].encode())) > JOB_LIMIT:
        message = f"the job is {size} bytes, and the API keeps at most {JOB_LIMIT} of one"
        raise fail("E325", "cluster", message, remedy="shorter env_vars, annotations or cluster.command")
    files = {name: "job" if name in _TEMPLATES.values() else name for name in names}
    return {f"manifests/{files[name]}{program.ending}.yaml": text for name, text in texts.items()}


def _others(handle: JobHandle) -> tuple[api_objects.Manifest, ...]:
    """Return the objects of a bundle beside its job; none of a job that was adopted."""
    return () if bundles.is_adopted(handle.bundle_dir) else api_objects.manifests(_bundle(handle))[:-1]


def _planned(handle: JobHandle) -> Mapping[str, Any]:
    """Return the custom resource as it was rendered, or the outline of one that was adopted."""
    return bundles.outline(handle.bundle_dir) or api_objects.job_manifest(_bundle(handle)).body


def _connection(bundle: Bundle) -> "Connection":
    """Return the connection that a bundle's configuration names."""
    from launcher.backends.kubernetes.connection import connect

    return connect(bundles.config_of(bundle)["cluster"].get("kube_context"))


def _handle(bundle: Bundle, connection: "Connection") -> JobHandle:
    """Return how the job of a bundle is found, as far as that is known before it is submitted."""
    from launcher.backends.kubernetes import server

    job = api_objects.job_manifest(bundle)
    place = (job.name, job.kind, job.namespace, connection.context)
    return JobHandle(
        KubernetesBackend.name,
        bundle.job_name,
        bundle.directory.resolve(),
        *place,
        server=str(server.reached(connection)),
    )


@contextmanager
def _opened(handle: JobHandle) -> Iterator[tuple["Connection", "Target"]]:
    """Yield the connection to a job's cluster, and the job; a request that fails within the block is a Problem.

    Raises:
        ProblemsFound: The bundle is damaged, or the context leads to another cluster (E348).
    """
    from launcher.backends.kubernetes import server
    from launcher.backends.kubernetes.api_errors import api_errors_as_problems
    from launcher.backends.kubernetes.connection import connect
    from launcher.backends.kubernetes.target import Target

    with api_errors_as_problems():
        connection = connect(handle.context)
        others = [each.body for each in _others(handle) if each.kind in api_objects.POD_KINDS]
        target = Target.of(_planned(handle), handle.uid or "", handle.server, others)
        server.require(connection, handle.server)
        if not target.uid:  # a launch that was killed: its job is the one that carries the bundle's digest
            found = connection.find(target.path)
            if found and api_objects.job_manifest(_bundle(handle)).is_origin_of(found):
                target = replace(target, uid=found["metadata"]["uid"])
        yield connection, target


def _unfinished(connection: "Connection", handle: JobHandle, seen: JobStatus) -> JobStatus:
    """Return the status of a launch that has made no job: what else of the bundle exists."""
    from launcher.backends.kubernetes import submit

    found = submit.existing(connection, _bundle(handle))
    words = f"exists: {', '.join(map(str, found))}" if found else "none of its objects exists"
    message = f"its launch made no job, or has not made it yet; {words}; recipes launch starts it again"
    return replace(seen, message=message)


def _bundle(handle: JobHandle) -> Bundle:
    return bundles.read(handle.bundle_dir)[0]


BACKEND = KubernetesBackend()
