"""Constraints of the training operators and Kueue: fields of each kind of job, log monitors, queues, topology."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from launcher.backends.kubernetes.job_options import KIND_NAMES, JobKind, LogMonitor, k8s_options, kind_of
from launcher.common import syntax
from launcher.common.problems import Problem
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.instances import INSTANCE_LABELS, canonical
from launcher.rules import MakeProblem, rule

_KUBEFLOW = "Kubeflow Training Operator, PyTorchJob v1"
_KUEUE = "Kueue, Topology Aware Scheduling and Workload Priority Class"
_RAY = "KubeRay, RayJob v1"
_POLICIES: Mapping[JobKind, tuple[str, ...]] = {
    "HyperPodPyTorchJob": ("All", "OnlyComplete", "None"),
    "PyTorchJob": ("All", "Running", "None"),
    "RayJob": (),
}
_HYPERPOD_ONLY = ("faultDeadlineSeconds", "workloadMode", "restartPolicy", "logMonitoringConfiguration")
_LACKING: Mapping[JobKind, tuple[str, ...]] = {
    "HyperPodPyTorchJob": (),
    "PyTorchJob": ("startupDeadlineSeconds", *_HYPERPOD_ONLY),
    "RayJob": _HYPERPOD_ONLY,
}
"""Keys of run_policy that a kind of job has no field for."""
_TOPOLOGIES = ("preferred_topology", "required_topology")
_FOR_KUEUE = ("workload_priority_class", *_TOPOLOGIES, "spares")
_TOPOLOGY_PREFIX = "kueue.x-k8s.io/podset-"


@rule("E314", "cluster.use_hyperpod_pytorch_job", "cluster.run_policy", source=f"{_KUBEFLOW}; {_RAY}")
def fields_are_of_this_kind(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Other jobs have no field for features of the HyperPod operator; they would silently be ignored."""
    settings, kind = k8s_options(checked), kind_of(checked)
    found = {f"run_policy.{key}": getattr(settings.run_policy, key, None) for key in _LACKING[kind]}
    if kind != "HyperPodPyTorchJob":
        found["spares"] = settings.spares
    for key, value in found.items():
        if value:
            yield problem(
                f"cluster.{key}",
                f"is a field of HyperPodPyTorchJob, not of a {KIND_NAMES[kind]}",
                remedy="leave it out"
                if settings.use_hyperpod_pytorch_job
                else "cluster.use_hyperpod_pytorch_job=true, or leave it out",
            )


