"""What the API would say of a manifest, asked without one: closed schemas, and the restricted profile."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import definitions
import jsonschema
import kubernetes_validate

from launcher.backends.kubernetes.api_objects import pod_templates
from launcher.common import yaml_io

KUBERNETES = "1.30"
TIERS = "++recipes.elastic_policy.preemption={base_priority_class:high-priority,elastic_priority_class:low-priority}"
EVERYTHING = (
    "++recipes.elastic_policy.is_elastic=true",
    TIERS,
    "++recipes.elastic_policy.faulty_timeout=30",
    "++recipes.elastic_policy.scale_up_snooze_time=120",
    "++recipes.resources={cpu: 96, memory: 512Gi, hugepages: 5120Mi}",
    "cluster.queue_name=hyperpod-ns-research-localqueue",
    "cluster.workload_priority_class=training-priority",
    "cluster.custom_labels={team: research}",
    "cluster.annotations={note: 'a: b'}",
    "cluster.required_topology=topology.k8s.aws/network-node-layer-1",
    "cluster.node_selector={sagemaker.amazonaws.com/deep-health-check-status: Passed}",
    "cluster.label_selector={required: {zone: [a, b]}, preferred: {rack: [c]}, weights: [50]}",
    "cluster.tolerations=[{key: team, operator: Equal, value: research, effect: NoSchedule}]",
    "cluster.spares=1",
    "cluster.service_account_name=trainer",
    "cluster.persistent_volume_claims=[{claimName: fsx, mountPath: /fsx}]",
    "cluster.run_as_user=1000",
    "cluster.fs_group=1000",
    "cluster.cleanPodPolicy=OnlyComplete",
    "cluster.run_policy={activeDeadlineSeconds: 86400, jobMaxRetryCount: 50, ttlSecondsAfterFinished: 3600,"
    " restartPolicy: {evalPeriodSeconds: 21600, maxFullJobRestarts: 1},"
    " logMonitoringConfiguration: [{name: Slow, logPattern: '.*samples/s: ([0-9.]+)', metricThreshold: 80,"
    " operator: lteq, metricEvaluationDataPoints: 25}]}",
)
"""Overrides that set every field of a HyperPodPyTorchJob that is set by a key."""

GRPO = "recipes=fine-tuning/llama/verl-grpo-rlvr-llama-3-dot-3-70b-instruct-lora"
DATA = tuple(f"recipes.training_config.data.{kind}_files=/fsx/{kind}.parquet" for kind in ("train", "val"))
RAY = (GRPO, "cluster=k8s", "container=me/image:1", *DATA)
RAY_EVERYTHING = (
    "recipes.trainer.num_nodes=2",
    "cluster.queue_name=research",
    "cluster.workload_priority_class=training-priority",
    "cluster.priority_class_name=high",
    "cluster.custom_labels={team: research}",
    "cluster.annotations={note: 'a: b'}",
    "cluster.cpu_instance_type=[c5.4xlarge, m5.4xlarge]",
    "cluster.persistent_volume_claims=[{claimName: fsx, mountPath: /fsx}]",
    "cluster.volumes=[{volumeName: nvme, hostPath: /opt/nvme, mountPath: /scratch}]",
    "cluster.tolerations=[{operator: Exists}]",
    "cluster.label_selector={required: {zone: [a, b]}}",
    "cluster.run_policy={activeDeadlineSeconds: 86400, startupDeadlineSeconds: 600, jobMaxRetryCount: 2,"
    " ttlSecondsAfterFinished: 3600, suspend: true}",
    "recipes.run.hf_access_token={secretKeyRef: {name: hub, key: token}}",
)
"""Overrides that set every field of a RayJob that is set by a key."""

_CRD = Path(__file__).parent / "kubernetes" / "crd.yaml"
_COUNT = {"type": "integer", "minimum": 0}
_RESTARTS = {"enum": ["Always", "OnFailure", "Never", "ExitCode"]}
_REPLICA = {
    "type": "object",
    "required": ["template"],
    "properties": {"replicas": _COUNT, "restartPolicy": _RESTARTS, "template": {}},
}
_PYTORCHJOB = {
    "type": "object",
    "required": ["pytorchReplicaSpecs"],
    "properties": {
        "nprocPerNode": {"type": "string", "pattern": "^(auto|cpu|gpu|[1-9][0-9]*)$"},
        "runPolicy": {
            "type": "object",
            "properties": {
                "activeDeadlineSeconds": {"type": "integer"},
                "backoffLimit": _COUNT,
                "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
                "suspend": {"type": "boolean"},
                "ttlSecondsAfterFinished": _COUNT,
            },
        },
        "pytorchReplicaSpecs": {
            "type": "object",
            "required": ["Master"],
            "properties": {
                "Master": {**_REPLICA, "properties": {**_REPLICA["properties"], "replicas": {"const": 1}}},
                "Worker": _REPLICA,
            },
        },
    },
}
"""Source: Kubeflow Training Operator 1.7, API of PyTorchJob v1 and its validation."""


def validate(job: dict[str, Any]) -> None:
    """Raise where the job has an unknown field, a wrong type, or a pod template that Kubernetes does not know."""
    if job["kind"] == "RayJob":
        schema = definitions.closed_ray_jobs() if definitions.RAY_JOBS.is_file() else {}
    else:
        schema = definitions.closed(_hyperpod_spec() if job["kind"] == "HyperPodPyTorchJob" else _PYTORCHJOB)
    jsonschema.Draft202012Validator(schema).validate(job["spec"])
    for template in templates(job):
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
        kubernetes_validate.validate(pods, KUBERNETES, strict=True)
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": job["metadata"]}, KUBERNETES, strict=True
    )


def validate_object(body: dict[str, Any]) -> None:
    """Raise where an object of a kind of Kubernetes' own has an unknown field or a wrong type."""
    kubernetes_validate.validate(body, KUBERNETES, strict=True)


