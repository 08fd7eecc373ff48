"""The Ray cluster inside a bundle's Slurm job, by the options of its batch script and of ray.sh. Pure."""

import json
import re

from launcher.backends.slurm.demand import header_options
from launcher.backends.slurm.rendering import JOB_FILE
from launcher.backends.slurm.run_files import RAY_FILE
from launcher.model import instances
from launcher.model.job_spec import Bundle
from launcher.model.ray_job import CPU, GPU, RayJob


def ray_job(bundle: Bundle) -> RayJob | None:
    """Return the Ray cluster of a bundle's job, whose first node is the head, too; None if it has none."""
    if RAY_FILE not in bundle.files:
        return None
    options = header_options(bundle.files[JOB_FILE].splitlines())
    devices = re.search(r"--num-gpus=(\d+)", bundle.files[RAY_FILE])
    instance = instances.find(json.loads(bundle.files["plan.json"])["instance_type"])
    node = {GPU: int(devices[1]) if devices else 0}
    if "exclusive" not in options:
        node[CPU] = int(options.get("ntasks-per-node", 1)) * int(options.get("cpus-per-task", 1))
    elif instance:
        node[CPU] = instance.vcpus
    num_nodes = int(options["nodes"])
    return RayJob(node, (node,) * (num_nodes - 1), f"{JOB_FILE} and {RAY_FILE}", ())