@rule(
    "E326",
    "cluster.use_hyperpod_pytorch_job",
    "cluster.runtime",
    "cluster.restartPolicy",
    source=_RAY,
)
def ray_jobs_are_started_by_ray(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The pods of a Ray job run what KubeRay's operator starts in them, and a batch Job submits its program."""
    settings = k8s_options(checked)
    if kind_of(checked) != "RayJob":
        return
    if settings.use_hyperpod_pytorch_job is False:
        path, remedy = "cluster.use_hyperpod_pytorch_job", "cluster.use_hyperpod_pytorch_job=true"
        yield problem(path, "chooses between two other kinds of job: this is a RayJob", value=False, remedy=remedy)
    if settings.runtime == "launcher":
        message = "needs the launcher's own start of a container; Ray starts those of its jobs"
        yield problem("cluster.runtime", message, value="launcher", remedy="cluster.runtime=image")
    if settings.restartPolicy == "Always":
        message = "is not a policy of the submitter's batch Job"
        yield problem("cluster.restartPolicy", message, value="Always", allowed="OnFailure, Never")


@rule(
    "E315",
    "cluster.use_hyperpod_pytorch_job",
    "cluster.cleanPodPolicy",
    source=f"{_KUBEFLOW}; AWS, Using the training operator to run jobs",
)
def clean_policy_is_of_this_kind(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The two kinds of job share two of three values."""
    policy, kind = k8s_options(checked).cleanPodPolicy, kind_of(checked)
    if policy is not None and policy not in (allowed := _POLICIES[kind]):
        message = f"is not a policy of a {KIND_NAMES[kind]}"
        yield problem("cluster.cleanPodPolicy", message, value=policy, allowed=", ".join(allowed) or "null")


_MONITORS = "cluster.run_policy.logMonitoringConfiguration"


@rule("E316", _MONITORS, source="hyperpod-elastic-agent 1.1.3, its log agent")
def log_monitors_work(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The agent compiles patterns as Python does, and compares the first group, read as a number."""
    monitors = getattr(k8s_options(checked).run_policy, "logMonitoringConfiguration", None) or ()
    for i, monitor in enumerate(monitors):
        if monitor.name in {other.name for other in monitors[:i]}:
            yield problem(f"{_MONITORS}.{i}.name", "is also the name of another monitor", value=monitor.name)
        groups = 0
        for key in ("logPattern", "stopPattern"):
            form = syntax.compiled(getattr(monitor, key) or "")
            if isinstance(form, str):
                path, message = f"{_MONITORS}.{i}.{key}", f"is not a valid regular expression: {form}"
                yield problem(path, message, value=getattr(monitor, key))
            elif key == "logPattern":
                groups = form.groups
        for key, message in _half_given(monitor, groups):
            yield problem(f"{_MONITORS}.{i}.{key}", message, value=getattr(monitor, key))


def _half_given(monitor: LogMonitor, groups: int) -> Iterator[tuple[str, str]]:
    """Yield each key of a monitor that would have no effect, with the reason."""
    if monitor.operator and monitor.metricThreshold is None:
        yield "operator", "needs a metricThreshold to compare with"
    if monitor.metricThreshold is not None and not monitor.operator:
        yield "metricThreshold", "needs an operator, one of gt, gteq, lt, lteq, eq"
    if monitor.metricThreshold is not None and not groups:
        yield "logPattern", "needs a group around the number that is compared with metricThreshold"
    if monitor.metricEvaluationDataPoints and monitor.metricThreshold is None:
        yield "metricEvaluationDataPoints", "counts comparisons, but metricThreshold is missing"


@rule("E317", "cluster.queue_name", *(f"cluster.{key}" for key in _FOR_KUEUE), source=_KUEUE)
def kueue_has_a_queue(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Kueue reads these only for jobs in a queue; without one they have no effect, and a job with spares fails."""
    for key in _FOR_KUEUE:
        if (value := getattr(k8s_options(checked), key)) and not k8s_options(checked).queue_name:
            yield problem(
                f"cluster.{key}",
                "is read by Kueue, but the job has no queue",
                value=value,
                remedy="cluster.queue_name=…",
            )


@rule(
    "E318",
    "cluster.preferred_topology",
    "cluster.required_topology",
    "cluster.annotations",
    source=_KUEUE,
)
def topology_is_asked_for_once(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Kueue refuses pods with more than one topology constraint."""
    keys = [f"cluster.{key}" for key in _TOPOLOGIES if getattr(k8s_options(checked), key)]
    keys += [
        f"cluster.annotations.{key}"
        for key in k8s_options(checked).annotations or {}
        if key.startswith(_TOPOLOGY_PREFIX) and key.endswith("-topology")
    ]
    for first, path in pairwise(keys):
        yield problem(path, f"conflicts with the topology constraint {first}", remedy=f"leave out {path}")


@rule("E319", "cluster.tolerations", source="Kubernetes, Taints and Tolerations")
def tolerations_are_whole(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Fields of a toleration must be consistent."""
    for i, one in enumerate(k8s_options(checked).tolerations or ()):
        path = f"cluster.tolerations.{i}"
        if one.operator == "Exists" and one.value:
            yield problem(
                f"{path}.value", "operator Exists matches any value", value=one.value, remedy="leave it out"
            )
        if one.key is None and one.operator != "Exists":
            yield problem(f"{path}.key", "is missing", allowed="a taint's key; none only with operator Exists")
        if one.tolerationSeconds is not None and one.effect != "NoExecute":
            yield problem(f"{path}.tolerationSeconds", "is for effect NoExecute only", value=one.tolerationSeconds)


@rule("E320", "cluster.node_selector", "instance_type", source="docs/manifest.md")
def instance_is_selected_once(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The instance type also determines devices and batches, so it is set in one place."""
    for label, value in (k8s_options(checked).node_selector or {}).items():
        if label in INSTANCE_LABELS:
            path = f"cluster.node_selector.{label}"
            is_same = canonical(str(value)) == canonical(checked.launch.instance_type)
            remedy = f"leave out {path}" + ("" if is_same else f", and set instance_type={value}")
            yield problem(path, "is set from instance_type", value=value, remedy=remedy)


@rule(
    "E328",
    *("cluster.label_selector", "cluster.node_selector", "cluster.instance_type_label", "instance_type"),
    source="Kubernetes, Assigning Pods to Nodes: nodes satisfy both nodeSelector and nodeAffinity",
)
def selectors_agree(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """No node has two values of one label, so a pod that requires both stays pending."""
    settings, instance_type = k8s_options(checked), checked.resources.instance_type
    selected = dict(settings.node_selector or {})
    types = dict.fromkeys(INSTANCE_LABELS, instance_type) if instance_type else {}
    for label, values in (getattr(settings.label_selector, "required", None) or {}).items():
        known = [canonical(each) for each in values] if label in types else values
        if (own := (selected | types).get(label, known[0])) not in known:
            key = "instance_type" if label in types else f"cluster.node_selector.{label}"
            remedy = f"leave it out, or {' or '.join(f'{key}={each}' for each in known[:3])}"
            message = f"excludes {own}, which {key} selects"
            yield problem(f"cluster.label_selector.required.{label}", message, value=values, remedy=remedy)


@rule(
    "E321",
    "cluster.security_context",
    "cluster.run_as_root",
    "cluster.run_as_user",
    source="docs/manifest.md, What pods may do",
)
def user_is_named_once(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A container runs as one user."""
    settings = k8s_options(checked)
    if settings.run_as_root and settings.run_as_user:
        yield problem(
            "cluster.run_as_user", "is not root, which cluster.run_as_root requires", value=settings.run_as_user
        )
    for key in ("run_as_root", "run_as_user"):
        if settings.security_context and (value := getattr(settings, key)) is not None:
            yield problem(
                f"cluster.{key}",
                "cluster.security_context replaces it",
                value=value,
                remedy="write runAsUser and runAsNonRoot into cluster.security_context",
            )
