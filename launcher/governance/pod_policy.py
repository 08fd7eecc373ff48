"""Pods allowed in a team's namespace: a Pod Security profile, or a policy with the exceptions that jobs need. Pure.

Source: Kubernetes, Pod Security Standards, Baseline; Kubernetes, Validating Admission Policy.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher.common.problems import Notice, Problem
from launcher.common.syntax import is_below, place

if TYPE_CHECKING:
    from launcher.governance.team import Team

POLICY = "policy"
"""Our own profile: baseline with the exceptions that jobs need."""

_CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
)

_OF_THE_NODE = (
    *("/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/usr"),
    *("/opt/cni", "/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet", "/var/log", "/var/run"),
)
"""Folders that give a pod control of the node, with everything below them. Our own choice."""
_PARENTS = ("/", "/var", "/var/lib", "/opt")
"""Folders that contain such folders."""


def profile(team: "Team") -> str:
    """Return the profile of a team's namespace: the given one, else baseline, or our own if jobs need more."""
    return team.pod_security or (POLICY if team.instance.efa or team.host_paths else "baseline")


def enforced_label(team: "Team") -> str:
    """Return the Pod Security level of the namespace's label, which allows no exceptions."""
    return "privileged" if profile(team) == POLICY else profile(team)


def values() -> dict[str, Any]:
    """Return the values of the policy's template, apart from the team."""
    return {"capabilities": _CAPABILITIES, "selinux_types": SELINUX_TYPES, "sysctls": _SYSCTLS}


def beyond_baseline(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of a pod's specification the baseline level refuses, as far as jobs may have it."""
    if spec.get("hostNetwork"):
        yield "the node's network"
    for volume in spec.get("volumes") or ():
        if folder := (volume.get("hostPath") or {}).get("path"):
            yield f"{folder} of the node"
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        context = container.get("securityContext") or {}
        if context.get("privileged"):
            yield "a privileged container"
        added = (context.get("capabilities") or {}).get("add") or ()
        if beyond := [name for name in added if name not in _CAPABILITIES]:
            yield f"capabilities {', '.join(beyond)}"


def faults(team: "Team") -> Iterator[Problem]:
    """Yield a Problem for each folder that a team must not mount, and for a profile that forbids all of them."""
    for i, path in enumerate(team.host_paths or ()):
        if place(path) != path or not path.isprintable():
            yield Problem("E361", f"host_paths.{i}", "is not a normalized absolute path", path, "such as /fsx")
        elif path in _PARENTS or any(is_below(path, folder) for folder in _OF_THE_NODE):
            message, allowed = "would give the team control of the node", "a folder for data, such as /fsx"
            yield Problem("E362", f"host_paths.{i}", message, path, f"{allowed} or /opt/dlami/nvme")
    if team.host_paths and team.pod_security in ("baseline", "restricted"):
        message = "does not allow folders of the node"
        remedy = f"pod_security={POLICY}, or a PersistentVolumeClaim instead of host_paths"
        yield Problem("E362", "pod_security", message, team.pod_security, remedy=remedy)


def notices(team: "Team") -> Iterator[Notice]:
    """Yield notices about pods for the person who applies the objects."""
    if team.pod_security == "privileged":
        yield Notice("N122", "the namespace enforces no Pod Security profile: it only warns and audits")
    elif profile(team) == POLICY:
        fallback = "pod_security=restricted with non-root images"
        message = "pods are restricted by 0-policy.yaml, which requires Kubernetes 1.30; on an older cluster use"
        yield Notice("N145", f"{message} {fallback}")
