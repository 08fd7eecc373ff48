"""What a user should know of a training job that SageMaker would accept as it is."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from launcher.backends.sagemaker import default_values, request
from launcher.common.problems import Notice
from launcher.model.job_spec import JobSpec


def notices(job: JobSpec) -> tuple[Notice, ...]:
    """Return the notices of a planned job."""
    plan = request.of_job(job)
    found = []
    if plan.jobs.spot and not plan.jobs.checkpoints.s3_uri:
        message = "spot=true without checkpoints.s3_uri: an interrupted job starts again from its first step"
        found.append(Notice("N170", message))
    if default_values.is_serverless(plan.jobs):
        found.append(
            Notice("N172", "AWS chooses the instances of a serverless job: those of the plan have no effect")
        )
    channels = [channel.name for channel in default_values.channels(plan.jobs)]
    found += _alike("channels", "SM_CHANNEL_", [*channels, default_values.RECIPE_CHANNEL])
    if default_values.has_toolkit(plan):
        found += _alike("hyperparameters", "SM_HP_", default_values.hyperparameters(plan))
    return tuple(found)


def _alike(kind: str, prefix: str, names: Iterable[str]) -> Iterator[Notice]:
    """Yield a notice of names that differ by case only. Source: sagemaker-training toolkit 5.1.4, SM_CHANNEL_…"""
    groups = defaultdict(list)
    for name in names:
        groups[name.upper()].append(name)
    for upper, same in groups.items():
        if len(same) > 1:
            message = f"{kind} {' and '.join(same)} differ by case only: {prefix}{upper} names one of them"
            yield Notice("N171", message)