def templates(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod template of each part of a job of any kind."""
    spec = job["spec"]
    if job["kind"] in ("RayJob", "StatefulSet"):
        return pod_templates(job)
    parts = spec["replicaSpecs"] if "replicaSpecs" in spec else spec["pytorchReplicaSpecs"].values()
    return [part["template"] for part in parts]


def _hyperpod_spec() -> dict[str, Any]:
    (version,) = yaml_io.load(_CRD.read_text())["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]


SELINUX_TYPES = ("container_t", "container_init_t", "container_kvm_t", "container_engine_t")
"""Source: Kubernetes, Pod Security Standards, Baseline: SELinux."""


def beyond_restricted(pod: dict[str, Any]) -> Iterator[str]:
    """Yield each control of the restricted profile that refuses a pod spec, by its name there.

    Source: Kubernetes, Pod Security Standards, Baseline and Restricted.
    """
    if any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        yield "Host Namespaces"
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in pod["volumes"]:
        if not volume.keys() - {"name"} <= allowed:
            yield "Volume Types"
    for container in pod["containers"]:
        yield from _of_container(container["securityContext"], pod.get("securityContext", {}))


def _of_container(context: dict[str, Any], of_pod: dict[str, Any]) -> Iterator[str]:
    inherited = {**of_pod, **context}
    capabilities = context.get("capabilities", {})
    selinux = inherited.get("seLinuxOptions", {})
    refused = {
        "Privileged Containers": context.get("privileged", False) is not False,
        "Privilege Escalation": context.get("allowPrivilegeEscalation") is not False,
        "Running as Non-root": inherited.get("runAsNonRoot") is not True,
        "Running as Non-root user": inherited.get("runAsUser") == 0,
        "Seccomp": inherited.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
        "Capabilities: drop": "ALL" not in capabilities.get("drop", []),
        "Capabilities: add": not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
        "procMount": context.get("procMount", "Default") != "Default",
        "AppArmor": inherited.get("appArmorProfile", {}).get("type", "RuntimeDefault") == "Unconfined",
        "SELinux": bool(selinux.keys() & {"user", "role"}) or selinux.get("type", "container_t") not in SELINUX_TYPES,
    }
    yield from (name for name, is_refused in refused.items() if is_refused)


def arrives(text: str, variables: dict[str, str]) -> str:
    """Return what a container gets for a text in its variables, command or arguments.

    Source: Kubernetes, third_party/forked/golang/expansion, Expand.
    """
    return re.sub(
        r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[1] is None else variables.get(found[1], found[0]), text
    )
