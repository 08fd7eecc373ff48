"""Settings of a recipe that are not simulated on this machine."""

from collections.abc import Iterator

from launcher.backends.sagemaker import request
from launcher.backends.sagemaker.keys import jobs_of
from launcher.backends.sagemaker.training_options import SmJobs
from launcher.common.problems import Notice
from launcher.model.config_tree import get
from launcher.model.family_registry import interface
from launcher.model.instances import canonical, table
from launcher.model.interface import Entry
from launcher.model.job_spec import JobSpec
from launcher.rules import MakeNotice, PlannedRecipe, notice_rule


@notice_rule("N136", source="docs/sagemaker.md")
def settings_are_without_effect(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Only the parts of a training job that a program can observe are simulated on this machine."""
    job, jobs = planned.job, jobs_of(planned.job)
    keys = {
        "role": jobs.role,
        "network_isolation": jobs.network_isolation,
        "encrypt_traffic": jobs.encrypt_traffic,
        "vpc": jobs.vpc.subnets,
        "output_kms_key": jobs.output_kms_key,
        "volume_kms_key": jobs.volume_kms_key,
        "spot": jobs.spot,
        "keep_alive_s": jobs.keep_alive_s,
        "training_plan_arn": jobs.training_plan_arn,
        "mlflow": jobs.mlflow.resource_arn,
        "metric_definitions": jobs.metric_definitions,
    }
    image = job.image or jobs.algorithm_name
    images = [f"{image} (the software installed here replaces it)"] if image else []
    settings = ", ".join([*(key for key, value in keys.items() if value), *request.members(jobs)])
    if words := "; ".join(filter(None, (*_accelerators(job, jobs), *images, settings))):
        yield notice(f"not simulated on this machine: {words}")


def _accelerators(job: JobSpec, jobs: SmJobs) -> Iterator[str]:
    is_toolkits = (
        interface(job).entry is Entry.SCRIPT
        and request.has_toolkit(request.of_job(job))
        and get(job.config, "recipes.distribution.mpi.enabled") is not True
    )
    starts = "; the toolkit starts one process for each, else one per host" if is_toolkits else ""
    types = [group.instance_type for group in jobs.instance_groups or ()] or [job.resources.instance_type or ""]
    for name in dict.fromkeys(map(canonical, types)):
        instance = job.resources.instance if name == job.resources.instance_type else table().get(name)
        if instance and instance.accelerators:
            yield f"the {instance.accelerators} accelerators of {name} (hosts share this machine's{starts})"
