"""Parts of a pod that the API server, the kubelet or the container runtime would refuse: volumes, resources, rights,
variables.

Source: Kubernetes API validation and documentation, by launcher/backends/kubernetes/rules/bounds.py.
"""

import re
from collections.abc import Iterator, Mapping
from posixpath import isabs
from typing import Any

from launcher.backends.kubernetes.job_options import SecurityContext, k8s_options
from launcher.backends.kubernetes.rules import bounds
from launcher.common.names import CHECKPOINT_LOG
from launcher.common.problems import Problem
from launcher.common.quantities import amount
from launcher.common.secret_forms import holds_credentials
from launcher.common.syntax import PATH_LIMIT, is_dns_label, is_dns_subdomain, path_fault, place, rooted
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import leaves, lookup
from launcher.model.instances import Instance
from launcher.rules import MakeProblem, rule
from launcher.rules.custom import is_script

_VOLUMES = ("cluster.volumes", "cluster.persistent_volume_claims")
_CONTEXT = "cluster.security_context"
_RAY = "recipes.ray_cluster"
_HEAD = f"{_RAY}.head_node"
_QUANTITIES = {
    "recipes.resources": ("cpu", "hugepages", "memory"),
    _HEAD: ("cpu", "memory"),  # its node may be of another kind
    f"{_RAY}.worker_nodes": ("cpu", "memory"),
}
"""Sections that describe a pod, to the resources of which they have the request, and in `…Limit` the limit."""
_REMOTE = re.compile(r"(?:https?|ssh|git)://[^/\s]+/\S+|(?:[\w.-]+@)?[\w.-]+:(?!:)(?!//)\S+", re.ASCII)
"""Source: git-clone(1), Git URLs; a path may hold a colon only behind a slash."""


