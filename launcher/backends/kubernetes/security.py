"""The container's securityContext: the restricted Pod Security profile, and the settings that go beyond it.

Source: Kubernetes, Pod Security Standards, Restricted.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.backends.kubernetes.job_options import k8s_options
from launcher.bundle import container
from launcher.governance.pod_policy import SELINUX_TYPES
from launcher.model.family_registry import interface
from launcher.model.job_spec import JobSpec

_OF_ROOT = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
"""Capabilities that root in a container needs to write to other users' mounted folders."""
_PROFILES = ("RuntimeDefault", "Localhost")


def container_context(job: JobSpec, *, is_privileged: bool = False) -> dict[str, Any]:
    """Return the container's securityContext: the user's own, or the restricted profile with the exceptions for root.

    A program that needs all privileges has them as root only.

    IPC_LOCK is for root alone: an added capability has no effect for other users, whose EFA devices register memory
    within the node's limit.
    """
    options = k8s_options(job)
    if options.security_context:
        own: dict[str, Any] = options.security_context.model_dump(exclude_none=True)
        return own
    if is_privileged and _is_root(job):
        return {"privileged": True}
    restricted: dict[str, Any] = {"allowPrivilegeEscalation": False}
    if not _is_root(job):
        restricted["runAsNonRoot"] = True
        if options.run_as_user:
            restricted["runAsUser"] = options.run_as_user
    capabilities = {"drop": ["ALL"]}
    if _is_root(job):
        locked = ["IPC_LOCK"] if job.resources.efa and job.max_nodes > 1 else []
        capabilities["add"] = [*_OF_ROOT, *locked]
    return {**restricted, "capabilities": capabilities, "seccompProfile": {"type": "RuntimeDefault"}}


def _is_root(job: JobSpec) -> bool:
    settings = k8s_options(job)
    if settings.run_as_root is None:
        needs_root = interface(job).runs_as_root and not container.is_own(job)
        return needs_root and settings.run_as_user is None
    return settings.run_as_root


def exceptions(job: JobSpec) -> Iterator[str]:
    """Yield what of a job's pods is beyond the restricted profile, and which setting makes it so."""
    settings = k8s_options(job)
    if settings.security_context:
        why = "cluster.security_context"
    elif settings.run_as_root:
        why = "cluster.run_as_root=true"
    else:
        why = f"the published image of {job.model_type}"
    if words := ", ".join(_of_container(container_context(job))):
        yield f"{words} ({why})"
    privileged = [role.name for role in interface(job).components if role.pod_needs(job).is_privileged]
    if privileged and container_context(job, is_privileged=True).get("privileged"):
        yield f"a privileged container in the pods of {', '.join(privileged)} ({why})"
    needs = interface(job).workers.pod_needs(job)
    if settings.hostNetwork:
        yield "the node's network (cluster.hostNetwork=true)"
    elif settings.hostNetwork is None and needs.is_on_node_network:
        yield f"the node's network (the published image of {job.model_type})"
    if folders := (*needs.node_folders.values(), *needs.init_files):
        yield f"{', '.join(folders)} of the node (the published image of {job.model_type})"
    for i, volume in enumerate(settings.volumes or ()):
        yield f"{volume.hostPath} of the node (cluster.volumes.{i})"


def _of_container(context: Mapping[str, Any]) -> Iterator[str]:
    if context.get("privileged"):
        yield "a privileged container"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if context.get("runAsNonRoot") is not True:
        yield "may run as root"
    if context.get("runAsUser") == 0:
        yield "runs as user 0"
    capabilities = context.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield "does not drop all capabilities"
    if added := [name for name in capabilities.get("add") or () if name != "NET_BIND_SERVICE"]:
        yield f"capabilities {', '.join(map(str, added))}"
    if (context.get("seccompProfile") or {}).get("type") not in _PROFILES:
        yield "no seccomp profile"
    if (context.get("appArmorProfile") or {}).get("type", "RuntimeDefault") not in _PROFILES:
        yield "no AppArmor profile"
    options = context.get("seLinuxOptions") or {}
    if options.get("type", "") not in SELINUX_TYPES or options.get("user") or options.get("role"):
        yield "its own seLinuxOptions"
