"""Checks whether a job fits the quotas of its namespace and queue. Pure: callers read the objects.

Source: Kubernetes, Resource Quotas and Limit Ranges; Kueue, ClusterQueue: Resources.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from launcher.common.problems import Notice, Problem
from launcher.common.quantities import amount, shown
from launcher.common.texts import counted

_PLAIN = ("cpu", "memory", "ephemeral-storage")
"""Resources whose bare name in a quota means their requests. Source: Kubernetes, Resource Quotas: Compute."""

_PODS = ("pods", "count/pods")
_KINDS = ("requests", "limits")


@dataclass(frozen=True, slots=True)
class Quota:
    """The total that a namespace or a queue allows.

    Args:
        name: Kind and name of the object.
        hard: `requests.<resource>`, `limits.<resource>` or `pods` to the quantity; None is unbounded.
        defaults: Defaults of a container without values of its own, `requests.<resource>` and `limits.<resource>`.
        is_queue: Whether a resource that is not listed is refused (Kueue) rather than unbounded (Kubernetes).
    """

    name: str
    hard: Mapping[str, str | None]
    defaults: Mapping[str, str] = field(default_factory=dict)
    is_queue: bool = False

    @classmethod
    def of_namespace(cls, quota: Mapping[str, Any], limit_ranges: Iterable[Mapping[str, Any]] = ()) -> "Quota":
        """Return the quota of a ResourceQuota, with the defaults of the namespace's LimitRanges.

        A quota with scopes counts only some pods, which cannot be known in advance, so it bounds nothing here.
        """
        spec = quota["spec"]
        is_scoped = spec.get("scopes") or spec.get("scopeSelector")
        hard = {} if is_scoped else {_spelled(name): text for name, text in (spec.get("hard") or {}).items()}
        return cls(f"ResourceQuota {quota['metadata']['name']}", hard, _defaults(limit_ranges))

    @classmethod
    def of_queue(cls, queue: Mapping[str, Any], limit_ranges: Iterable[Mapping[str, Any]] = ()) -> "Quota":
        """Return the quota of a ClusterQueue over all its flavors: its own share plus its borrowing limit."""
        spec = queue["spec"]
        cohort = spec.get("cohortName") or spec.get("cohort")  # v1beta2, v1beta1
        hard: dict[str, str | None] = {}
        for group in spec.get("resourceGroups") or ():
            for flavor in group["flavors"]:
                for resource in flavor["resources"]:
                    _add(hard, f"requests.{resource['name']}", resource, is_shared=bool(cohort))
        if "requests.pods" in hard:
            hard["pods"] = hard.pop("requests.pods")
        return cls(f"ClusterQueue {queue['metadata']['name']}", hard, _defaults(limit_ranges), is_queue=True)


def _add(hard: dict[str, str | None], name: str, resource: Mapping[str, Any], *, is_shared: bool) -> None:
    """Add the quota of one flavor; without a borrowing limit, a cohort may lend any amount."""
    if hard.get(name, "0") is None or (is_shared and "borrowingLimit" not in resource):
        hard[name] = None
        return
    parts = (hard.get(name, "0"), resource["nominalQuota"], resource.get("borrowingLimit", "0"))
    hard[name] = shown(sum(map(amount, parts), Fraction()))


def _spelled(name: str) -> str:
    """Return the name of a quota's item as `requests.…`, `limits.…` or another kind of count.

    Source: Kubernetes, Resource Quotas: `cpu` is the same as `requests.cpu`. A device's bare name is not enforced,
    but AWS's example uses it, so it counts here.
    """
    if name in _PODS:
        return "pods"
    is_device = "/" in name and not name.startswith(("count/", "requests.", "limits."))
    is_storage = ".storageclass." in name
    return f"requests.{name}" if name in _PLAIN or (is_device and not is_storage) else name


def _defaults(limit_ranges: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return a container's defaults by LimitRanges: the maximum if there is no default limit; requests equal limits.

    Source: Kubernetes, API reference, LimitRangeItem: defaults of default and defaultRequest.
    """
    found: dict[str, str] = {}
    for limit_range in limit_ranges:
        for item in limit_range["spec"].get("limits") or ():
            if item["type"] == "Container":
                limits = {**(item.get("max") or {}), **(item.get("default") or {})}
                requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
                found |= {f"limits.{name}": text for name, text in limits.items()}
                found |= {f"requests.{name}": text for name, text in requests.items()}
    return found