@rule("E306", *_VOLUMES, source="Kubernetes, Volumes; Object Names and IDs")
def volumes_are_named(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A volume's name is a DNS label of its own; a claim's is a DNS name."""
    claims = k8s_options(checked).persistent_volume_claims or []
    taken = {"config", "shm", "checkpoint-log", *(f"claim-{i}" for i in range(len(claims)))}
    for i, volume in enumerate(k8s_options(checked).volumes or []):
        if not is_dns_label(volume.volumeName) or volume.volumeName in taken:
            yield problem(
                f"cluster.volumes.{i}.volumeName",
                "is not a free DNS label",
                value=volume.volumeName,
                allowed=f"1 to 63 lower-case letters, digits and -; not {', '.join(sorted(taken))}",
            )
        taken.add(volume.volumeName)
    for i, claim in enumerate(claims):
        if not is_dns_subdomain(claim.claimName):
            path = f"cluster.persistent_volume_claims.{i}.claimName"
            allowed = "lower-case letters, digits, - and ."
            yield problem(path, "is not a DNS name", value=claim.claimName, allowed=allowed)


@rule("E313", *_VOLUMES, source="Kubernetes, Volumes; the API's VolumeMount; runc")
def mounts_are_paths(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Paths are absolute and without '..', and nothing is mounted over something else or where nothing can be."""
    taken = {"/config", "/dev/shm", str(CHECKPOINT_LOG)}
    for i, volume in enumerate(k8s_options(checked).volumes or []):
        if fault := path_fault(volume.hostPath):
            yield problem(
                f"cluster.volumes.{i}.hostPath", fault, value=volume.hostPath, remedy=rooted(volume.hostPath)
            )
    for key in ("volumes", "persistent_volume_claims"):
        for i, each in enumerate(getattr(k8s_options(checked), key) or []):
            path, mount = f"cluster.{key}.{i}.mountPath", each.mountPath
            real = place(mount)
            if fault := bounds.mount_path_fault(mount):
                yield problem(path, fault, value=mount, remedy=rooted(mount))
            elif real in taken:
                yield problem(path, "is mounted twice", value=mount, allowed=f"not {', '.join(sorted(taken))}")
            taken.add(real)


@rule("E309", "recipes.resources", _RAY, source="Kubernetes, Quantity; Manage HugePages; KubeRay, RayCluster")
def quantities_are_quantities(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Processors, memory and huge pages are quantities that a node has, huge pages in full and beside memory."""
    resources, instance = checked.recipe.resources, checked.instance
    if resources and resources.hugepages is not None and resources.memory is None:
        message, remedy = "huge pages need memory beside them", "recipes.resources.memory=…"
        yield problem("recipes.resources.hugepages", message, value=resources.hugepages, remedy=remedy)
    for section, keys in _QUANTITIES.items():
        given = lookup(checked.composition.tree, section)
        for key in keys if isinstance(given, Mapping) else ():
            values = {name: given[name] for name in (key, f"{key}Limit") if given.get(name) is not None}
            faults = {name: fault for name, value in values.items() if (fault := bounds.quantity_fault(key, value))}
            for name, fault in faults.items():
                yield problem(f"{section}.{name}", fault, value=values[name])
            if faults or not values:
                continue
            limit = values.get(f"{key}Limit")
            name = key if key in values else f"{key}Limit"  # without a request, Kubernetes requests the limit
            requested = values[name]
            if limit is not None and amount(requested) > amount(limit):
                message, allowed = "is below what the pod requests", f"{requested} or more"
                yield problem(f"{section}.{key}Limit", message, value=limit, allowed=allowed)
            most = _of_node(instance, key) if instance and section != _HEAD else None
            if instance and most and amount(requested) >= amount(most):
                message = f"no pod would ever start: a node of {instance.name} has {most}, and keeps a part of it"
                yield problem(f"{section}.{name}", message, value=requested, allowed=f"less than {most}")


def _of_node(instance: Instance, resource: str) -> str | None:
    """Return how much of a resource an instance has, as a quantity; None for another one, or if it is unknown."""
    amounts = {"cpu": str(instance.vcpus or ""), "memory": f"{instance.memory_gib}Gi" if instance.memory_gib else ""}
    return amounts.get(resource) or None


@rule("E310", _CONTEXT, source="Kubernetes, Configure a Security Context; the API's SecurityContext")
def rights_agree(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The fields of a security context agree with each other, and none is empty."""
    context = k8s_options(checked).security_context
    if context is None:
        return
    for key, value in leaves(context.model_dump(exclude_none=True)):
        if value in ("", [], {}):
            yield problem(f"{_CONTEXT}.{key}".rstrip("."), "is empty", remedy="leave it out")
    if context.allowPrivilegeEscalation is False and (why := _escalates(context)):
        message = f"is always true for a container with {why}"
        yield problem(f"{_CONTEXT}.allowPrivilegeEscalation", message, value=False)
    if context.runAsNonRoot and context.runAsUser == 0:
        yield problem(f"{_CONTEXT}.runAsUser", "is root, which runAsNonRoot refuses to start", value=0)
    for name in ("seccompProfile", "appArmorProfile"):
        yield from _profile_faults(name, getattr(context, name), problem)


def _escalates(context: SecurityContext) -> str | None:
    """Return by what a container's processes may always gain privileges, None if they need not."""
    added = (context.capabilities and context.capabilities.add) or ()
    return "privileged" if context.privileged else "SYS_ADMIN" if "SYS_ADMIN" in added else None


def _profile_faults(name: str, profile: Any, problem: MakeProblem) -> Iterator[Problem]:
    """Yield what is wrong with a profile: a node's own profile needs a name, and no other kind may have one."""
    if profile is None:
        return
    path, file = f"{_CONTEXT}.{name}.localhostProfile", profile.localhostProfile
    if profile.type == "Localhost" and file is None:
        yield problem(path, "is missing: type Localhost takes a profile of the node")
    elif profile.type != "Localhost" and file is not None:
        yield problem(path, "is for type Localhost only", value=file, remedy="leave it out")
    elif file and name == "seccompProfile" and (isabs(file) or ".." in file.split("/")):
        yield problem(
            path, "is a path below the kubelet's seccomp folder", value=file, allowed="relative, without '..'"
        )
    elif file and (file != file.strip() or len(file.encode()) > PATH_LIMIT):
        allowed = f"at most {PATH_LIMIT} bytes, no space around it"
        yield problem(path, "is not a valid profile name", value=file, allowed=allowed)


@rule("E323", "git.repo_url_or_path", *_VOLUMES, source="git-clone(1), Git URLs")
def repository_is_reachable(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A pod clones from a server, or from a folder that is mounted into it: it has no folder of this machine."""
    url = checked.launch.git.repo_url_or_path
    if not url or holds_credentials(url) or _REMOTE.fullmatch(url) or is_script(checked):
        return
    if isabs(url) and k8s_options(checked).mount_of(url):
        return
    yield problem(
        "git.repo_url_or_path",
        "is neither on a server nor below a mount, so no pod can clone it",
        value=url,
        allowed="https://host/path, ssh://host/path, user@host:path, or a path below a mountPath",
    )
