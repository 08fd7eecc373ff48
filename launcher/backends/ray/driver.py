"""The driver of a bundle's job, and the nodes that the job was planned for: a cluster that exists is not asked."""

import functools
import json
import shlex

from launcher.backends.ray import submit
from launcher.backends.ray.request import read
from launcher.bundle.store import config_of
from launcher.common import variables
from launcher.common.problems import raise_any
from launcher.model.job_spec import Bundle
from launcher.model.ray_job import GPU, Driver, RayJob


def ray_job(bundle: Bundle) -> RayJob:
    """Return the job that a bundle requests, on as many nodes as it was planned for.

    Raises:
        ProblemsFound: Its code or a secret of it is not here.
    """
    request = read(bundle)
    raise_any((*submit.folder_problems(request), *submit.unset_secrets(config_of(bundle))))
    values = {name: variables.current()[source] for name, source in request.secrets.items()}
    node = {GPU: int(json.loads(bundle.files["plan.json"])["nproc_per_node"])}
    command = request.job["entrypoint"]
    env = {**values, **request.job["runtime_env"]["env_vars"]}
    driver = Driver(command, env, functools.partial(submit.gather, bundle, request))
    source = "recipes.trainer.num_nodes and devices; cluster=ray learns its real nodes when the job is submitted"
    return RayJob({}, (node,) * request.nodes, source, tuple(shlex.split(command)), driver)