def ray_cluster(job: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the Ray cluster that a RayJob makes; None for a job of another kind, and for one that has none."""
    spec = job.get("spec")
    found = spec.get("rayClusterSpec") if isinstance(spec, Mapping) else None
    return found if isinstance(found, Mapping) else None


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources that a job requests.

    Args:
        template: Pod template; both parts of a job with two priorities request the same.
        least: Minimum number of pods.
        most: Maximum number of pods.
        is_elastic: Whether it may run with fewer pods than it starts with.
    """

    template: Mapping[str, Any]
    least: int
    most: int
    is_elastic: bool

    @classmethod
    def of(cls, job: Mapping[str, Any], *others: Mapping[str, Any]) -> "Demand":
        """Read a rendered HyperPodPyTorchJob, PyTorchJob or RayJob, of which the workers count.

        Args:
            others: The rendered objects of the job's other programs, whose pods request the same.
        """
        parts = [part for each in (job, *others) for part in _parts(each)]
        start = sum(part.get("replicas", 0) + part.get("spares", 0) for part in parts)
        policy = job["spec"].get("elasticPolicy")
        bounds = (policy["minReplicas"], policy["maxReplicas"]) if policy else (start, start)
        return cls(parts[0]["template"], *bounds, is_elastic=bool(policy))

    @property
    def key(self) -> str:
        """The recipe's key for the smallest number of pods."""
        return f"recipes.{'elastic_policy.min_nodes' if self.is_elastic else 'trainer.num_nodes'}"


def _parts(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of a rendered object that have pods on nodes of their own."""
    if ray := ray_cluster(job):
        return list(ray["workerGroupSpecs"])
    spec = job["spec"]
    return list(spec.get("replicaSpecs") or spec.get("pytorchReplicaSpecs", {}).values() or [spec])


def per_pod(spec: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, Fraction]:
    """Return the amounts that a pod counts, `requests.<resource>` and `limits.<resource>`.

    That is the containers' sum or, if larger, that of an init container and the sidecars started before it.

    Source: Kubernetes, Sidecar Containers: Resource sharing within containers.

    Raises:
        UnreadableQuantity: One of its quantities is not valid.
    """
    running: dict[str, Fraction] = {}
    largest: dict[str, Fraction] = {}
    for container in spec.get("initContainers") or ():
        alone = _joined(sum, running, _counts(container, defaults))
        largest = _joined(max, largest, alone)
        if container.get("restartPolicy") == "Always":  # a sidecar
            running = alone
    for container in spec["containers"]:
        running = _joined(sum, running, _counts(container, defaults))
    return _joined(max, running, largest)


def _joined(
    join: Callable[[Iterable[Fraction]], Fraction | int], *amounts: Mapping[str, Fraction]
) -> dict[str, Fraction]:
    names = dict.fromkeys(name for each in amounts for name in each)
    return {name: Fraction(join(each.get(name, Fraction()) for each in amounts)) for name in names}


def _counts(container: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, Fraction]:
    """Return what one container counts; a limit without a request is the request too.

    Source: Kubernetes, Resource Management for Pods and Containers.
    """
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    own = {"limits": limits, "requests": {**limits, **(resources.get("requests") or {})}}
    said = {f"{kind}.{name}": text for kind in _KINDS for name, text in own[kind].items()}
    return {name: amount(text) for name, text in {**defaults, **said}.items()}


def exceeds(demand: Demand, quota: Quota) -> tuple[Problem, ...]:
    """Return why a job can never run under a quota: its minimum exceeds the total that is allowed.

    Current usage by others does not count: a job waits until it is released.
    """
    needed = per_pod(demand.template["spec"], quota.defaults)
    fitting = _fitting(needed, quota)
    found = []
    for name, most in fitting.items():
        if most < demand.least:
            allowed = f"{quota.name} allows {quota.hard[name]}"
            need = (
                f"{counted(demand.least, 'node')} need {shown(demand.least * needed.get(name, Fraction(1)))} {name}"
            )
            remedy = f"{demand.key}={_least(fitting)}" if _least(fitting) else "a larger quota, or smaller nodes"
            found.append(Problem("E364", demand.key, f"{need}: it could never start", demand.least, allowed, remedy))
    return (*found, *_unstated(needed, quota), *_above_limit(needed, quota), *_uncovered(needed, quota))


def limits_growth(demand: Demand, quota: Quota) -> tuple[Notice, ...]:
    """Return a notice if an elastic job fits a quota at its smallest size, but not at its largest."""
    most = _least(_fitting(per_pod(demand.template["spec"], quota.defaults), quota))
    if most is None or not demand.least <= most < demand.most:
        return ()
    message = f"{quota.name} holds {counted(most, 'node')} of this job, which may grow to {demand.most}"
    return (Notice("N123", message),)


def _fitting(needed: Mapping[str, Fraction], quota: Quota) -> dict[str, int]:
    """Return how many pods fit each bound of a quota."""
    each = {"pods": Fraction(1), **needed}
    return {
        name: int(amount(text) // each[name])
        for name, text in quota.hard.items()
        if text is not None and each.get(name)
    }


def _least(fitting: Mapping[str, int]) -> int | None:
    return min(fitting.values(), default=None)


def _unstated(needed: Mapping[str, Fraction], quota: Quota) -> Iterator[Problem]:
    """Yield a Problem for resources that a pod must state because a ResourceQuota bounds them.

    Source: Kubernetes, Resource Quotas: with a quota on cpu or memory every new pod must name them.
    """
    names = [f"{kind}.{name}" for kind in _KINDS for name in _PLAIN[:2]]
    missing = [name for name in names if name in quota.hard and name not in needed]
    if missing and not quota.is_queue:
        message = f"the pods do not state {', '.join(missing)}, and no LimitRange has defaults for it"
        allowed = f"pods that state it, since {quota.name} bounds it"
        remedy = "recipes.resources.memory=…" if all("memory" in name for name in missing) else None
        remedy = remedy or "a LimitRange with defaults; recipes governance generates one"
        yield Problem("E365", "cluster.namespace", message, allowed=allowed, remedy=remedy)


def _above_limit(needed: Mapping[str, Fraction], quota: Quota) -> Iterator[Problem]:
    """Yield a Problem for each request of a pod beyond its default limit by a LimitRange.

    Source: Kubernetes, Limit Ranges: such a pod is refused.
    """
    for name in _PLAIN[:2] if not quota.is_queue else ():
        request, limit = needed.get(f"requests.{name}"), needed.get(f"limits.{name}")
        if request is not None and limit is not None and request > limit:
            message = f"each pod requests {shown(request)} {name}, more than the limit of the namespace's LimitRange"
            remedy = f"recipes.resources.{name}={shown(limit)}"
            yield Problem(
                "E365", f"recipes.resources.{name}", message, allowed=f"at most {shown(limit)}", remedy=remedy
            )


def _uncovered(needed: Mapping[str, Fraction], quota: Quota) -> Iterator[Problem]:
    """Yield a Problem for resources that a queue does not cover, and so would never admit.

    Source: Kueue, ClusterQueue: a workload is admitted only if all its resources are covered.
    """
    requested = [name for name, value in needed.items() if name.startswith("requests.") and value]
    missing = [name.removeprefix("requests.") for name in requested if name not in quota.hard]
    if quota.is_queue and missing:
        message = f"the job requests {', '.join(missing)}, which its queue does not cover: it would never be admitted"
        allowed = f"resources of {quota.name}: {', '.join(n.removeprefix('requests.') for n in quota.hard)}"
        remedy = "cluster.request_node_share=false" if set(missing) <= {"cpu", "memory"} else None
        yield Problem("E365", "cluster.queue_name", message, allowed=allowed, remedy=remedy)
