"""Objects of a team on a HyperPod cluster: namespace, quotas, roles, queue and priorities. Pure.

Source: AWS, Using elastic training in Amazon SageMaker HyperPod, Prerequisites: namespaces, quotas, RBAC, Kueue.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import yaml

from launcher.common import yaml_io
from launcher.common.problems import Notice, Problem, ProblemsFound, raise_any
from launcher.common.suggestions import did_you_mean
from launcher.common.syntax import is_dns_label, is_dns_subdomain
from launcher.common.templating import render_template
from launcher.governance import pod_policy
from launcher.governance.team import LONGEST_PRIORITY, LONGEST_TEAM, PRIORITY, Team
from launcher.model import instances
from launcher.model.instances import EFA, HUGE_PAGES, Instance
from launcher.model.validation import type_problems

KUEUE_VERSIONS = ("v1beta1", "v1beta2")
"""Versions of Kueue's API that differ, for these objects, in the name of a cohort. Source: Kueue, its CRDs."""

_PODS_PER_NODE = 4
"""Pods of the quota per node: a job's own, its next size's, and small ones beside them. Our own choice."""

_ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]{1,512}", re.ASCII)
_GROUP = re.compile(r"[A-Za-z0-9@:./+=_-]{1,256}")
_SYSTEM = "system-"
"""Source: Kubernetes, Pod Priority and Preemption: PriorityClass."""
_OWN_GROUPS = ("system:", "eks:", "aws:", "amazon:", "iam:")
"""Prefixes of groups that access entries may not use. Source: Amazon EKS, Create access entries."""


def read_all(args: Sequence[str]) -> tuple[Team, ...]:
    """Parse the arguments of several teams: each `team=` starts one, and arguments before the first apply to all.

    Raises:
        ProblemsFound: Every error in them.
    """
    starts = [i for i, arg in enumerate(args) if arg.startswith("team=")]
    if len(starts) < 2:
        return (read(args),)
    groups = [args[start:end] for start, end in zip(starts, [*starts[1:], len(args)], strict=True)]
    found, problems = [], []
    for group in groups:
        try:
            found.append(read([*args[: starts[0]], *group]))
        except ProblemsFound as error:
            problems += [replace(each, path=f"{group[0]} {each.path}") for each in error.problems]
    problems += [
        Problem("E360", group[0], "is given twice", group[0])
        for i, group in enumerate(groups)
        if group[0] in [other[0] for other in groups[:i]]
    ]
    raise_any(problems)
    return tuple(found)


def read(args: Sequence[str]) -> Team:
    """Parse `key=value` arguments; raises like `read_all`."""
    tree, problems = _tree(args)
    typed, faults = type_problems(Team, tree, "")
    known = {problem.path for problem in problems}
    problems += [fault for fault in faults if fault.path not in known]
    faulty = {problem.path.partition(".")[0] for problem in problems}
    team: Team = typed
    if problems:  # defaults in place of faulty keys, so that the valid ones are checked too
        valid = [key for key in tree if key in Team.model_fields and key not in faulty]
        team = Team.model_construct(**{key: getattr(typed, key) for key in valid})
    for needs, check in _CHECKS:
        if not faulty & set(needs):
            problems += check(team)
    raise_any(problems)
    return team


