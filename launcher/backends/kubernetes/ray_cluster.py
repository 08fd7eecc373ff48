"""The Ray cluster that KubeRay starts for a bundle's RayJob. Pure.

Source: KubeRay 1.4 or later, ray-operator/controllers/ray/common/pod.go: rayStartParams, else the limits, else for
CPUs the requests, of the first container.
"""

import math
import shlex
from collections.abc import Mapping
from typing import Any

from launcher.backends.kubernetes.api_objects import JOB_FILE
from launcher.common import yaml_io
from launcher.common.quantities import amount
from launcher.model.job_spec import Bundle
from launcher.model.ray_job import CPU, GPU, RayJob


def ray_job(bundle: Bundle) -> RayJob | None:
    """Return the Ray cluster of a bundle's job; None if it has none."""
    manifest = yaml_io.load(bundle.files[JOB_FILE])
    if manifest["kind"] != "RayJob":
        return None
    cluster = manifest["spec"]["rayClusterSpec"]
    workers = tuple(
        _resources(group)
        for group in cluster["workerGroupSpecs"]
        for _ in range(group["replicas"] * group.get("numOfHosts", 1))
    )
    words = tuple(shlex.split(manifest["spec"]["entrypoint"]))
    return RayJob(_resources(cluster["headGroupSpec"]), workers, JOB_FILE, words)


def _resources(group: Mapping[str, Any]) -> dict[str, int]:
    """Return the resources of a group's nodes by Ray's names."""
    params = group["rayStartParams"]
    of_container = group["template"]["spec"]["containers"][0]["resources"]
    limits, requests = of_container.get("limits") or {}, of_container.get("requests") or {}
    devices = next((value for name, value in limits.items() if name.endswith("gpu")), 0)
    cpus = params.get("num-cpus") or limits.get("cpu") or requests.get("cpu")
    found = {GPU: int(params.get("num-gpus", devices))}
    return found if cpus is None else {CPU: math.ceil(amount(cpus)), **found}