def _tree(args: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    tree: dict[str, Any] = {}
    problems = []
    for arg in args:
        key, equals, text = arg.partition("=")
        try:
            if not equals or not key or key in tree:
                message = "is given twice" if key in tree else "is not key=value"
                problems.append(Problem("E360", key or arg, message, arg, "team=… instance_type=… nodes=…"))
            else:
                tree[key] = yaml_io.load(text)
        except yaml.MarkedYAMLError as error:
            problems.append(Problem("E360", key, f"is not a valid YAML value: {error.problem}", text))
    return tree, problems


def _name_faults(team: Team) -> Iterator[Problem]:
    if not is_dns_label(team.team) or len(team.team) > LONGEST_TEAM:
        allowed = f"1 to {LONGEST_TEAM} lower-case letters, digits and -, starting and ending with a letter or digit"
        yield Problem("E361", "team", "is not valid in the names of a namespace and a queue", team.team, allowed)


def _instance_faults(team: Team) -> Iterator[Problem]:
    name = instances.canonical(team.instance_type)
    for i, spec in enumerate(team.instance_specs or ()):
        if lacking := instances.missing(spec):
            message = f"the description of {spec.name} lacks {', '.join(lacking)}, and so does the table"
            yield Problem("E234", f"instance_specs.{i}", message, allowed=", ".join(type(spec).model_fields))
            return
    if team.known_instance is None:
        allowed = f"one that recipes instances lists, or instance_specs=[{instances.SPEC_EXAMPLE % name}]"
        remedy = did_you_mean(name, list(instances.table()))
        yield Problem("E230", "instance_type", "is not a known instance type", name, allowed, remedy)
        return
    memory_gib = team.instance.memory_gib
    for key, most in (("memory_gib_per_node", memory_gib), ("hugepages_mib_per_node", memory_gib * 1024)):
        if (getattr(team, key) or 0) > most:
            allowed = f"at most {most}, the memory of {name}"
            yield Problem("E362", key, "is more than a node has", getattr(team, key), allowed)


def _pod_faults(team: Team) -> Iterator[Problem]:
    most = _most_pods(team)
    if most < team.nodes:
        message = f"is fewer than the {team.nodes} nodes, each of which runs at least one pod"
        yield Problem("E362", "max_pods", message, most, f"at least {team.nodes}")
    elif (team.min_available or 0) > most:
        message = "is more than the pods that the team may have: no drain could ever evict one"
        yield Problem("E362", "min_available", message, team.min_available, f"at most {most}")


def _queue_faults(team: Team) -> Iterator[Problem]:
    if team.borrow_nodes and not team.cohort:
        message = "nodes are borrowed from a cohort, but none is given"
        yield Problem("E362", "borrow_nodes", message, team.borrow_nodes, remedy="cohort=<name of the sharing teams>")
    for key in ("cohort", "topology"):
        value = getattr(team, key)
        if value is not None and not is_dns_subdomain(value):
            yield Problem("E361", key, "is not a valid DNS name", value, "lower-case letters, digits, - and .")
        elif value is not None and not team.kueue:
            message = "is a setting of the queue, which kueue=false omits"
            yield Problem("E362", key, message, value, remedy="omit it")


def _kueue_faults(team: Team) -> Iterator[Problem]:
    if team.scheduler_preempts and team.kueue:
        message = "the scheduler would evict single pods, although Kueue lets jobs save before it preempts them"
        yield Problem("E362", "scheduler_preempts", message, True, remedy="omit it, or use kueue=false without Kueue")
    if team.kueue_version and not team.kueue:
        message = "is a setting of Kueue's objects, which kueue=false omits"
        yield Problem("E362", "kueue_version", message, team.kueue_version, remedy="omit it")


def _priority_faults(team: Team) -> Iterator[Problem]:
    for name in team.priorities:
        path = f"priorities.{name}"
        if not is_dns_subdomain(name + PRIORITY):
            yield Problem("E361", path, "is not a valid DNS name", name, "lower-case letters, digits, - and .")
        elif name.startswith(_SYSTEM):
            message = f"Kubernetes reserves priority classes that begin with {_SYSTEM}"
            yield Problem("E361", path, message, name, "another name")
        elif team.kueue and len(name) > LONGEST_PRIORITY:
            message = "is too long for the label by which a job names its workload priority"
            yield Problem("E361", path, message, name, f"at most {LONGEST_PRIORITY} characters")


def _access_faults(team: Team) -> Iterator[Problem]:
    if team.role_arn is not None and not _ROLE_ARN.fullmatch(team.role_arn):
        allowed = "arn:aws:iam::<12 digits>:role/<name>"
        yield Problem("E361", "role_arn", "is not a valid IAM role ARN", team.role_arn, allowed)
    for i, group in enumerate(team.groups or ()):
        if not _GROUP.fullmatch(group) or group.startswith(_OWN_GROUPS):
            message = "is not a valid group of an access entry"
            allowed = f"letters, digits and @:./+=_-; not starting with {', '.join(_OWN_GROUPS)}"
            yield Problem("E361", f"groups.{i}", message, group, allowed)


_CHECKS: tuple[tuple[tuple[str, ...], Callable[[Team], Iterator[Problem]]], ...] = (
    (("team",), _name_faults),
    (("instance_type", "instance_specs", "memory_gib_per_node", "hugepages_mib_per_node"), _instance_faults),
    (("borrow_nodes", "cohort", "topology", "kueue"), _queue_faults),
    (("kueue", "kueue_version", "scheduler_preempts"), _kueue_faults),
    (("priorities", "kueue"), _priority_faults),
    (("nodes", "borrow_nodes", "max_pods", "min_available"), _pod_faults),
    (("host_paths", "pod_security"), pod_policy.faults),
    (("role_arn", "groups"), _access_faults),
)
"""Checks beyond the types, with the keys that must be valid for each of them."""


def notices(team: Team) -> tuple[Notice, ...]:
    """Return notices for the person who applies the objects."""
    found = []
    instance = team.instance
    if team.memory_gib_per_node is None and team.memory_gib < instance.memory_gib:
        message = f"the quota counts {team.memory_gib} of {instance.memory_gib} GiB per node, as in AWS's example"
        found.append(Notice("N120", f"{message}; memory_gib_per_node={instance.memory_gib} counts all"))
    if team.role_arn is None:
        found.append(Notice("N121", "the service account has no IAM role; role_arn=… gives its pods access to AWS"))
    return (*found, *pod_policy.notices(team))


def files(team: Team) -> dict[str, str]:
    """Return every object of a team as YAML, by file name; the files are numbered in the order to apply them."""
    instance, nodes = team.instance, team.nodes + team.borrow_nodes
    values = {
        "team": team,
        "instance": instance,
        "groups": team.groups or [team.namespace],
        "pod_security": pod_policy.enforced_label(team),
        "kueue_version": team.kueue_version or KUEUE_VERSIONS[-1],
        "is_policy": pod_policy.profile(team) == pod_policy.POLICY,
        **pod_policy.values(),
        "hard": _hard(team, nodes),
        "counted": _counted(team, nodes),
        "default": _compute(team, 1),
        "requested": instances.requested(instance, instance.accelerators, team.memory_gib),
        "most": {"cpu": str(instance.vcpus), "memory": f"{instance.memory_gib}Gi"},
        "min_available": team.nodes if team.min_available is None else team.min_available,
        "quotas": _queue_quotas(team),
    }
    names = ["namespace", "quotas", "access"]
    names += ["disruption"] * bool(values["min_available"])
    names += ["priorities"] * bool(team.priorities)
    names += ["queues"] * team.kueue
    # The policy must exist before the namespace that relies on it.
    places = {"policy": 0} if values["is_policy"] else {}
    places |= {name: place for place, name in enumerate(names, 1)}
    return {
        f"{place}-{name}.yaml": render_template(f"kubernetes/governance/{name}.yaml.j2", **values)
        for name, place in places.items()
    }


def _devices(instance: Instance, nodes: int) -> dict[str, str]:
    found = {}
    if instance.accelerator_resource:
        found[instance.accelerator_resource] = str(instance.accelerators * nodes)
    if instance.efa:
        found[EFA] = str(instance.efa * nodes)
    return found


def _most_pods(team: Team) -> int:
    return team.max_pods or _PODS_PER_NODE * (team.nodes + team.borrow_nodes)


def _compute(team: Team, nodes: int) -> dict[str, str]:
    return {"cpu": str(team.instance.vcpus * nodes), "memory": f"{team.memory_gib * nodes}Gi"}


def _hard(team: Team, nodes: int) -> dict[str, str]:
    """Return the quota on compute.

    Source: AWS, Using elastic training, Auto-scaling: its ResourceQuota for 8 ml.p5.48xlarge.
    """
    amounts = _compute(team, nodes).items()
    return _devices(team.instance, nodes) | {
        f"{kind}.{name}": amount for kind in ("requests", "limits") for name, amount in amounts
    }


def _counted(team: Team, nodes: int) -> dict[str, str]:
    """Return the quota on devices under the names that Kubernetes enforces, and on numbers of objects.

    Source: Kubernetes, Resource Quotas: of extended resources only `requests.` items are allowed; object counts.
    """
    counts = {f"requests.{name}": amount for name, amount in _devices(team.instance, nodes).items()}
    if team.hugepages_mib_per_node:
        counts[f"requests.{HUGE_PAGES}"] = f"{team.hugepages_mib_per_node * nodes}Mi"
    if team.storage_gib:
        counts["requests.storage"] = f"{team.storage_gib}Gi"
    return counts | {
        "pods": str(_most_pods(team)),
        "persistentvolumeclaims": str(team.max_claims),
        "services": str(team.max_services),
        "services.loadbalancers": "0",  # jobs need headless ones only, and none may be reached from outside
        "services.nodeports": "0",
        "count/hyperpodpytorchjobs.sagemaker.amazonaws.com": str(team.max_jobs),
        "count/pytorchjobs.kubeflow.org": str(team.max_jobs),
        "count/rayjobs.ray.io": str(team.max_jobs),
    }


def _queue_quotas(team: Team) -> list[dict[str, str]]:
    """Return the quotas of the ClusterQueue: its own share, and the borrowing limit.

    All resources of a pod are covered: a job that requests any other is never admitted.
    """

    def amounts(nodes: int) -> dict[str, str]:
        pages = team.hugepages_mib_per_node
        own = {HUGE_PAGES: f"{pages * nodes}Mi"} if pages else {}
        return {**_devices(team.instance, nodes), **_compute(team, nodes), **own}

    lent = amounts(team.borrow_nodes)
    return [
        {"name": name, "nominalQuota": amount} | ({"borrowingLimit": lent[name]} if team.cohort else {})
        for name, amount in amounts(team.nodes).items()
    ]
